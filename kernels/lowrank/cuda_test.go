package lowrank

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// A GPU moves what the CPU moves; a scale of a power of two leaves nothing to round.
func TestCUDASpreadAndCollect(t *testing.T) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range cases {
		r := kerntest.Rand(3)
		x := gputest.BF16(kerntest.Normal(r, 1, rows(k.blocks), k.r))
		y := gputest.New(t, s, dtype.BF16, k.o, len(k.blocks)*k.r)
		from := gputest.Upload(t, s, x, dtype.BF16)
		got := gputest.Twice(t, s, func() { c.Spread(s, y, from, k.blocks, 2) }, y)[0]
		want := spreadOf(k.o, k.r, k.blocks, x, 2)
		if msg := kerntest.Compare(gputest.Floats(got), kerntest.F64(want), 0); msg != "" {
			t.Errorf("spread %v: %s", k.blocks, msg)
		}
		wide := gputest.Upload(t, s, want, dtype.F32)
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
			for _, add := range []bool{false, true} {
				back, start := gputest.New(t, s, dt, x.Shape...), gputest.Upload(t, s, x, dt)
				got := gputest.Twice(t, s, func() {
					s.Copy(back.Buf, start.Buf)
					c.Collect(s, back, wide, k.blocks, 0.5, add)
				}, back)[0]
				want := kerntest.F64(x)
				for i := range want {
					if add {
						want[i] *= 2
					}
				}
				if msg := kerntest.Compare(gputest.Floats(got), want, 0); msg != "" {
					t.Errorf("collect %v to %s, add=%v: %s", k.blocks, dt, add, msg)
				}
			}
		}
	}
	f := gputest.New(t, s, dtype.F32, 4, 2)
	kerntest.Panics(t, func() { c.Spread(s, f, f, [][2]int{{0, 4}}, 1) }, "spread", fmt.Sprint("want ", dtype.BF16))
}
