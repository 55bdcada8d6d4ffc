package vec

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

func TestReduceMatchesReference(t *testing.T) {
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, dt := range dtype.All {
			for _, op := range allOps {
				for _, n := range append(lengths, long/dt.Size()) {
					for _, off := range []int{0, 1} {
						if n > 10000 && (off != 0 || op != Sum) {
							continue
						}
						what := fmt.Sprintf("%s %v op %d, %d elements at +%d", path, dt, op, n, off)
						a, b, d := at(dt, n, off), at(dt, n, 0), at(dt, n, off+3)
						fill(dt, a, rng)
						fill(dt, b, rng)
						srcs := [][]byte{bytes.Clone(a), bytes.Clone(b)}
						Reduce(dt, op, d, a, b)
						compare(t, what, dt, op, d, srcs)
						if !bytes.Equal(a, srcs[0]) || !bytes.Equal(b, srcs[1]) {
							t.Fatalf("%s: a source changed", what)
						}
						Reduce(dt, op, b, a, b)
						compare(t, what+" into b", dt, op, b, srcs)
						Reduce(dt, op, a, a, srcs[1])
						compare(t, what+" into a", dt, op, a, srcs)
					}
				}
			}
		}
	})
}

func TestReduceManyMatchesReference(t *testing.T) {
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, dt := range dtype.All {
			for _, op := range allOps {
				for _, ranks := range []int{1, 2, 3, 5} {
					for _, n := range []int{0, 1, 17, blockBytes/dt.Size() + 13} {
						what := fmt.Sprintf("%s %v op %d, %d sources of %d elements", path, dt, op, ranks, n)
						var bufs, srcs [][]byte
						for r := range ranks {
							b := at(dt, n, r)
							fill(dt, b, rng)
							bufs, srcs = append(bufs, b), append(srcs, bytes.Clone(b))
						}
						out := at(dt, n, 5)
						ReduceMany(dt, op, [][]byte{out}, bufs)
						compare(t, what, dt, op, out, srcs)
						// In place, in another order than the sources'.
						others := slices.Clone(bufs)
						slices.Reverse(others)
						ReduceMany(dt, op, others, bufs)
						for r, b := range bufs {
							if !bytes.Equal(b, bufs[0]) {
								t.Fatalf("%s: destination %d differs from destination 0", what, r)
							}
						}
						compare(t, what+" in place", dt, op, bufs[0], srcs)
					}
				}
			}
		}
	})
}

func TestMistakesPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"length":   func() { Reduce(dtype.F32, Sum, make([]byte, 8), make([]byte, 8), make([]byte, 4)) },
		"element":  func() { Scale(dtype.F32, make([]byte, 6), 2) },
		"type":     func() { Reduce(dtype.Invalid, Sum, nil, nil, nil) },
		"op":       func() { Reduce(dtype.F32, Prod+1, make([]byte, 4), make([]byte, 4), make([]byte, 4)) },
		"sources":  func() { ReduceMany(dtype.F32, Sum, [][]byte{nil}, nil) },
		"divisor":  func() { Divide(dtype.F32, make([]byte, 4), 0) },
		"norm":     func() { SumSquares(dtype.I32, make([]byte, 4)) },
		"narrow":   func() { Narrow(dtype.I32, make([]byte, 4), make([]float32, 1)) },
		"add":      func() { Accumulate(dtype.F32, make([]float32, 1), make([]byte, 8)) },
		"longdest": func() { ReduceMany(dtype.U8, Sum, [][]byte{make([]byte, 2)}, [][]byte{make([]byte, 1)}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestNoAllocations(t *testing.T) {
	n := 4 << 10
	srcs := [][]byte{at(dtype.F32, n, 0), at(dtype.F32, n, 0), at(dtype.F32, n, 0)}
	for name, f := range map[string]func(){
		"ReduceMany f32":  func() { ReduceMany(dtype.F32, Sum, srcs, srcs) },
		"ReduceMany bf16": func() { ReduceMany(dtype.BF16, Avg, srcs, srcs) },
		"Reduce":          func() { Reduce(dtype.F16, Max, srcs[0], srcs[1], srcs[2]) },
		"Scale":           func() { Scale(dtype.BF16, srcs[0], 0.5) },
		"SumSquares":      func() { SumSquares(dtype.F16, srcs[0]) },
	} {
		f()
		if got := testing.AllocsPerRun(50, f); got >= 1 {
			t.Errorf("%s allocates %v times", name, got)
		}
	}
}
