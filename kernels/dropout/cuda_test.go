package dropout

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// A GPU drops the elements that the CPU drops, and rounds the others to bf16.
func TestCUDADropout(t *testing.T) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	const p, key, row = 0.3, 5, 77
	for _, shape := range [][]int{{3, 8}, {5, 13}, {1000, 1}, {33, 896}} {
		for _, add := range []bool{false, true} {
			for _, shifted := range []bool{false, true} {
				r := kerntest.Rand(1)
				x, before := gputest.BF16(kerntest.Normal(r, 1, shape...)), gputest.BF16(kerntest.Normal(r, 1, shape...))
				want := gputest.Floats(run(t, 1, kerntest.Clone(before), x, p, key, row, add))
				y, from, start := gputest.New(t, s, dtype.BF16, shape...), gputest.Upload(t, s, x, dtype.BF16), gputest.Upload(t, s, before, dtype.BF16)
				if shifted {
					y, from = gputest.Shifted(t, s, y), gputest.Shifted(t, s, from)
				}
				got := gputest.Twice(t, s, func() {
					s.Copy(y.Buf, start.Buf)
					c.Dropout(s, y, from, p, key, row, add)
				}, y)[0]
				// One rounding to 8 bits.
				if msg := kerntest.Compare(gputest.Floats(got), want, 1.0/256); msg != "" {
					t.Errorf("%v add=%v shifted=%v: %s", shape, add, shifted, msg)
				}
				for i, v := range gputest.Floats(got) {
					if !add && (v == 0) != (want[i] == 0) {
						t.Fatalf("%v shifted=%v: element %d is %v, the CPU's %v", shape, shifted, i, v, want[i])
					}
				}
			}
		}
	}
	half := gputest.New(t, s, dtype.F32, 2, 2)
	kerntest.Panics(t, func() { c.Dropout(s, half, half, p, 0, 0, false) }, "dropout", fmt.Sprint("want ", dtype.BF16))
}
