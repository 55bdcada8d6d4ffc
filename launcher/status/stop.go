package status

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// StopVariable names the environment variable that holds the descriptor of the pipe on
// which the agent says in a line why it ends a worker, before it sends the signal, where
// that is not the user's wish.
const StopVariable = "GORUN_STOP_FD"

// MaxReason bounds what goes through that pipe, in bytes: so much is written and read at
// once.
const MaxReason = 4096

// StopError is the reason for which the agent ends a worker that is not at fault.
type StopError struct{ Reason string }

func (e *StopError) Error() string { return e.Reason }

// StopReason is for a worker that a signal has reached: a *StopError with what the
// agent has said of it. It is nil where the user has asked for the end, or whoever else
// may send signals to a worker without an agent. It does not wait.
func StopReason() error {
	v, ok := os.LookupEnv(StopVariable)
	if !ok {
		return nil
	}
	fd, err := strconv.Atoi(v)
	if err != nil || fd < 0 {
		return fmt.Errorf("%s=%q is no descriptor", StopVariable, v)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("%s=%d: %w", StopVariable, fd, err)
	}
	b := make([]byte, MaxReason)
	n, err := unix.Read(fd, b)
	switch {
	case errors.Is(err, unix.EAGAIN), err == nil && n == 0: // nothing was said; the agent is gone
		return nil
	case err != nil:
		return fmt.Errorf("reading %s=%d: %w", StopVariable, fd, err)
	}
	return &StopError{strings.TrimSuffix(string(b[:n]), "\n")}
}
