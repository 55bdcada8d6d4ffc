package comm

import (
	_ "embed"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

//go:embed gpudirect.cu
var foldText string

// folds is the kernels of gpudirect.cu, which make of two arrays what an operation makes of
// them. The zero value has none.
type folds struct {
	module  *cuda.Module
	kernels [dtype.U8 + 1]*cuda.Function
	blocks  int // of a kernel, at most
}

// foldArgs is the kernels' parameter, as in gpudirect.cu.
type foldArgs struct {
	dst, a, b  uintptr
	n          int64
	op, divide int32 // divide: 0, not at all
	aligned, _ int32
}

func foldName(dt dtype.DType) string { return "fold_" + dt.String() }

// loadFolds loads the kernels. maxCTAs is Options.MaxCTAs.
func loadFolds(h hand, d *cuda.Device, maxCTAs int) (f folds, err error) {
	f.blocks = directBlocks
	if maxCTAs > 0 {
		f.blocks = min(f.blocks, maxCTAs)
	}
	if f.module, err = h.module(d, "gpudirect.cu", foldText); err != nil {
		return folds{}, err
	}
	for _, dt := range dtype.All {
		if f.kernels[dt], err = f.module.Function(foldName(dt)); err != nil {
			return f, err
		}
	}
	return f, nil
}

// enqueue launches the kernel for a move of a call of n ranks.
func (f *folds) enqueue(h hand, s *cuda.Stream, c *call, m move, n int) {
	a := foldArgs{dst: m.dst.Addr(), a: m.a.Addr(), b: m.b.Addr(), n: int64(m.dst.Len() / c.DType.Size()), op: int32(c.Op)}
	if m.divide {
		a.divide = int32(n)
	}
	const pack = 16
	if (a.dst|a.a|a.b)%pack == 0 {
		a.aligned = 1
	}
	blocks := min((m.dst.Len()/pack+directThreads-1)/directThreads, f.blocks)
	h.fold(s, f.kernels[c.DType], cuda.Grid{Blocks: cuda.Dim{X: max(blocks, 1)}, Threads: cuda.Dim{X: directThreads}}, &a)
}

func (f *folds) close() error {
	if f.module == nil {
		return nil
	}
	return f.module.Unload()
}
