package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/gorun-dev/gorun/comm"
)

// report writes what was measured: a table, or an object a line.
type report struct {
	out    io.Writer
	r      *runner
	found  found
	wrong  int64
	busSum float64
	bus    int // results in busSum
}

// Row is a line of --json.
type Row struct {
	Collective string  `json:"collective"`
	Ranks      int     `json:"ranks"`
	Size       int     `json:"size"`  // bytes of the full array
	Count      int     `json:"count"` // elements, of a rank's part where the call has parts
	Type       string  `json:"type"`
	RedOp      string  `json:"redop"` // none where nothing is reduced
	Root       int     `json:"root"`  // -1 where there is none
	InPlace    bool    `json:"in_place"`
	TimeUS     float64 `json:"time_us"`
	AlgBW      float64 `json:"algbw_gbs"` // size / time, in 1e9 bytes a second
	BusBW      float64 `json:"busbw_gbs"`
	Wrong      *int64  `json:"wrong"` // elements; null where nothing was verified
	Buffers    string  `json:"buffers"`
	Transport  string  `json:"transport"`
	Algo       string  `json:"algo"`
}

func newReport(out io.Writer, r *runner, f found) *report { return &report{out: out, r: r, found: f} }

func (w *report) printf(format string, args ...any) error {
	if _, err := fmt.Fprintf(w.out, format, args...); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// head says what is measured, over what, and how.
func (w *report) head() error {
	if w.r.o.JSON {
		return nil
	}
	o, g := &w.r.o, w.r.group
	clock := "on the stream"
	if o.Blocking {
		clock = "on the host, each call awaited"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# gorun bench %s: %d ranks; %d iterations after %d to warm up, %d verified\n", o.Collective, g.Size(), o.Iterations, o.Warmup, o.Checks)
	fmt.Fprintf(&b, "# time: the slowest rank's, %s; median over the iterations; the source is written anew before each\n", clock)
	how := ""
	if o.Bound {
		how = ", each rank bound to a core"
	}
	if o.Crowded {
		how += ", more ranks than cores: GOMAXPROCS=1 in each"
	}
	if o.Chunk > 0 {
		how += ", chunk " + FormatSize(o.Chunk)
	}
	if o.Channels > 0 {
		how += fmt.Sprintf(", %d channels", o.Channels)
	}
	fmt.Fprintf(&b, "# transport %s (--transport %s), buffers %s%s\n", w.found.transport, o.Transport, o.Buffers, how)
	fmt.Fprintf(&b, "# algorithm %s\n", w.algorithms())
	for first := 0; first < g.Size(); {
		last := first
		for last+1 < g.Size() && g.Host(last+1) == g.Host(first) {
			last++
		}
		fmt.Fprintf(&b, "# host %s: rank %s\n", g.Host(first), span(first, last))
		first = last + 1
	}
	fmt.Fprintf(&b, "#\n# %60s%38s\n", "out-of-place", "in-place")
	fmt.Fprintf(&b, "# %12s %12s %6s %6s %5s", "size", "count", "type", "redop", "root")
	for range 2 {
		fmt.Fprintf(&b, " %10s %8s %8s %7s", "time", "algbw", "busbw", "#wrong")
	}
	fmt.Fprintf(&b, "\n# %12s %12s %6s %6s %5s", "(B)", "(elements)", "", "", "")
	for range 2 {
		fmt.Fprintf(&b, " %10s %8s %8s %7s", "(us)", "(GB/s)", "(GB/s)", "")
	}
	return w.printf("%s\n", b.String())
}

func span(first, last int) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

// algorithms says from which size on which one was taken.
func (w *report) algorithms() string {
	var texts []string
	for pl, name := range []string{"out of place", "in place"} {
		if list := w.found.algorithms[pl]; list != nil {
			texts = append(texts, w.steps(list)+" ("+name+")")
		}
	}
	if len(texts) == 2 {
		a, _ := strings.CutSuffix(texts[0], " (out of place)")
		b, _ := strings.CutSuffix(texts[1], " (in place)")
		if a == b {
			return a
		}
	}
	return strings.Join(texts, "; ")
}

func (w *report) steps(list []comm.Algorithm) string {
	text := string(list[0])
	for i, a := range list[1:] {
		if a != list[i] {
			text += fmt.Sprintf(", %s from %s", a, FormatSize(int64(w.r.sizes[i+1].bytes)))
		}
	}
	return text
}

// row writes one size.
func (w *report) row(m measured) error {
	text := fmt.Sprintf("  %12d %12d %6s %6s %5d", m.bytes, m.count, w.r.dt, w.redOp(), w.root())
	for pl, res := range m.results {
		if res == nil {
			text += fmt.Sprintf(" %10s %8s %8s %7s", "N/A", "N/A", "N/A", "N/A")
			continue
		}
		row := w.values(m.size, placement(pl), res)
		w.busSum += row.BusBW
		w.bus++
		w.wrong += res.wrong
		if w.r.o.JSON {
			line, err := json.Marshal(row)
			if err != nil {
				return err
			}
			if err := w.printf("%s\n", line); err != nil {
				return err
			}
			continue
		}
		wrong := "N/A"
		if row.Wrong != nil {
			wrong = fmt.Sprint(*row.Wrong)
		}
		text += fmt.Sprintf(" %10s %8.2f %8.2f %7s", microseconds(row.TimeUS), row.AlgBW, row.BusBW, wrong)
	}
	if w.r.o.JSON {
		return nil
	}
	return w.printf("%s\n", text)
}

// microseconds writes four digits, more where the whole part needs them.
func microseconds(us float64) string {
	switch {
	case us < 10:
		return fmt.Sprintf("%.3f", us)
	case us < 100:
		return fmt.Sprintf("%.2f", us)
	case us < 1000:
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.0f", us)
}

func (w *report) values(s size, pl placement, res *result) Row {
	row := Row{
		Collective: w.r.o.Collective, Ranks: w.r.group.Size(),
		Size: s.bytes, Count: s.count, Type: w.r.dt.String(), RedOp: w.redOp(), Root: w.root(),
		InPlace: pl == inPlace, TimeUS: res.seconds * 1e6,
		Buffers: w.r.o.Buffers, Transport: w.found.transport, Algo: string(res.algorithm),
	}
	if res.seconds > 0 {
		row.AlgBW = float64(s.bytes) / res.seconds / 1e9
		row.BusBW = row.AlgBW * w.r.kind.bus(float64(w.r.group.Size()))
	}
	if w.r.o.Checks > 0 {
		row.Wrong = &res.wrong
	}
	return row
}

func (w *report) redOp() string {
	if !w.r.kind.reduces {
		return "none"
	}
	return w.r.op.String()
}

func (w *report) root() int {
	if !w.r.kind.rooted {
		return -1
	}
	return w.r.o.Root
}

// end sums up. Wrong elements are an error.
func (w *report) end() error {
	if !w.r.o.JSON {
		if err := w.printf("# average busbw %.3f GB/s\n", w.busSum/float64(w.bus)); err != nil {
			return err
		}
	}
	if w.wrong > 0 {
		return fmt.Errorf("%s over %s: %d elements were wrong", w.r.o.Collective, w.found.transport, w.wrong)
	}
	return nil
}
