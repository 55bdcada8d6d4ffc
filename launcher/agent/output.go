package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/console"
	"github.com/gorun-dev/gorun/launcher/status"
)

// maxStatusLine bounds a line of the status pipe, in bytes.
const maxStatusLine = 1 << 20

// output is everything that comes out of one worker: stdout and stderr, each to
// its log file and, where chosen, to the console; and the status pipe. Its three
// routines end when the pipes do, which is when the last process that holds them
// has ended. A fourth pipe goes the other way: see tell.
type output struct {
	dir      string // the worker's log folder
	prefix   string // of its lines on the console
	notes    string // the same for what comes by the status pipe
	console  *console.Console
	tail     tail // of stderr; read after drained
	child    []*os.File
	parent   []*os.File
	stop     *os.File // closed with drained
	routines sync.WaitGroup
	drained  chan struct{} // closed when all three routines have ended
}

// newOutput makes the pipes and the log files in dir. show says which streams
// reach the console, prefix and notes what their lines and the lines of the status
// pipe begin with.
func newOutput(dir, prefix, notes string, show Std, c *console.Console) (*output, error) {
	o := &output{dir: dir, prefix: prefix, notes: notes, console: c, drained: make(chan struct{})}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("log folder: %w", err)
	}
	var logs []*os.File
	fail := func(err error) (*output, error) {
		o.closeChildEnds()
		for _, f := range append(logs, o.parent...) {
			f.Close()
		}
		o.stop.Close() // does nothing where there is none
		return nil, err
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(fmt.Errorf("pipe to a worker (ulimit -n?): %w", err))
		}
		o.parent, o.child = append(o.parent, r), append(o.child, w)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fail(fmt.Errorf("pipe to a worker (ulimit -n?): %w", err))
	}
	o.child, o.stop = append(o.child, r), w
	for _, name := range []string{"stdout.log", "stderr.log"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return fail(fmt.Errorf("log file: %w", err))
		}
		logs = append(logs, f)
	}
	lines := func(std Std) *console.Lines {
		if show&std == 0 {
			return nil
		}
		return c.Lines(std == Stderr, prefix)
	}
	o.routines.Go(func() { o.routineStream(o.parent[0], logs[0], lines(Stdout), nil) })
	o.routines.Go(func() { o.routineStream(o.parent[1], logs[1], lines(Stderr), &o.tail) })
	o.routines.Go(func() { o.routineStatus(o.parent[2]) })
	go o.routineDrained()
	return o, nil
}

// closeChildEnds drops our copies of the worker's ends, so that the pipes end
// when the worker does.
func (o *output) closeChildEnds() {
	for _, f := range o.child {
		f.Close()
	}
	o.child = nil
}

// wait says whether all output was written before ctx ended.
func (o *output) wait(ctx context.Context) bool {
	select {
	case <-o.drained:
		return true
	default:
	}
	select {
	case <-o.drained:
		return true
	case <-ctx.Done():
		return false
	}
}

// hear waits until all output was read, or for lastWords turns.
func (o *output) hear(turns <-chan time.Time) {
	for range lastWords {
		select {
		case <-o.drained:
			return
		case <-turns:
		}
	}
}

// abandon ends the routines although somebody still holds the pipes.
func (o *output) abandon() {
	for _, f := range o.parent {
		f.Close()
	}
	<-o.drained
}

// tell says to the worker why it is about to be ended. It does not wait, and one that
// is gone needs no telling.
func (o *output) tell(why string) error {
	_, err := io.WriteString(o.stop, why[:min(len(why), status.MaxReason-1)]+"\n")
	if errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// routineDrained closes drained once the other three have ended.
func (o *output) routineDrained() {
	o.routines.Wait()
	o.stop.Close()
	close(o.drained)
}

// routineStream copies one stream until it ends. A log that cannot be written
// any more is said once; the console goes on.
func (o *output) routineStream(r, log *os.File, lines *console.Lines, t *tail) {
	defer r.Close()
	logging := true
	lost := func(err error) {
		if err != nil && logging {
			logging = false
			o.console.Notice("the rest of %s is lost: %v", log.Name(), err)
		}
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if logging && n > 0 {
			_, werr := log.Write(buf[:n])
			lost(werr)
		}
		if t != nil {
			t.Write(buf[:n])
		}
		if lines != nil {
			lines.Write(buf[:n])
		}
		if err != nil {
			if lines != nil {
				lines.Flush()
			}
			lost(log.Close())
			o.readEnd(err)
			return
		}
	}
}

// routineStatus renders the status pipe until it ends.
func (o *output) routineStatus(r *os.File) {
	defer r.Close()
	complained := false
	in := bufio.NewReaderSize(r, maxStatusLine)
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			e, decodeErr := status.Decode(line)
			if decodeErr == nil {
				o.console.Show(o.notes, e)
			} else if !complained {
				complained = true
				o.console.Notice("%sunreadable line on the status pipe, later ones are not mentioned: %v", o.prefix, decodeErr)
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			o.readEnd(err)
			return
		}
	}
}

func (o *output) readEnd(err error) {
	if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
		o.console.Notice("%sreading the worker's output: %v", o.prefix, err)
	}
}
