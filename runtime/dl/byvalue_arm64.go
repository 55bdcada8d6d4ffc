package dl

import (
	"runtime"
	"slices"
	"unsafe"
)

// CallStruct calls a function one of whose arguments, the one at index at, is a C
// struct of more than 16 bytes passed by value; s is a copy of that struct, of a
// multiple of 8 bytes, and args are the others, at most six.
//
// The procedure call standard for arm64 passes the address of a copy.
//
//go:uintptrescapes
func (p Proc) CallStruct(at int, s []byte, args ...uintptr) uintptr {
	checkStruct(at, s, len(args))
	words := onHeap(len(s) / 8)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(s)), s)
	r := p.Call(slices.Insert(slices.Clone(args), at, uintptr(unsafe.Pointer(&words[0])))...)
	runtime.KeepAlive(words)
	return r
}

// onHeap is make, not inlined, so that what it makes cannot lie on a stack.
//
//go:noinline
func onHeap(n int) []uint64 { return make([]uint64, n) }
