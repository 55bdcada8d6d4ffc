package bench

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// Elements at a wrong place, from a wrong rank or from an earlier call differ from
// the right ones almost everywhere.
func TestPatternTellsDataApart(t *testing.T) {
	p := pattern{ranks: 4, dt: dtype.F32, op: comm.Sum}
	right := p.source(1, 1)
	x := make([]byte, 4*10*period)
	for what, fill := range map[string]func(){
		"shifted by one":     func() { right.fill(x, 1) },
		"shifted by a chunk": func() { right.fill(x, 1<<18) },
		"another rank's":     func() { p.source(2, 1).fill(x, 0) },
		"the call before's":  func() { p.source(1, 0).fill(x, 0) },
		"nothing":            func() { clear(x) },
		"the reduction's":    func() { pattern{ranks: 4, dt: dtype.F32, op: comm.Sum, reduces: true}.source(-1, 1).fill(x, 0) },
	} {
		fill()
		if n := right.wrong(x, 0); n < 9*10*period/10 {
			t.Errorf("%s: %d of %d elements are wrong, want nearly all", what, n, 10*period)
		}
	}
	right.fill(x, 3)
	if n := right.wrong(x, 3); n != 0 {
		t.Errorf("%d of the right elements are wrong", n)
	}
	x[4*1000] ^= 1
	if n := right.wrong(x, 3); n != 1 {
		t.Errorf("%d elements are wrong after one was changed", n)
	}
}

// The results are the same in whichever order the ranks' elements are reduced, and
// with every step rounded: forwards, backwards, and by halves.
func TestReductionsAreExact(t *testing.T) {
	for _, dt := range dtype.All {
		for _, op := range []comm.Op{comm.Sum, comm.Avg, comm.Min, comm.Max, comm.Prod} {
			for _, ranks := range []int{1, 2, 3, 8, 9, 16, 51} {
				p := pattern{ranks: ranks, dt: dt, op: op, reduces: true}
				if err := p.verifiable(); err != nil {
					t.Errorf("%s %s over %d: %v", op, dt, ranks, err)
				}
				for name, order := range orders(ranks) {
					got := fold(p, order)
					if n := p.source(-1, 2).wrong(got, 0); n != 0 {
						t.Errorf("%s %s over %d ranks, %s: %d elements differ", op, dt, ranks, name, n)
					}
				}
			}
		}
	}
}

func orders(n int) map[string][]int {
	up, down, stride := make([]int, n), make([]int, n), make([]int, 0, n)
	for i := range n {
		up[i], down[i] = i, n-1-i
	}
	for i := range 2 {
		for r := i; r < n; r += 2 {
			stride = append(stride, r)
		}
	}
	return map[string][]int{"upwards": up, "downwards": down, "even ranks first": stride}
}

// fold reduces the ranks' sources one by one, as a ring does.
func fold(p pattern, order []int) []byte {
	op := p.op
	if op == comm.Avg {
		op = comm.Sum
	}
	acc := append([]byte{}, p.source(order[0], 2).bytes...)
	for _, r := range order[1:] {
		vec.Reduce(p.dt, vec.Op(op), acc, acc, p.source(r, 2).bytes)
	}
	if p.op == comm.Avg {
		vec.Divide(p.dt, acc, p.ranks)
	}
	return acc
}

// Every rank's share counts: without it the result is another.
func TestEveryRankCounts(t *testing.T) {
	for _, op := range []comm.Op{comm.Sum, comm.Avg, comm.Prod} {
		for _, ranks := range []int{2, 3, 8, 9, 30} {
			p := pattern{ranks: ranks, dt: dtype.F64, op: op, reduces: true}
			for r := range ranks {
				neutral := map[comm.Op]int64{comm.Prod: 1}[op]
				counts := 0
				for i := range period {
					if p.value(r, i, 1) != neutral {
						counts++
					}
				}
				if counts < period/active/8 {
					t.Errorf("%s over %d ranks: rank %d contributes to %d of %d elements", op, ranks, r, counts, period)
				}
			}
		}
	}
}

func TestAverageOverTooManyRanks(t *testing.T) {
	for _, c := range []struct {
		dt    dtype.DType
		ranks int
		ok    bool
	}{{dtype.BF16, 51, true}, {dtype.BF16, 52, false}, {dtype.U8, 52, false}, {dtype.F16, 400, true}, {dtype.F32, 1000, true}} {
		p := pattern{ranks: c.ranks, dt: c.dt, op: comm.Avg, reduces: true}
		if err := p.verifiable(); (err == nil) != c.ok {
			t.Errorf("%s over %d ranks: %v", c.dt, c.ranks, err)
		}
	}
}

func ExampleNames() {
	fmt.Println(Names())
	// Output: [allreduce reducescatter allgather broadcast alltoall]
}
