package dl

import "unsafe"

// CallStruct calls a function one of whose arguments, the one at index at, is a C
// struct of more than 16 bytes passed by value; s is a copy of that struct, of a
// multiple of 8 bytes, and args are the others, at most six.
//
// The System V convention passes integers in six registers, and such a struct on
// the stack.
//
//go:uintptrescapes
func (p Proc) CallStruct(at int, s []byte, args ...uintptr) uintptr {
	checkStruct(at, s, len(args))
	const registers = 6
	all := make([]uintptr, registers+len(s)/8)
	copy(all, args)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&all[registers])), len(s)), s)
	return p.Call(all...)
}
