// Package cublaslt multiplies matrices on a GPU through cuBLASLt, which is opened
// at run time.
//
// A product is planned once for its shape, types, layout and alignment. At first
// sight of one the library proposes algorithms; they are timed on scratch memory,
// the fastest is checked against sums in f64 on the host and kept, also on disk, so
// that later runs and the other ranks of the host compute the same bits. Only
// algorithms that add in a fixed order are considered.
package cublaslt

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Matrix is a row-major matrix in device memory: element (r, c) lies
// r*Stride+c elements behind Addr. Trans asks for the transpose; Rows and Cols are
// those of what is stored. The zero Matrix means none.
type Matrix struct {
	Addr               uintptr
	DType              dtype.DType
	Rows, Cols, Stride int
	Trans              bool
}

// Handle multiplies on one device. Its methods may be called from any goroutine.
type Handle struct {
	dev       *cuda.Device
	lib       *library
	workspace int
	zeros     bool // see TimeWithZeros
	choices   *choices

	mu     sync.Mutex // guards what follows, and the descriptors of plans
	handle uintptr
	plans  map[product]*plan
	spaces map[uintptr]device.Buffer // the workspace of each stream, by its CUstream
}

// New opens cuBLASLt for d. Products use workspace bytes of device memory, once
// for each stream they run on; 0 is 32 MiB from sm_90 on and 8 MiB before.
//
// An error says which library is missing or too old, and what to install. Close the
// handle before d.
func New(d *cuda.Device, workspace int) (*Handle, error) {
	major, minor, err := cuda.DriverVersion()
	if err != nil {
		return nil, err
	}
	lib, err := load(wanted(major))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d, err)
	}
	if workspace == 0 {
		workspace = 8 << 20
		if major, _ := d.Arch(); major >= 9 {
			workspace = 32 << 20
		}
	}
	h := &Handle{
		dev: d, lib: lib, workspace: workspace,
		choices: openChoices(fmt.Sprintf("%s, driver of CUDA %d.%d, cuBLASLt %s", d.Name(), major, minor, cuda.LibraryVersion(lib.version))),
		plans:   map[product]*plan{},
		spaces:  map[uintptr]device.Buffer{},
	}
	unbind := d.Bind()
	defer unbind()
	if err := lib.failed("cublasLtCreate", lib.create.Call(uintptr(unsafe.Pointer(&h.handle)))); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", d, lib.path, err)
	}
	slog.Debug("cublaslt: opened", "device", d.String(), "library", lib.path, "version", cuda.LibraryVersion(lib.version),
		"workspace", workspace, "choices", h.choices.path)
	return h, nil
}

// Version is the library's version, such as 12.9.1. Two libraries of one version
// compute alike, wherever they lie.
func (h *Handle) Version() string { return cuda.LibraryVersion(h.lib.version) }

// Close releases the plans and the workspaces. Synchronize the streams first.
func (h *Handle) Close() error {
	unbind := h.dev.Bind()
	defer unbind()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.handle == 0 {
		return nil
	}
	var errs []error
	for _, p := range h.plans {
		errs = append(errs, h.release(p))
	}
	for _, b := range h.spaces {
		errs = append(errs, h.dev.Free(b))
	}
	errs = append(errs, h.lib.failed("cublasLtDestroy", h.lib.destroy.Call(h.handle)))
	h.handle, h.plans, h.spaces = 0, nil, nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", h.dev, err)
	}
	return nil
}

// MatMul writes d = op(a)·op(b) + bias + c, where op transposes what says so.
//
//	op(a) [M,K], op(b) [K,N] of one type; K is at least 1
//	d [M,N] of that type or f32, not transposed
//	bias N elements of d's type, added to each row, at a multiple of 16 bytes; 0: none
//	c [M,N] of d's type, not transposed; the zero Matrix: none
//
// Products and sums are in f32, rounded once. c may be d, with the same stride; else
// d overlaps nothing. It enqueues on s and returns, but for the first sight of a
// product, which may wait for the stream while algorithms are timed. Equal calls
// give equal bits. A failure fails s. Arguments that do not fit are a fault of the
// program: it panics.
func (h *Handle) MatMul(s *cuda.Stream, d, a, b Matrix, bias uintptr, c Matrix) {
	want := newProduct(d, a, b, bias, c)
	if want.m == 0 || want.n == 0 || s.Err() != nil {
		return
	}
	if c.DType == dtype.Invalid {
		c.Addr = d.Addr // the library reads nothing there, but wants an address
	}
	unbind := h.dev.Bind()
	defer unbind()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.enqueue(s, want, operands{a.Addr, b.Addr, c.Addr, d.Addr, bias}); err != nil {
		s.Fail(fmt.Errorf("%s: matrix product %v: %w", h.dev, want, err))
	}
}

// operands are where the matrices of a product lie.
type operands struct{ a, b, c, d, bias uintptr }

func (h *Handle) enqueue(s *cuda.Stream, want product, at operands) error {
	if h.handle == 0 {
		return errors.New("cuBLASLt's handle is closed")
	}
	space, ok := h.spaces[s.Handle()]
	if !ok {
		var err error
		if space, err = h.dev.Alloc(h.workspace); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
		h.spaces[s.Handle()] = space
	}
	p := h.plans[want]
	if p == nil {
		var err error
		if p, err = h.plan(s, want, at, space); err != nil {
			return err
		}
		h.plans[want] = p
	}
	return h.launch(s, p, &p.algo, at, space)
}

// product is everything about a product that an algorithm depends on.
type product struct {
	m, n, k    int
	a, b, c, d layout // c.dtype is Invalid where nothing is added
	bias       bool
	inPlace    bool // c is d
}

// layout is how a matrix lies in memory.
type layout struct {
	dtype  dtype.DType
	trans  bool
	align  uint16 // what its address is a multiple of, see alignment
	stride int
}

// TimeWithZeros makes products that are seen for the first time from now on be timed with
// zeros for operands, for who multiplies zeros. Other operands bring a GPU to the limit of
// its power, where algorithms take the same time that differ by a tenth with zeros: noise
// would choose. Choices are kept apart from others.
func (h *Handle) TimeWithZeros() { h.zeros = true }

// newProduct checks the arguments of MatMul.
func newProduct(d, a, b Matrix, bias uintptr, c Matrix) product {
	p := product{m: d.Rows, n: d.Cols, a: a.layout("a"), b: b.layout("b"), d: d.layout("d"), bias: bias != 0}
	am, ak := a.shape()
	bk, bn := b.shape()
	p.k = ak
	switch {
	case am != p.m || bn != p.n || ak != bk || d.Trans:
		refuse("d = a·b with d %v, a %v, b %v", d, a, b)
	case p.k < 1:
		refuse("a %v · b %v: a sum over no elements", a, b)
	case a.DType != b.DType:
		refuse("a is %v, b is %v: want one type", a, b)
	case d.DType != a.DType && d.DType != dtype.F32:
		refuse("d is %v, want %s or f32", d, a.DType)
	case bias%16 != 0:
		refuse("the bias at %#x is not at a multiple of 16 bytes", bias)
	}
	if c.DType == dtype.Invalid {
		return p
	}
	p.c = c.layout("c")
	p.inPlace = c.Addr == d.Addr
	if c.DType != d.DType || c.Rows != d.Rows || c.Cols != d.Cols || c.Trans || p.inPlace && c.Stride != d.Stride {
		refuse("c is %v, want it like d, %v", c, d)
	}
	return p
}

func (m Matrix) layout(name string) layout {
	if _, ok := cudaTypes[m.DType]; !ok {
		refuse("%s is %v: want bf16, f16 or f32", name, m)
	}
	if m.Rows < 0 || m.Cols < 0 || m.Stride < m.Cols || m.Addr%uintptr(m.DType.Size()) != 0 || m.Addr == 0 && m.Rows*m.Cols > 0 {
		refuse("%s is %v", name, m)
	}
	return layout{m.DType, m.Trans, alignment(m.Addr), max(m.Stride, 1)}
}

func (m Matrix) shape() (rows, cols int) {
	if m.Trans {
		return m.Cols, m.Rows
	}
	return m.Rows, m.Cols
}

func (m Matrix) String() string {
	t := ""
	if m.Trans {
		t = "ᵀ"
	}
	return fmt.Sprintf("%s[%d %d]%s stride %d at %#x", m.DType, m.Rows, m.Cols, t, m.Stride, m.Addr)
}

func refuse(format string, args ...any) {
	panic("cublaslt: " + fmt.Sprintf(format, args...))
}

// alignment is the class of an address: 256, or a power of two up to 16. No kernel
// asks for one between, and every class more is another plan to time.
func alignment(addr uintptr) uint16 {
	if addr%256 == 0 {
		return 256
	}
	return uint16(1) << min(bits.TrailingZeros64(uint64(addr)), 4)
}

// String is the product in words: the key under which a choice is kept.
func (p product) String() string {
	side := func(l layout) string {
		t := ""
		if l.trans {
			t = "T"
		}
		return fmt.Sprintf("%s%s/%d@%d", l.dtype, t, l.stride, l.align)
	}
	text := fmt.Sprintf("m=%d n=%d k=%d a=%s b=%s d=%s", p.m, p.n, p.k, side(p.a), side(p.b), side(p.d))
	switch {
	case p.inPlace:
		text += " c=d"
	case p.c.dtype != dtype.Invalid:
		text += " c=" + side(p.c)
	}
	if p.bias {
		text += " bias"
	}
	return text
}
