package embedding

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCPU(t testing.TB, threads int) (CPU, device.Stream) {
	return NewCPU(kerntest.Pool(t, threads)), kerntest.Stream(t)
}

type results struct{ y, yAdd, dtable, dtableAdd tensor.Tensor }

func run(t testing.TB, threads int, table, dy, start, ids tensor.Tensor) results {
	c, s := newCPU(t, threads)
	r := results{kerntest.New(dy.Shape...), kerntest.Clone(dy), kerntest.New(table.Shape...), kerntest.Clone(start)}
	c.Embed(s, r.y, table, ids, false)
	c.Embed(s, r.yAdd, table, ids, true)
	c.EmbedBackward(s, r.dtable, dy, ids, false)
	c.EmbedBackward(s, r.dtableAdd, dy, ids, true)
	kerntest.Wait(t, s)
	return r
}

func TestEmbedAgainstNaive(t *testing.T) {
	for _, size := range [][3]int{{1, 1, 1}, {7, 3, 5}, {65, 50257, 8}, {130, 11, 96}, {40, 1, 33}, {0, 4, 4}} {
		n, v, d := size[0], size[1], size[2]
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			r := kerntest.Rand(uint64(n))
			table, dy, start := kerntest.Normal(r, 1, v, d), kerntest.Normal(r, 1, n, d), kerntest.Normal(r, 1, v, d)
			list := make([]int32, n)
			for i := range list {
				list[i] = int32(r.IntN(v)) // with v = 1, one repeated token
			}
			ids := kerntest.IDs(list...)
			tv, dv := kerntest.F64(table), kerntest.F64(dy)
			y, yAdd := make([]float64, n*d), kerntest.F64(dy)
			grad, gradAdd := make([]float64, v*d), kerntest.F64(start)
			for i, id := range list {
				for j := range d {
					y[i*d+j] = tv[int(id)*d+j]
					yAdd[i*d+j] += tv[int(id)*d+j]
					grad[int(id)*d+j] += dv[i*d+j]
					gradAdd[int(id)*d+j] += dv[i*d+j]
				}
			}
			got := run(t, 1, table, dy, start, ids)
			kerntest.Near(t, "y", got.y, y, 0)
			kerntest.Near(t, "y added", got.yAdd, yAdd, 1e-7)
			kerntest.Near(t, "dtable", got.dtable, grad, 1e-6) // sums of up to 130 rows in f32
			kerntest.Near(t, "dtable added", got.dtableAdd, gradAdd, 1e-6)
			for _, threads := range kerntest.Threads[1:] {
				again := run(t, threads, table, dy, start, ids)
				kerntest.Equal(t, "y", got.y, again.y)
				kerntest.Equal(t, "y added", got.yAdd, again.yAdd)
				kerntest.Equal(t, "dtable", got.dtable, again.dtable)
				kerntest.Equal(t, "dtable added", got.dtableAdd, again.dtableAdd)
			}
		})
	}
}

// The look-up is linear in the table, so central differences are exact.
func TestEmbedAgainstDifferences(t *testing.T) {
	const n, v, d = 6, 4, 3
	r := kerntest.Rand(2)
	table, dy := kerntest.Normal(r, 1, v, d), kerntest.Normal(r, 1, n, d)
	list := []int32{3, 0, 3, 3, 1, 0}
	got := run(t, 1, table, dy, table, kerntest.IDs(list...))
	tv, dv := kerntest.F64(table), kerntest.F64(dy)
	loss := func() float64 {
		var s float64
		for i, id := range list {
			s += kerntest.Dot(tv[int(id)*d:int(id)*d+d], dv[i*d:(i+1)*d])
		}
		return s
	}
	kerntest.Near(t, "dtable", got.dtable, kerntest.Gradient(tv, loss), 1e-6)
}

func TestEmbedRefusesIDs(t *testing.T) {
	for _, id := range []int32{-1, 4, 1 << 30} {
		for name, call := range map[string]func(c CPU, s device.Stream, ids tensor.Tensor){
			"embed": func(c CPU, s device.Stream, ids tensor.Tensor) {
				c.Embed(s, kerntest.New(3, 2), kerntest.New(4, 2), ids, false)
			},
			"embed backward": func(c CPU, s device.Stream, ids tensor.Tensor) {
				c.EmbedBackward(s, kerntest.New(4, 2), kerntest.New(3, 2), ids, false)
			},
		} {
			c, s := newCPU(t, 1)
			call(c, s, kerntest.IDs(0, id, 1))
			err := kerntest.Sync(s)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s: id %d of row 1", name, id)) {
				t.Errorf("%s with id %d: %v", name, id, err)
			}
		}
	}
}

func TestEmbedRefusesShapes(t *testing.T) {
	c, s := newCPU(t, 1)
	n := kerntest.New
	kerntest.Panics(t, func() { c.Embed(s, n(2, 3), n(5, 4), kerntest.IDs(0, 1), false) }, "embed", "table is f32[5 4]", "f32[5 3]")
	kerntest.Panics(t, func() { c.Embed(s, n(2, 3), n(5, 3), kerntest.IDs(0), false) }, "ids is i32[1]")
	kerntest.Panics(t, func() { c.EmbedBackward(s, n(5, 3), n(2, 4), kerntest.IDs(0, 1), false) }, "embed backward", "dtable")
}
