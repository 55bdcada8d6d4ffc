package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/gorun-dev/gorun/runtime/device"
)

// report writes what was measured: a table, or an object a line. Ranks other than 0
// write nothing.
type report struct {
	out     io.Writer
	file    *os.File // of Options.File; nil without
	runners []*runner
	silent  bool
	wrong   int64
	busSum  []float64 // of each engine
	bus     int       // results in each busSum
}

// Row is a line of --json.
type Row struct {
	Collective string   `json:"collective"`
	Ranks      int      `json:"ranks"`
	Size       int      `json:"size"`  // bytes of the full array
	Count      int      `json:"count"` // elements, of a rank's part where the call has parts
	Type       string   `json:"type"`
	RedOp      string   `json:"redop"` // none where nothing is reduced
	Root       int      `json:"root"`  // -1 where there is none
	InPlace    bool     `json:"in_place"`
	TimeUS     float64  `json:"time_us"`
	AlgBW      float64  `json:"algbw_gbs"` // size / time, in 1e9 bytes a second
	BusBW      float64  `json:"busbw_gbs"`
	Wrong      *int64   `json:"wrong"` // elements; null where nothing was verified
	Buffers    string   `json:"buffers"`
	Transport  string   `json:"transport"`
	Ports      []string `json:"rdma_ports,omitempty"` // by rank
	Algo       string   `json:"algo"`
	Engine     string   `json:"engine,omitempty"` // where there are several, and on GPUs
	// Of the product that runs beside, with --overlap.
	Product *RowProduct `json:"product,omitempty"`
}

// RowProduct is what a collective and a product of matrices do to each other.
type RowProduct struct {
	N        int     `json:"n"` // of N x N matrices
	AloneUS  float64 `json:"alone_us"`
	BesideUS float64 `json:"beside_us"`
	Slower   float64 `json:"slower"`  // 0.03 is 3 % slower than alone
	CallUS   float64 `json:"call_us"` // the collective's, beside it
}

func openReport(out io.Writer, runners []*runner) (w *report, err error) {
	w = &report{out: out, runners: runners, silent: runners[0].group.Rank() != 0, busSum: make([]float64, len(runners))}
	if file := runners[0].o.File; file != "" && !w.silent {
		if w.file, err = os.Create(file); err != nil {
			return nil, fmt.Errorf("-J: %w", err)
		}
	}
	return w, nil
}

func (w *report) close() error {
	if w.file == nil {
		return nil
	}
	if err := w.file.Close(); err != nil {
		return fmt.Errorf("-J: %w", err)
	}
	return nil
}

func (w *report) printf(format string, args ...any) error {
	if _, err := fmt.Fprintf(w.out, format, args...); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// row writes what the engines took for one size.
func (w *report) row(m []measured) error {
	if w.silent {
		return nil
	}
	for i, r := range w.runners {
		for pl, res := range m[i].results {
			if res == nil {
				continue
			}
			row := r.values(m[i].size, placement(pl), res)
			w.busSum[i] += row.BusBW
			if i == 0 {
				w.bus++
			}
			w.wrong += res.wrong
			if err := w.json(row); err != nil {
				return err
			}
		}
	}
	if w.runners[0].o.JSON {
		return nil
	}
	return w.printf("%s", w.line(m))
}

// json writes a row where rows are wanted as objects.
func (w *report) json(row Row) error {
	if w.file == nil && !w.runners[0].o.JSON {
		return nil
	}
	line, err := json.Marshal(row)
	if err != nil {
		return err
	}
	if w.file != nil {
		if _, err := fmt.Fprintf(w.file, "%s\n", line); err != nil {
			return fmt.Errorf("-J: %w", err)
		}
	}
	if w.runners[0].o.JSON {
		return w.printf("%s\n", line)
	}
	return nil
}

func (r *runner) values(s size, pl placement, res *result) Row {
	row := Row{
		Collective: r.o.Collective, Ranks: r.group.Size(),
		Size: s.bytes, Count: s.count, Type: r.dt.String(), RedOp: r.redOp(), Root: r.shownRoot(),
		InPlace: pl == inPlace, TimeUS: res.seconds * 1e6,
		Buffers: r.o.Buffers, Transport: r.found.transport, Ports: r.found.ports, Algo: string(res.algorithm), Engine: r.engine.Name,
	}
	if row.Engine == "" && r.dev.Kind() != device.CPU {
		row.Engine = r.o.Engine
	}
	row.AlgBW, row.BusBW = r.bandwidth(s, res.seconds)
	if r.o.Checks > 0 {
		row.Wrong = &res.wrong
	}
	if b := res.beside; b != nil {
		row.Product = &RowProduct{N: r.o.Overlap, AloneUS: b.alone * 1e6, BesideUS: b.product * 1e6, Slower: b.slower, CallUS: b.call * 1e6}
	}
	return row
}

func (r *runner) bandwidth(s size, seconds float64) (alg, bus float64) {
	if seconds <= 0 {
		return 0, 0
	}
	alg = float64(s.bytes) / seconds / 1e9
	return alg, alg * r.kind.bus(float64(r.group.Size()))
}

func (r *runner) redOp() string {
	if !r.kind.reduces {
		return "none"
	}
	return r.op.String()
}

func (r *runner) shownRoot() int {
	if !r.kind.rooted {
		return -1
	}
	return r.root
}

// end sums up. Wrong elements are an error.
func (w *report) end() error {
	if w.silent {
		return nil
	}
	if !w.runners[0].o.JSON {
		for i, r := range w.runners {
			of := ""
			if r.engine.Name != "" {
				of = " of " + r.engine.Name
			}
			if r.product != nil || len(w.runners) == 2 { // the table has one of the two
				of += ", out of place and in place,"
			}
			if err := w.printf("# average busbw%s %.3f GB/s\n", of, w.busSum[i]/float64(w.bus)); err != nil {
				return err
			}
		}
	}
	if w.wrong > 0 {
		r := w.runners[0]
		return fmt.Errorf("%s over %s: %d elements were wrong", r.o.Collective, r.found.transport, w.wrong)
	}
	return nil
}
