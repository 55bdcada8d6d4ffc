package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
)

// The table has three forms: the columns of nccl-tests, those of two engines side by
// side, and with Overlap those of a collective and a product.

// head says what is measured, over what, and how.
func (w *report) head() error {
	r := w.runners[0]
	o, g := &r.o, r.group
	if o.JSON || w.silent {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# gorun bench %s: %d ranks; %d iterations after %d to warm up, %d verified\n", o.Collective, g.Size(), o.Iterations, o.Warmup, o.Checks)
	fmt.Fprintf(&b, "# time: %s\n", w.clock())
	fmt.Fprintf(&b, "# transport %s (--transport %s%s), buffers %s%s\n", r.found.transport, o.Transport, w.ofHost(), o.Buffers, w.how())
	b.WriteString(portLines(r.found.ports))
	fmt.Fprintf(&b, "# algorithm %s%s%s\n", r.which(), r.algorithms(), r.instead())
	for _, r := range w.runners {
		if way := r.group.GPUEngine(); way != "" {
			fmt.Fprintf(&b, "# %s: %s\n", r.label(), way)
		}
	}
	if r.product != nil {
		fmt.Fprintf(&b, "# product: %d x %d, %s\n", o.Overlap, o.Overlap, r.product)
	}
	for first := 0; first < g.Size(); {
		last := first
		for last+1 < g.Size() && g.Host(last+1) == g.Host(first) {
			last++
		}
		fmt.Fprintf(&b, "# host %s: rank %s\n", g.Host(first), span(first, last))
		first = last + 1
	}
	b.WriteString("#\n")
	w.columns(&b)
	return w.printf("%s", b.String())
}

// ofHost says what --transport is for, where it is not for what is measured.
func (w *report) ofHost() string {
	r := w.runners[0]
	if r.dev.Kind() == device.CPU || r.o.Transport == "auto" {
		return ""
	}
	for _, over := range []comm.Algorithm{comm.Staged, comm.GPUDirect} { // which go by it
		if strings.HasPrefix(r.group.GPUEngine(), string(over)) {
			return ""
		}
	}
	return ": for host memory alone"
}

// portLines tells the ports of RDMA, each with the ranks that use it.
func portLines(ports []string) string {
	var order []string
	ranks := map[string][]string{}
	for rank, p := range ports {
		if ranks[p] == nil {
			order = append(order, p)
		}
		ranks[p] = append(ranks[p], strconv.Itoa(rank))
	}
	var b strings.Builder
	for _, p := range order {
		fmt.Fprintf(&b, "# rdma by %s: rank %s\n", p, strings.Join(ranks[p], ", "))
	}
	return b.String()
}

// clock says what a time is.
func (w *report) clock() string {
	r := w.runners[0]
	o := &r.o
	who := map[string]string{"max": "the slowest rank's", "mean": "the mean of all ranks", "min": "the fastest rank's", "rank0": "rank 0's"}[o.Average]
	where := "on the stream"
	switch {
	case o.Blocking:
		where = "on the host, each call awaited"
	case o.HostTime:
		where = "of the host to make a call"
	}
	which, source := "median over the iterations", "; the source is written anew before each"
	if r.dev.Kind() != device.CPU {
		source = ""
		if !o.Blocking {
			which = "mean over the iterations, which follow each other"
		}
	}
	if o.Tail {
		which = "99th percentile of the iterations"
	}
	calls := ""
	if o.Aggregate > 1 {
		calls = fmt.Sprintf("; an iteration is %d calls, and counts as one", o.Aggregate)
	}
	return fmt.Sprintf("%s, %s; %s%s%s", who, where, which, source, calls)
}

// how says what else differs from the usual.
func (w *report) how() (how string) {
	o := &w.runners[0].o
	if o.Bound {
		how = ", each rank bound to its share of the cores"
	}
	if o.Crowded {
		how += ", more ranks than cores: GOMAXPROCS=1 in each"
	}
	if o.Unaligned > 0 {
		how += fmt.Sprintf(", %d elements off alignment", o.Unaligned)
	}
	var unused []string
	for _, f := range w.runners[0].ofNetwork() {
		if f.used {
			how += ", " + f.how
		} else {
			unused = append(unused, f.flag)
		}
	}
	if len(unused) > 0 {
		how += ", no use for " + strings.Join(unused, " and ")
	}
	return how
}

// networkFlag is a flag for what goes between hosts, as it was given.
type networkFlag struct {
	flag, how string
	used      bool
}

// ofNetwork lists them. --transport auto finds out late that it has no use for them, as
// within a host; other transports have refused them.
func (r *runner) ofNetwork() (all []networkFlag) {
	over := strings.Split(r.found.transport, "+")
	host := r.dev.Kind() == device.CPU // NCCL has an interface, too
	tcp := slices.Contains(over, "tcp") || !host
	if r.o.Interface != "" {
		all = append(all, networkFlag{"--interface", "interface " + r.o.Interface, tcp})
	}
	if r.o.Ports != "" {
		all = append(all, networkFlag{"--ports", "ports " + r.o.Ports, tcp})
	}
	if r.o.Chunk > 0 {
		all = append(all, networkFlag{"--chunk", "chunk " + FormatSize(r.o.Chunk), tcp || slices.Contains(over, "rdma")})
	}
	if r.o.Channels > 0 {
		all = append(all, networkFlag{"--channels", fmt.Sprintf("%d channels", r.o.Channels), tcp})
	}
	return all
}

func (r *runner) label() string {
	if r.engine.Name != "" {
		return r.engine.Name
	}
	return "engine " + r.o.Engine
}

func span(first, last int) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

// which says of what the algorithm is, where several things are measured.
func (r *runner) which() string {
	if r.o.DType != "all" && r.o.Op != "all" && !r.o.EveryRoot {
		return ""
	}
	of := "of " + r.dt.String()
	if r.kind.reduces {
		of += " " + r.op.String()
	}
	if r.o.EveryRoot {
		of += fmt.Sprintf(" from rank %d", r.root)
	}
	return of + ": "
}

// instead says that --algo names what no call went by. Between hosts with several ranks
// each it is the algorithm of a part of twolevel.
func (r *runner) instead() string {
	taken := slices.Concat(r.found.algorithms[:]...)
	if r.algo == comm.Auto || slices.Contains(taken, r.algo) || slices.Contains(taken, comm.TwoLevel) {
		return ""
	}
	return fmt.Sprintf("; %s has no %s here (--algo)", r.o.Collective, r.algo)
}

// algorithms says from which size on which one was taken.
func (r *runner) algorithms() string {
	var texts []string
	for pl, name := range []string{"out of place", "in place"} {
		if list := r.found.algorithms[pl]; list != nil {
			texts = append(texts, r.steps(list)+" ("+name+")")
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

func (r *runner) steps(list []comm.Algorithm) string {
	text := string(list[0])
	for i, a := range list[1:] {
		if a != list[i] {
			text += fmt.Sprintf(", %s from %s", a, FormatSize(int64(r.sizes[i+1].bytes)))
		}
	}
	return text
}

// columns writes the names and units of the columns.
func (w *report) columns(b *strings.Builder) {
	const what, whatUnits = "# %12s %12s %6s %6s %5s", "\n# %12s %12s %6s %6s %5s"
	names, units := []any{"size", "count", "type", "redop", "root"}, []any{"(B)", "(elements)", "", "", ""}
	both := func() {
		fmt.Fprintf(b, what, names...)
		for range 2 {
			fmt.Fprintf(b, " %10s %8s %8s %7s", "time", "algbw", "busbw", "#wrong")
		}
		if len(w.runners) == 2 {
			fmt.Fprintf(b, " %7s", "ratio")
		}
		fmt.Fprintf(b, whatUnits, units...)
		for range 2 {
			fmt.Fprintf(b, " %10s %8s %8s %7s", "(us)", "(GB/s)", "(GB/s)", "")
		}
	}
	switch {
	case w.runners[0].product != nil:
		fmt.Fprintf(b, what+" %10s %8s %10s %10s %10s %8s %s\n", append(names, "time", "busbw", "beside", "product", "beside", "slower", "engine")...)
		fmt.Fprintf(b, strings.TrimPrefix(whatUnits, "\n")+" %10s %8s %10s %10s %10s %8s", append(units, "(us)", "(GB/s)", "(us)", "(us)", "(us)", "(%)")...)
	case len(w.runners) == 2:
		fmt.Fprintf(b, "# %60s%36s\n", w.runners[0].label(), w.runners[1].label())
		both()
	default:
		fmt.Fprintf(b, "# %60s%38s\n", "out-of-place", "in-place")
		both()
	}
	b.WriteString("\n")
}

// line is one size in the table.
func (w *report) line(m []measured) string {
	r := w.runners[0]
	begin := fmt.Sprintf("  %12d %12d %6s %6s %5d", m[0].bytes, m[0].count, r.dt, r.redOp(), r.shownRoot())
	if r.product != nil {
		var b strings.Builder
		for i, r := range w.runners {
			res := m[i].preferred()
			_, bus := r.bandwidth(m[i].size, res.seconds)
			fmt.Fprintf(&b, "%s %10s %8.2f %10s %10s %10s %8.1f %s\n", begin, microseconds(res.seconds*1e6), bus, microseconds(res.beside.call*1e6),
				microseconds(res.beside.alone*1e6), microseconds(res.beside.product*1e6), 100*res.beside.slower, r.label())
		}
		return b.String()
	}
	if len(w.runners) == 2 {
		ours, theirs := m[0].preferred(), m[1].preferred()
		ratio := "N/A"
		if ours.seconds > 0 {
			ratio = fmt.Sprintf("%.2f", theirs.seconds/ours.seconds)
		}
		return fmt.Sprintf("%s%s%s %7s\n", begin, r.cells(m[0].size, ours), w.runners[1].cells(m[1].size, theirs), ratio)
	}
	return begin + r.cells(m[0].size, m[0].results[outOfPlace]) + r.cells(m[0].size, m[0].results[inPlace]) + "\n"
}

// preferred is the form that training uses: in place where there is one.
func (m *measured) preferred() *result {
	if res := m.results[inPlace]; res != nil {
		return res
	}
	return m.results[outOfPlace]
}

// cells are the columns of one result.
func (r *runner) cells(s size, res *result) string {
	if res == nil {
		return fmt.Sprintf(" %10s %8s %8s %7s", "N/A", "N/A", "N/A", "N/A")
	}
	wrong := "N/A"
	if r.o.Checks > 0 {
		wrong = fmt.Sprint(res.wrong)
	}
	alg, bus := r.bandwidth(s, res.seconds)
	return fmt.Sprintf(" %10s %8.2f %8.2f %7s", microseconds(res.seconds*1e6), alg, bus, wrong)
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
