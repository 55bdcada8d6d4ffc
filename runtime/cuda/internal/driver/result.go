package driver

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// Result is a CUresult, the code that every function of the driver returns.
type Result int32

// The codes that callers tell apart.
const (
	Success                  Result = 0
	InvalidValue             Result = 1
	OutOfMemory              Result = 2
	NoDevice                 Result = 100
	InvalidContext           Result = 201
	PeerAccessAlreadyEnabled Result = 704
	NotReady                 Result = 600
	NotSupported             Result = 801
)

// Error is a call of the driver that failed.
type Error struct {
	Device string // "cuda:0", or "" where the call concerns none
	Call   string // the call and the arguments that matter: "cuMemAlloc(1073741824)"
	Code   Result
	Name   string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text   string // the driver's: "out of memory"
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Device != "" {
		b.WriteString(e.Device + ": ")
	}
	fmt.Fprintf(&b, "%s: %s (%s)", e.Call, e.Text, e.Name)
	return b.String()
}

// Error describes the code r that call returned; device may be "".
func (a *API) Error(device, call string, r Result) *Error {
	e := &Error{Device: device, Call: call, Code: r, Name: fmt.Sprintf("CUresult %d", int32(r)), Text: "a code that the driver does not know"}
	if s := a.text(a.GetErrorName, r); s != "" {
		e.Name = s
	}
	if s := a.text(a.GetErrorString, r); s != "" {
		e.Text = s
	}
	return e
}

func (a *API) text(f dl.Proc, r Result) string {
	var s uintptr
	if code := Result(f.Call(uintptr(r), uintptr(unsafe.Pointer(&s)))); code != 0 {
		return ""
	}
	return dl.GoString(s)
}
