package cublaslt

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// plan is a product ready to run: the library's descriptors, and the algorithm.
//
// cuBLASLt is column-major: it sees the transpose of each of our matrices. So it is
// asked for dᵀ = op(b)ᵀ·op(a)ᵀ: its A is our b, its B our a, each transposed where
// ours is, and its rows are our columns. A bias of the library belongs to rows, which
// is to our columns.
type plan struct {
	product    product
	desc       uintptr
	a, b, c, d uintptr // layouts of our matrices; c is d where it does not lie apart
	algo       algorithm
	choice     Choice

	// The arguments of the latest launch, here so that a launch allocates nothing.
	alpha, beta float32
	bias        uintptr
	set         [4]uintptr
	run         [16]uintptr
}

// newPlan makes the descriptors of a product. The library looks at the address of
// the bias for its alignment. On an error the caller releases the plan.
func (h *Handle) newPlan(want product, bias uintptr) (*plan, error) {
	p := &plan{product: want, alpha: 1}
	l := h.lib
	if err := l.failed("cublasLtMatmulDescCreate", l.descCreate.Call(uintptr(unsafe.Pointer(&p.desc)), compute32F, uintptr(cudaTypes[dtype.F32]))); err != nil {
		return p, err
	}
	set := func(attribute uintptr, value uint64, size uintptr) error {
		return l.failed(fmt.Sprintf("cublasLtMatmulDescSetAttribute(%d, %d)", attribute, value),
			l.descSet.Call(p.desc, attribute, uintptr(unsafe.Pointer(&value)), size))
	}
	operation := func(l layout) uint64 { // cublasOperation_t
		if l.trans {
			return 1
		}
		return 0
	}
	err := errors.Join(set(descTransA, operation(want.b), 4), set(descTransB, operation(want.a), 4))
	if want.bias {
		err = errors.Join(err, set(descEpilogue, epilogueBias, 4), set(descBiasPointer, uint64(bias), 8))
	}
	create := func(layout *uintptr, of layout, rows, cols int) error {
		if of.trans {
			rows, cols = cols, rows
		}
		return l.failed(fmt.Sprintf("cublasLtMatrixLayoutCreate(%s, %d, %d, %d)", of.dtype, cols, rows, of.stride),
			l.layoutCreate.Call(uintptr(unsafe.Pointer(layout)), uintptr(cudaTypes[of.dtype]), uintptr(cols), uintptr(rows), uintptr(of.stride)))
	}
	err = errors.Join(err, create(&p.a, want.a, want.m, want.k), create(&p.b, want.b, want.k, want.n), create(&p.d, want.d, want.m, want.n))
	p.c = p.d
	if want.c.dtype != dtype.Invalid {
		p.beta = 1
		if !want.inPlace {
			p.c = 0
			err = errors.Join(err, create(&p.c, want.c, want.m, want.n))
		}
	}
	return p, err
}

func (h *Handle) release(p *plan) error {
	l := h.lib
	var errs []error
	if p.c != p.d && p.c != 0 {
		errs = append(errs, l.failed("cublasLtMatrixLayoutDestroy", l.layoutDestroy.Call(p.c)))
	}
	for _, layout := range []uintptr{p.a, p.b, p.d} {
		if layout != 0 {
			errs = append(errs, l.failed("cublasLtMatrixLayoutDestroy", l.layoutDestroy.Call(layout)))
		}
	}
	if p.desc != 0 {
		errs = append(errs, l.failed("cublasLtMatmulDescDestroy", l.descDestroy.Call(p.desc)))
	}
	return errors.Join(errs...)
}

// launch enqueues the product with the given algorithm, which lies on the heap.
func (h *Handle) launch(s *cuda.Stream, p *plan, algo *algorithm, at operands, space device.Buffer) error {
	l := h.lib
	if p.product.bias {
		// The descriptor is read during the launch, so one serves every bias.
		p.bias = at.bias
		p.set = [4]uintptr{p.desc, descBiasPointer, uintptr(unsafe.Pointer(&p.bias)), 8}
		if err := l.failed("cublasLtMatmulDescSetAttribute(bias pointer)", l.descSet.Call(p.set[:]...)); err != nil {
			return err
		}
	}
	p.run = [16]uintptr{
		h.handle, p.desc,
		uintptr(unsafe.Pointer(&p.alpha)), at.b, p.b, at.a, p.a,
		uintptr(unsafe.Pointer(&p.beta)), at.c, p.c, at.d, p.d,
		uintptr(unsafe.Pointer(algo)), space.Addr(), uintptr(space.Len()), s.Handle(),
	}
	err := l.failed("cublasLtMatmul", l.matmul.Call(p.run[:]...))
	runtime.KeepAlive(algo)
	return err
}

// preference tells the library what an algorithm may want and do.
func (h *Handle) preference(p *plan) (pref uintptr, err error) {
	l := h.lib
	if err := l.failed("cublasLtMatmulPreferenceCreate", l.prefCreate.Call(uintptr(unsafe.Pointer(&pref)))); err != nil {
		return 0, err
	}
	w := p.product
	alignC := w.d.align
	if p.c != p.d {
		alignC = w.c.align
	}
	for _, set := range []struct {
		attribute   uintptr
		value, size uint64
	}{
		{prefMaxWorkspace, uint64(h.workspace), 8},
		{prefReductions, reduceInF32, 4},
		{prefAlignA, uint64(w.b.align), 4},
		{prefAlignB, uint64(w.a.align), 4},
		{prefAlignC, uint64(alignC), 4},
		{prefAlignD, uint64(w.d.align), 4},
	} {
		result := l.prefSet.Call(pref, set.attribute, uintptr(unsafe.Pointer(&set.value)), uintptr(set.size))
		if err := l.failed(fmt.Sprintf("cublasLtMatmulPreferenceSetAttribute(%d, %d)", set.attribute, set.value), result); err != nil {
			return 0, errors.Join(err, h.forget(pref))
		}
	}
	return pref, nil
}

func (h *Handle) forget(pref uintptr) error {
	return h.lib.failed("cublasLtMatmulPreferenceDestroy", h.lib.prefDestroy.Call(pref))
}

// candidates asks the library for algorithms, the one that it thinks fastest first.
// Only those that fit the workspace and add in a fixed order, in f32, are returned.
func (h *Handle) candidates(p *plan) (list []candidate, err error) {
	const most = 16
	l := h.lib
	pref, err := h.preference(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.forget(pref)) }()
	var found [most]candidate
	var n int32
	result := l.heuristic.Call(h.handle, p.desc, p.b, p.a, p.c, p.d, pref, most, uintptr(unsafe.Pointer(&found)), uintptr(unsafe.Pointer(&n)))
	if err := l.failed("cublasLtMatmulAlgoGetHeuristic", result); err != nil {
		return nil, err
	}
	for _, c := range found[:min(max(n, 0), most)] {
		if c.state != 0 || c.workspace > uint64(h.workspace) || slices.ContainsFunc(list, func(o candidate) bool { return o.algo == c.algo }) {
			continue
		}
		// The preference should have seen to it; what is kept for all later runs is
		// worth a second look.
		if scheme, ok := l.configOf(&c.algo, configReduction); ok && scheme&^reduceInF32 != 0 {
			continue
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("cuBLASLt %s knows no algorithm for it", cuda.LibraryVersion(l.version))
	}
	return list, nil
}

// usable is nil where the library would run the plan with the algorithm.
func (h *Handle) usable(p *plan, algo algorithm) error {
	var found candidate
	l := h.lib
	result := l.check.Call(h.handle, p.desc, p.b, p.a, p.c, p.d, uintptr(unsafe.Pointer(&algo)), uintptr(unsafe.Pointer(&found)))
	if err := l.failed("cublasLtMatmulAlgoCheck", result); err != nil {
		return err
	}
	if found.workspace > uint64(h.workspace) {
		return fmt.Errorf("it wants %d bytes of workspace, there are %d", found.workspace, h.workspace)
	}
	return nil
}
