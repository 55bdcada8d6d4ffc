package lowrank

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// cases are places of factors: one alone, all side by side, and with gaps, of which
// one is at the end; a factor may have no rows.
var cases = []struct {
	o, r   int
	blocks [][2]int
}{
	{5, 3, [][2]int{{0, 5}}},
	{9, 1, [][2]int{{2, 4}}},
	{17, 2, [][2]int{{0, 8}, {8, 11}, {11, 17}}},
	{700, 16, [][2]int{{0, 400}, {500, 600}}},
	{6, 2, [][2]int{{0, 1}, {1, 1}, {3, 5}, {5, 6}}},
}

func rows(blocks [][2]int) (m int) {
	for _, b := range blocks {
		m += b[1] - b[0]
	}
	return m
}

// spreadOf is Spread, an element at a time: where column lies in factor g, and row in
// its rows, the element is that of the row's place among all factors' rows.
func spreadOf(o, r int, blocks [][2]int, x tensor.Tensor, scale float32) tensor.Tensor {
	y := kerntest.New(o, len(blocks)*r)
	clear(y.F32())
	at := 0
	for g, b := range blocks {
		for row := b[0]; row < b[1]; row++ {
			for j := range r {
				y.F32()[(row*len(blocks)+g)*r+j] = scale * x.F32()[at*r+j]
			}
			at++
		}
	}
	return y
}

func TestSpreadAndCollect(t *testing.T) {
	for _, c := range cases {
		for _, threads := range kerntest.Threads {
			what := fmt.Sprintf("%v by %d threads", c.blocks, threads)
			ops, s, r := NewCPU(kerntest.Pool(t, threads)), kerntest.Stream(t), kerntest.Rand(3)
			x := kerntest.Normal(r, 1, rows(c.blocks), c.r)
			y := kerntest.New(c.o, len(c.blocks)*c.r)
			ops.Spread(s, y, x, c.blocks, 1.5)
			kerntest.Wait(t, s)
			kerntest.Equal(t, what, spreadOf(c.o, c.r, c.blocks, x, 1.5), y)

			// Collect takes what Spread gives, and nothing beside it.
			wide := kerntest.Normal(r, 1, y.Shape...)
			for i, v := range y.F32() {
				if v != 0 {
					wide.F32()[i] = v
				}
			}
			back := kerntest.New(x.Shape...)
			ops.Collect(s, back, wide, c.blocks, 2, false)
			sum := kerntest.Clone(x)
			ops.Collect(s, sum, wide, c.blocks, 2, true)
			kerntest.Wait(t, s)
			for i, v := range x.F32() {
				if want := 2 * (1.5 * v); back.F32()[i] != want || sum.F32()[i] != want+v {
					t.Fatalf("%s: [%d] is %v, added %v, want %v and %v", what, i, back.F32()[i], sum.F32()[i], want, want+v)
				}
			}
		}
	}
}

func TestLowRankRefuses(t *testing.T) {
	ops, s, n := NewCPU(kerntest.Pool(t, 1)), kerntest.Stream(t), kerntest.New
	for _, c := range []struct {
		y, x   tensor.Tensor
		blocks [][2]int
		why    string
	}{
		{n(4, 2), n(4, 2), nil, "0 factors"},
		{n(4, 10), n(5, 2), slices.Repeat([][2]int{{0, 1}}, 5), "5 factors"},
		{n(4, 4), n(4, 2), [][2]int{{2, 4}, {0, 2}}, "ascending"},
		{n(4, 2), n(5, 2), [][2]int{{0, 5}}, "ascending ranges of the 4"},
		{n(4, 2), n(3, 2), [][2]int{{0, 4}}, "rows [[0 4]] are 4"},
		{n(4, 2), n(4, 2), [][2]int{{0, 2}, {2, 4}}, "want f32[4 4]"},
	} {
		kerntest.Panics(t, func() { ops.Spread(s, c.y, c.x, c.blocks, 1) }, "spread", c.why)
		kerntest.Panics(t, func() { ops.Collect(s, c.x, c.y, c.blocks, 1, false) }, "collect", c.why)
	}
}
