package nccl

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// Results of NCCL's functions.
const (
	success    = 0
	inProgress = 7
)

// Error is a result of NCCL other than success.
type Error struct {
	Call   string // ncclAllReduce
	Result int
	Text   string // what the result means
	Detail string // NCCL's latest warning in this process, "" if there is none
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (result %d)", e.Call, e.Text, e.Result)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// errorOf makes an error of a result. comm is the communicator's handle, or 0.
func (l *Library) errorOf(call string, r int32, comm uintptr) error {
	return &Error{
		Call: call, Result: int(r),
		Text:   dl.GoString(l.getErrorString.Call(uintptr(r))),
		Detail: dl.GoString(l.getLastError.Call(comm)),
	}
}
