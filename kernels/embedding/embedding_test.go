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

type results struct{ y, dtable, dtableAdd tensor.Tensor }

func run(t testing.TB, threads int, table, dy, start, ids tensor.Tensor) results {
	c, s := newCPU(t, threads)
	r := results{kerntest.New(dy.Shape...), kerntest.New(table.Shape...), kerntest.Clone(start)}
	c.Embed(s, r.y, table, ids)
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
			y := make([]float64, n*d)
			grad, gradAdd := make([]float64, v*d), kerntest.F64(start)
			for i, id := range list {
				for j := range d {
					y[i*d+j] = tv[int(id)*d+j]
					grad[int(id)*d+j] += dv[i*d+j]
					gradAdd[int(id)*d+j] += dv[i*d+j]
				}
			}
			got := run(t, 1, table, dy, start, ids)
			kerntest.Near(t, "y", got.y, y, 0)
			kerntest.Near(t, "dtable", got.dtable, grad, 1e-6) // sums of up to 130 rows in f32
			kerntest.Near(t, "dtable added", got.dtableAdd, gradAdd, 1e-6)
			for _, threads := range kerntest.Threads[1:] {
				again := run(t, threads, table, dy, start, ids)
				kerntest.Equal(t, "y", got.y, again.y)
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
				c.Embed(s, kerntest.New(3, 2), kerntest.New(4, 2), ids)
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
	kerntest.Panics(t, func() { c.Embed(s, n(2, 3), n(5, 4), kerntest.IDs(0, 1)) }, "embed", "table is f32[5 4]", "f32[5 3]")
	kerntest.Panics(t, func() { c.Embed(s, n(2, 3), n(5, 3), kerntest.IDs(0)) }, "ids is i32[1]")
	kerntest.Panics(t, func() { c.EmbedBackward(s, n(5, 3), n(2, 4), kerntest.IDs(0, 1), false) }, "embed backward", "dtable")
}

func TestPositionsAgainstNaive(t *testing.T) {
	const p, d = 9, 5
	for _, size := range [][2]int{{1, 1}, {3, 9}, {2, 4}, {0, 3}} {
		b, n := size[0], size[1]
		pos := p - n
		r := kerntest.Rand(uint64(n))
		table, x, start := kerntest.Normal(r, 1, p, d), kerntest.Normal(r, 1, b, n, d), kerntest.Normal(r, 1, p, d)
		y, dtable, added := kerntest.F64(x), make([]float64, p*d), kerntest.F64(start)
		for i := range b * n * d {
			at := i / d % n
			y[i] += float64(table.F32()[(pos+at)*d+i%d])
			dtable[at*d+i%d] += float64(x.F32()[i])
			added[at*d+i%d] += float64(x.F32()[i])
		}
		for _, threads := range kerntest.Threads {
			c, s := newCPU(t, threads)
			got, grad, gradAdd := kerntest.Clone(x), kerntest.New(p, d), kerntest.Clone(start)
			c.Positions(s, got, table, pos)
			c.PositionsBackward(s, grad, x, false)
			c.PositionsBackward(s, gradAdd, x, true)
			kerntest.Wait(t, s)
			kerntest.Near(t, "y", got, y, 1e-7)
			kerntest.Near(t, "dtable", grad, dtable, 3e-7)
			kerntest.Near(t, "dtable added", gradAdd, added, 3e-7)
		}
	}
	c, s := newCPU(t, 1)
	kerntest.Panics(t, func() { c.Positions(s, kerntest.New(1, 3, 2), kerntest.New(4, 2), 2) }, "positions 2 to 5")
	kerntest.Panics(t, func() { c.PositionsBackward(s, kerntest.New(4, 3), kerntest.New(1, 3, 2), false) }, "dtable is f32[4 3]")
}
