package status

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// PlainInterval is the least time between two progress lines of Plain.
const PlainInterval = 3 * time.Second

// Plain renders events as lines for logs and pipes. Of the progress it shows
// the first step, the last one, every evaluation, and between them a line each
// PlainInterval. It is not safe for concurrent use.
type Plain struct {
	out  io.Writer
	now  func() time.Time
	last time.Time // of the last progress line; zero before the first
}

// NewPlain renders on out.
func NewPlain(out io.Writer) *Plain { return &Plain{out: out, now: time.Now} }

// Show renders one event and returns the error of the write.
func (p *Plain) Show(e Event) error {
	var text string
	switch {
	case e.Progress != nil:
		if !p.due(e.Progress) {
			return nil
		}
		text = e.Progress.Line()
	default:
		text = e.Text()
	}
	_, err := io.WriteString(p.out, text+"\n")
	return err
}

func (p *Plain) due(g *Progress) bool {
	now := p.now()
	if !p.last.IsZero() && g.ValLoss == nil && g.Step != g.Total && now.Sub(p.last) < PlainInterval {
		return false
	}
	p.last = now
	return true
}

// Text is the event for the reader, without a newline at the end.
func (e Event) Text() string {
	switch {
	case e.Progress != nil:
		return e.Progress.Line()
	case e.Message != nil:
		return strings.TrimRight(e.Message.Text, "\n")
	case e.Sample != nil:
		return fmt.Sprintf("sample after step %d:\n%s", e.Sample.Step, indent(e.Sample.Prompt+e.Sample.Text))
	case e.Summary != nil:
		return strings.Join(e.Summary.Lines, "\n")
	}
	return ""
}

func indent(s string) string {
	return "  | " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  | ")
}

// Line is the progress in one line.
func (g *Progress) Line() string {
	var b strings.Builder
	if g.Total > 0 {
		width := len(fmt.Sprint(g.Total))
		fmt.Fprintf(&b, "step %*d/%d  ", width, g.Step, g.Total)
	} else {
		fmt.Fprintf(&b, "step %d  ", g.Step)
	}
	b.WriteString(g.Figures())
	if g.ETA > 0 {
		fmt.Fprintf(&b, "  eta %s", g.Remaining())
	}
	return b.String()
}

// Figures is the loss and what goes with it, without step and time.
func (g *Progress) Figures() string {
	var b strings.Builder
	fmt.Fprintf(&b, "loss %.4f", float64(g.Loss))
	if g.ValLoss != nil {
		fmt.Fprintf(&b, "  val %.4f", float64(*g.ValLoss))
	}
	fmt.Fprintf(&b, "  lr %.2e  |g| %.3f  %s tok/s", float64(g.LR), float64(g.GradNorm), count(float64(g.TokensPerS)))
	return b.String()
}

// Remaining is the time left, rounded to the second.
func (g *Progress) Remaining() time.Duration {
	return (time.Duration(float64(g.ETA) * float64(time.Second))).Round(time.Second)
}

func count(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.1fk", v/1e3)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}
