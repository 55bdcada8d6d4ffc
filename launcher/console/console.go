// Package console is what the user of an agent sees: the workers' lines, the
// progress of the training, and the agent's own notices.
//
// Everything goes through one Console, whose lock keeps lines whole. On a
// terminal the progress is a bar at the bottom with all other lines above it;
// elsewhere it is plain lines.
package console

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/gorun-dev/gorun/launcher/status"
	"golang.org/x/term"
)

// Console writes to the agent's stdout and stderr.
type Console struct {
	broken chan error // holds the first write error; never closed

	mu       sync.Mutex // guards what follows
	out, err sink
	bar      *bar // nil until the first progress on a terminal
	plain    *status.Plain
}

type sink struct {
	w        *os.File
	terminal bool
}

// New makes a console on the two streams, either of which may be a terminal.
func New(stdout, stderr *os.File) *Console {
	dumb := os.Getenv("TERM") == "dumb"
	terminal := func(f *os.File) bool { return !dumb && term.IsTerminal(int(f.Fd())) }
	return &Console{
		broken: make(chan error, 1),
		out:    sink{stdout, terminal(stdout)},
		err:    sink{stderr, terminal(stderr)},
		plain:  status.NewPlain(stdout),
	}
}

// Broken delivers the first error of a write, once: whoever reads the output is
// gone, and the job should end.
func (c *Console) Broken() <-chan error { return c.broken }

// Lines returns the way to the console for one stream of one worker. Every line
// starts with prefix; with none, bytes pass as they come.
func (c *Console) Lines(stderr bool, prefix string) *Lines {
	return &Lines{c: c, stderr: stderr, prefix: prefix}
}

// Notice writes a line of the agent's own to stderr.
func (c *Console) Notice(format string, args ...any) {
	c.raw(true, fmt.Appendf(nil, "gorun: "+format+"\n", args...))
}

// Show renders what a worker sent on its status pipe. Lines other than the
// progress start with prefix.
func (c *Console) Show(prefix string, e status.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.Progress != nil && c.out.terminal:
		if c.bar == nil {
			c.bar = newBar(c.out.w, e.Progress)
		}
		if e.Progress.ValLoss != nil {
			c.write(&c.out, []byte(e.Progress.Line()+"\n"))
		}
		c.bar.set(e.Progress)
	case e.Progress != nil:
		c.check(c.plain.Show(e))
	case e.Summary != nil:
		c.closeBar()
		fallthrough
	default:
		c.write(&c.out, prefixed(prefix, e.Text()))
	}
}

// Close takes the bar down and leaves a line of its last state. Lines may still
// follow.
func (c *Console) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeBar()
}

// closeBar is Close for a caller that holds the lock.
func (c *Console) closeBar() {
	if c.bar == nil {
		return
	}
	last := c.bar.close()
	c.bar = nil
	if last.ValLoss == nil { // an evaluation has its line already
		c.write(&c.out, []byte(last.Line()+"\n"))
	}
}

func (c *Console) raw(stderr bool, b []byte) {
	if len(b) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if stderr {
		c.write(&c.err, b)
	} else {
		c.write(&c.out, b)
	}
}

// write sends b to the stream, above the bar where both share the terminal. The
// caller holds the lock.
func (c *Console) write(s *sink, b []byte) {
	var w io.Writer = s.w
	if c.bar != nil && s.terminal {
		w = c.bar
		if b[len(b)-1] != '\n' { // the bar must stay on a line of its own
			b = append(bytes.Clone(b), '\n')
		}
	}
	_, err := w.Write(b)
	c.check(err)
}

func (c *Console) check(err error) {
	if err == nil {
		return
	}
	select {
	case c.broken <- err:
	default: // the first error is there already
	}
}

func prefixed(prefix, text string) []byte {
	var out []byte
	for line := range bytes.SplitSeq([]byte(text), []byte("\n")) {
		out = append(append(append(out, prefix...), line...), '\n')
	}
	return out
}
