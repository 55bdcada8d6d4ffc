package store

import (
	"fmt"
	"runtime/debug"
)

// Shortened ends a function that reads the mapped memory of the file at path and
// has called debug.SetPanicOnFault(true), which said was before. A fault, by a read
// behind the end of a file that somebody has shortened, becomes an error.
func Shortened(path string, was bool, err *error) {
	debug.SetPanicOnFault(was)
	fault := recover()
	if fault == nil {
		return
	}
	if _, ok := fault.(interface{ Addr() uintptr }); !ok {
		panic(fault)
	}
	*err = fmt.Errorf("%s: a part of it can no longer be read; has it been shortened since the start?", path)
}
