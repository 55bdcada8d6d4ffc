// Package dl finds and opens shared libraries at run time, and calls them
// without cgo.
//
// Memory whose address goes to C must not move during the call. The Go heap does
// not move, a goroutine's stack does: pass the address of a variable as
//
//	proc.Call(uintptr(unsafe.Pointer(&x)))
//
// written like this, in the call's own arguments. Then the compiler puts x on the
// heap and keeps it alive until the call returns. An address that was turned into
// a uintptr earlier, or a pointer inside of memory that C reads, has no such
// protection: use CString or other memory that is known to lie on the heap, and
// runtime.KeepAlive.
package dl

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Library is an open shared library. It stays open until the process ends.
type Library struct {
	Name   string // the Spec's
	Path   string // the file that was opened, or its soname where the loader's own path had it
	env    string // the variable that named Path, if one did
	handle uintptr
}

// Proc returns the function called name.
func (l *Library) Proc(name string) (Proc, error) {
	p, err := purego.Dlsym(l.handle, name)
	switch {
	case err == nil && p != 0:
		return Proc(p), nil
	case l.env != "":
		return 0, fmt.Errorf("%s: %s, which %s names, has no function %s: another library, or another version", l.Name, l.Path, l.env, name)
	}
	return 0, fmt.Errorf("%s: %s has no function %s: another version", l.Name, l.Path, name)
}

// Proc is a C function whose arguments and result are integers and pointers.
// Functions that take floating-point values or return structs cannot be called.
type Proc uintptr

// Call calls the function with up to 32 arguments. Integers narrower than 64
// bits are taken from the low bits; what stands above the result's own width is
// undefined, so convert it: int32(p.Call()).
//
// A slice of arguments that the caller keeps, Call(args...), makes the call free
// of allocations. The function runs on the goroutine's current thread.
//
//go:uintptrescapes
func (p Proc) Call(args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(p), args...)
	return r
}

// CString returns a copy of s on the heap that ends in a zero byte. It is not
// inlined: in its caller the copy might be put on the stack.
//
//go:noinline
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return unsafe.SliceData(b)
}

// GoString copies the C string at p; an address of zero gives "".
func GoString(p uintptr) string {
	if p == 0 {
		return ""
	}
	// p is memory of C, which the garbage collector does not know.
	first := *(**byte)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(first), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(first, n))
}
