package status

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Writer sends events to the agent. Its methods may be called from several
// goroutines; an event is one write, so that lines of several never mix.
type Writer struct {
	mu    sync.Mutex
	pipe  io.WriteCloser // nil without an agent
	plain *Plain         // used without an agent
}

// FromEnv opens the status pipe that the agent left in GORUN_STATUS_FD and
// keeps it from being inherited further. Without that variable the events are
// rendered as plain lines on stdout. A variable that names no open descriptor
// is an error.
func FromEnv() (*Writer, error) {
	v, ok := os.LookupEnv(FDVariable)
	if !ok {
		return &Writer{plain: NewPlain(os.Stdout)}, nil
	}
	fd, err := strconv.Atoi(v)
	if err != nil || fd < 0 {
		return nil, fmt.Errorf("%s=%q is no descriptor", FDVariable, v)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return nil, fmt.Errorf("%s=%d is not open: %w", FDVariable, fd, err)
	}
	unix.CloseOnExec(fd)
	return NewWriter(os.NewFile(uintptr(fd), "status pipe")), nil
}

// NewWriter sends events to w, one JSON object a line.
func NewWriter(w io.WriteCloser) *Writer { return &Writer{pipe: w} }

// Progress reports a finished step.
func (w *Writer) Progress(p Progress) error { return w.send(Event{Progress: &p}) }

// Message shows a notice.
func (w *Writer) Message(format string, args ...any) error {
	return w.send(Event{Message: &Message{Text: fmt.Sprintf(format, args...)}})
}

// Sample shows generated text.
func (w *Writer) Sample(s Sample) error { return w.send(Event{Sample: &s}) }

// Summary shows the block of lines that ends a run.
func (w *Writer) Summary(lines ...string) error {
	return w.send(Event{Summary: &Summary{Lines: lines}})
}

// Close ends the stream. Events after it are errors.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pipe == nil {
		return nil
	}
	return w.pipe.Close()
}

func (w *Writer) send(e Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.plain != nil {
		return w.plain.Show(e)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if _, err := w.pipe.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("status pipe to the agent: %w", err)
	}
	return nil
}
