package console

import (
	"bytes"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// bar is the progress line at the bottom of a terminal.
type bar struct {
	container *mpb.Progress
	bar       *mpb.Bar
	last      atomic.Pointer[status.Progress] // read by mpb's renderer
}

// newBar starts mpb's renderer, which close ends.
func newBar(out *os.File, first *status.Progress) *bar {
	b := &bar{}
	b.last.Store(first)
	b.container = mpb.New(mpb.WithConsoleWriter(&screen{out: out}), mpb.WithWidth(32), mpb.WithRefreshRate(150*time.Millisecond))
	b.bar = b.container.AddBar(0,
		mpb.PrependDecorators(decor.Any(func(decor.Statistics) string {
			p := b.last.Load()
			if p.Total <= 0 {
				return fmt.Sprintf("step %d ", p.Step)
			}
			return fmt.Sprintf("step %d/%d ", p.Step, p.Total)
		})),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			p := b.last.Load()
			if p.ETA <= 0 {
				return " " + p.Figures()
			}
			return fmt.Sprintf(" %s  eta %s", p.Figures(), p.Remaining())
		})),
	)
	return b
}

// Write puts whole lines above the bar.
func (b *bar) Write(p []byte) (int, error) { return b.container.Write(p) }

func (b *bar) set(p *status.Progress) {
	b.last.Store(p)
	b.bar.SetTotal(int64(p.Total), false)
	b.bar.SetCurrent(int64(p.Step))
}

// close removes the bar and returns what it showed last.
func (b *bar) close() *status.Progress {
	b.bar.Abort(true)
	b.container.Wait()
	return b.last.Load()
}

// screen is the terminal on which mpb draws. The cursor stands below the bar between
// two drawings, at the first column as far as mpb knows; but the terminal echoes there
// what the user types, ^C for one. So the way back to the bar begins at the left.
type screen struct {
	bytes.Buffer
	out *os.File
}

func (s *screen) IsTerminal() bool { return true }

func (s *screen) GetTermSize() (width, height int, err error) {
	return term.GetSize(int(s.out.Fd()))
}

// Flush draws what is written, and lets the next drawing begin lines further up.
func (s *screen) Flush(lines int) error {
	_, err := s.WriteTo(s.out)
	if lines > 0 {
		fmt.Fprintf(s, "\r\x1b[%dA\x1b[J", lines)
	}
	return err
}
