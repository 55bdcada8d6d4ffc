// Package mapped is for files that are read through a mapping. Where somebody
// shortens such a file, a read behind its new end is a fault, of which a process dies;
// here it becomes an error that names the file.
package mapped

import (
	"fmt"
	"runtime/debug"
)

// Shortened ends a function that reads the mapped memory of the file at path and
// has called debug.SetPanicOnFault(true), which said was before:
//
//	defer mapped.Shortened(path, debug.SetPanicOnFault(true), &err)
//
// A fault, by a read behind the end of a file that somebody has shortened, becomes an
// error. It must be deferred itself, by the goroutine that reads. Other code than Go's
// must not touch the memory: its faults still end the process.
func Shortened(path string, was bool, err *error) { Recovered(recover(), path, was, err) }

// Recovered is Shortened for another function that is deferred, with what its own
// recover has returned.
func Recovered(fault any, path string, was bool, err *error) {
	debug.SetPanicOnFault(was)
	if fault == nil {
		return
	}
	if _, ok := fault.(interface{ Addr() uintptr }); !ok {
		panic(fault)
	}
	*err = fmt.Errorf("%s: a part of it can no longer be read; has it been shortened since the start?", path)
}
