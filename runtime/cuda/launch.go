package cuda

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
)

// Dim is an extent in three dimensions; a zero Y or Z means 1.
type Dim struct{ X, Y, Z int }

func (d Dim) String() string { return fmt.Sprintf("%dx%dx%d", d.X, max(d.Y, 1), max(d.Z, 1)) }

// Grid is the shape of a launch: blocks, threads of a block, and the bytes of
// dynamic shared memory of a block.
type Grid struct {
	Blocks, Threads Dim
	Shared          int
}

// maxParams is how many bytes of parameters every GPU and driver takes.
const maxParams = 4096

// maxPieces is how many parameters a kernel may take apart.
const maxPieces = 32

// paramBlock is how a launch hands its parameters over: the driver reads them
// through pointers, one for each, or, where it cannot tell how many there are, as
// one block through extra. It is part of a Stream, on the heap, and so does not
// move.
type paramBlock struct {
	pointers [maxPieces]uintptr
	extra    [5]uintptr
	size     uintptr
	room     [maxParams + align]byte
	data     []byte // the aligned part of room
}

// align is that of the strictest parameter, a TensorMap.
const align = 64

func (b *paramBlock) init() {
	const pointerTo, sizeAt, end = 1, 2, 0 // CU_LAUNCH_PARAM_*
	first := unsafe.Pointer(&b.room)
	skip := -uintptr(first) & (align - 1)
	b.data = b.room[skip : skip+maxParams]
	b.extra = [5]uintptr{pointerTo, uintptr(first) + skip, sizeAt, uintptr(unsafe.Pointer(&b.size)), end}
}

// Launch enqueues f on s. The kernel's parameters are the fields of *args, as one
// contiguous block: a kernel that takes one struct by value takes a T of the same
// layout in C, and one that takes several parameters takes a T with them as its
// fields, tensor maps first. T is made of integers, floats, addresses as uintptr
// or uint64, TensorMaps, and arrays and structs of these; bool is one byte, as in C.
// *args is copied before Launch returns. It does not allocate.
//
// An error, of the driver or of a T that does not fit, fails the stream. That T
// has the size of the kernel's parameters is checked at the first launch, where
// the driver can tell (CUDA 12.4).
func Launch[T any](s *Stream, f *Function, g Grid, args *T) {
	size := unsafe.Sizeof(*args)
	if f.params.Load() != int64(size)+1 && s.Err() == nil {
		if err := f.fits(reflect.TypeFor[T]()); err != nil {
			s.Fail(fmt.Errorf("%s: stream %s: %w", s.d, s.name, err))
			return
		}
		f.params.Store(int64(size) + 1)
	}
	s.launch(f, g, unsafe.Slice((*byte)(unsafe.Pointer(args)), size))
}

func (s *Stream) launch(f *Function, g Grid, params []byte) {
	if !s.begin() {
		return
	}
	defer s.mu.Unlock()
	if err := s.launchable(f, g); err != nil {
		s.Fail(err)
		return
	}
	b := &s.block
	b.size = uintptr(copy(b.data, params))
	var pointers, extra uintptr
	if offsets := f.offsets.Load(); offsets != nil {
		begin := b.extra[1]
		for i, at := range *offsets {
			b.pointers[i] = begin + at
		}
		pointers = uintptr(unsafe.Pointer(&b.pointers))
	} else {
		extra = uintptr(unsafe.Pointer(&b.extra))
	}
	s.args = [12]uintptr{f.handle,
		uintptr(g.Blocks.X), uintptr(max(g.Blocks.Y, 1)), uintptr(max(g.Blocks.Z, 1)),
		uintptr(g.Threads.X), uintptr(max(g.Threads.Y, 1)), uintptr(max(g.Threads.Z, 1)),
		uintptr(g.Shared), s.handle, pointers, extra}
	if r := s.run(s.d.api.LaunchKernel, 11); r != 0 {
		s.Fail(s.d.fail(r, "stream %s: %s, %v blocks of %v threads, %d bytes of shared memory: cuLaunchKernel", s.name, f.name, g.Blocks, g.Threads, g.Shared))
	}
}

// launchable finds what the driver would not: it takes narrower integers, and
// knows nothing of names.
func (s *Stream) launchable(f *Function, g Grid) error {
	if f.d.context[0] != s.d.context[0] {
		return fmt.Errorf("%s: stream %s: %s was loaded on %s", s.d, s.name, f.name, f.d)
	}
	const most = 1<<31 - 1
	for _, n := range [...]int{g.Blocks.X, g.Threads.X} {
		if n < 1 || n > most {
			return fmt.Errorf("%s: stream %s: %s: a grid of %v blocks of %v threads", s.d, s.name, f.name, g.Blocks, g.Threads)
		}
	}
	for _, n := range [...]int{g.Blocks.Y, g.Blocks.Z, g.Threads.Y, g.Threads.Z, g.Shared} {
		if n < 0 || n > most {
			return fmt.Errorf("%s: stream %s: %s: a grid of %v blocks of %v threads with %d bytes of shared memory", s.d, s.name, f.name, g.Blocks, g.Threads, g.Shared)
		}
	}
	return nil
}

// fits checks a type of arguments against the kernel's parameters, and finds where
// each of them lies in the arguments.
func (f *Function) fits(t reflect.Type) error {
	if t.Size() > maxParams {
		return fmt.Errorf("%s: %v has %d bytes, and a kernel takes at most %d", f.name, t, t.Size(), maxParams)
	}
	if why := notC(t); why != "" {
		return fmt.Errorf("%s: %v cannot be a kernel's parameters: it holds %s", f.name, t, why)
	}
	if f.d.api.FuncGetParamInfo == 0 {
		if holdsMap(t) {
			return fmt.Errorf("%s takes tensor maps, whose place among the parameters only a driver of CUDA 12.4 or later (550) tells: install a newer one", f.name)
		}
		return nil
	}
	offsets, end, err := f.layout()
	if err != nil {
		return err
	}
	if len(offsets) > maxPieces {
		return fmt.Errorf("%s takes %d parameters, at most %d are handed over: put them into a struct", f.name, len(offsets), maxPieces)
	}
	// Go rounds a struct up to its alignment; C does not round the list of parameters.
	if align := uintptr(t.Align()); (end+align-1)&^(align-1) != t.Size() {
		return fmt.Errorf("%s takes %d bytes of parameters, and %v has %d", f.name, end, t, t.Size())
	}
	if len(offsets) > 0 {
		f.offsets.Store(&offsets)
	}
	return nil
}

// layout returns where the kernel's parameters begin, counted from the first, and
// where the last one ends. The driver counts from a place that need not be at a
// multiple of 64 bytes, so a tensor map, which is, may begin behind it.
func (f *Function) layout() (offsets []uintptr, end uintptr, err error) {
	var first uintptr
	for i := uintptr(0); ; i++ {
		var offset, size uintptr
		r := f.d.call(f.d.api.FuncGetParamInfo, f.handle, i, uintptr(unsafe.Pointer(&offset)), uintptr(unsafe.Pointer(&size)))
		if r == driver.InvalidValue { // there is no parameter i
			return offsets, end, nil
		}
		if r != 0 {
			return nil, 0, f.d.fail(r, "function %s: cuFuncGetParamInfo(%d)", f.name, i)
		}
		if i == 0 {
			first = offset
		}
		offsets = append(offsets, offset-first)
		end = offset + size - first
	}
}

// holdsMap says that t begins with a tensor map.
func holdsMap(t reflect.Type) bool {
	for t.Kind() == reflect.Struct && t.NumField() > 0 {
		t = t.Field(0).Type
	}
	return t == reflect.TypeFor[TensorMap]()
}

// notC names what in t has no counterpart in C or would hand a pointer into Go's
// memory to the GPU.
func notC(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct:
		for field := range t.Fields() {
			if why := notC(field.Type); why != "" {
				return why
			}
		}
		return ""
	case reflect.Array:
		return notC(t.Elem())
	case reflect.Bool, reflect.Float32, reflect.Float64, reflect.Uintptr,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return ""
	}
	return "a " + t.String()
}
