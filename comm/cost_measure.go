package comm

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/tune"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

const (
	// tuneWithin is how much longer joining may take because links are measured; about
	// so, for what a size takes is known afterwards.
	tuneWithin = 200 * time.Millisecond
	// hopeless is how many times longer than the best an algorithm must be expected to
	// take to be left out.
	hopeless = 4
	// formula is the version of what tables correct: cost.seconds and its figures, and
	// how measurements are made.
	formula = 1
)

// Calls that measure, and decisions whether to go on, have numbers of their own, far
// from those of the group's calls: a number stands for one call.
const (
	meterSeq  = 1 << 63
	decideSeq = 1 << 62
)

// measuredKinds are the collectives that have a choice of algorithms.
var measuredKinds = []transport.Kind{transport.AllReduce, transport.ReduceScatter, transport.AllGather, transport.Broadcast}

// tuneSizes are measured one after another, as far as there is time.
var tuneSizes = []int{1 << 10, 32 << 10, 1 << 20, 8 << 20}

// tuningOf is rank 0's answer to whether to measure.
type tuningOf struct {
	Points json.RawMessage `json:"points,omitempty"` // nil: measure
}

// tune measures the links that the group has a choice of algorithms for, or takes what
// was measured before: by the group that this one is a part of, or by an earlier job.
// Rank 0 decides for all, so that they choose alike. It runs before the group's first
// call.
func (g *Group) tune(ctx context.Context) error {
	link := g.link()
	if g.o.Tune == "off" || link == "" {
		return nil
	}
	if from := g.o.tuned; from != nil && from.link == link {
		g.tuned.table.Store(from.table)
		return nil
	}
	ex := exchangeUnder{g.o.Store, "comm/" + g.o.Name + "/"}
	table, found, err := g.kept(ctx, ex)
	if err == nil && !found {
		table, err = g.measured(ctx, ex)
	}
	if err != nil {
		c := call{}
		c.Kind, c.DType, c.Root = transport.Barrier, dtype.U8, -1
		c.wire = c.Header
		return fmt.Errorf("measuring the links: %w", g.fail(g.explain(&c, err)))
	}
	g.tuned.table.Store(table)
	return nil
}

// link names what the group's algorithms go over; "" where it has one for each call.
func (g *Group) link() string {
	if g.chooser() == nil && !g.laneless() {
		return ""
	}
	var names []string
	for _, w := range g.wires {
		if w.name != "shm" {
			names = append(names, w.name)
		}
	}
	return strings.Join(names, "+")
}

// chooser is the engine whose algorithms are chosen, nil where this rank has none.
func (g *Group) chooser() *flat {
	switch e := g.engine.(type) {
	case *flat:
		if e.x.size() > 1 {
			return e
		}
	case *twoLevel:
		return e.lane
	}
	return nil
}

// laneless reports whether others choose, and this rank has no part in it.
func (g *Group) laneless() bool {
	e, ok := g.engine.(*twoLevel)
	return ok && e.lane == nil
}

// kept is the table of an earlier job, which rank 0 looks for.
func (g *Group) kept(ctx context.Context, ex exchangeUnder) (table *tune.Table, found bool, err error) {
	const key = "tuning/kept"
	if g.o.Rank == 0 {
		if folder, err := tune.Folder(); err == nil { // else measured says why nothing is kept
			if table, err = tune.Load(folder, g.tuneKey()); err != nil {
				g.o.Logger.Warn("comm: what was measured of the links cannot be used, and they are measured again", "err", err)
			}
		}
		var answer tuningOf
		if table != nil {
			answer.Points = table.Encode()
		}
		b, err := json.Marshal(answer)
		if err != nil {
			return nil, false, err
		}
		return table, table != nil, ex.Set(ctx, key, b)
	}
	b, err := ex.Wait(ctx, key)
	if err != nil {
		return nil, false, err
	}
	var answer tuningOf
	if err := json.Unmarshal(b, &answer); err != nil || answer.Points == nil {
		return nil, false, err
	}
	table, err = tune.Decode(answer.Points)
	return table, true, err
}

// measured is the table that the ranks make together. Rank 0 keeps it.
func (g *Group) measured(ctx context.Context, ex exchangeUnder) (*tune.Table, error) {
	const key = "tuning/measured"
	began := time.Now()
	points, err := g.measure(ctx)
	if err != nil {
		return nil, err
	}
	if g.o.Rank != 0 {
		b, err := ex.Wait(ctx, key)
		if err != nil {
			return nil, err
		}
		return tune.Decode(b)
	}
	table := tune.New(points)
	if err := ex.Set(ctx, key, table.Encode()); err != nil {
		return nil, err
	}
	took := time.Since(began).Round(time.Millisecond)
	if len(points) == 0 {
		g.o.Logger.Log(ctx, g.tuned.level, "comm: the links are too slow to be measured while joining; typical figures choose the algorithms", "group", g.o.Name, "took", took)
		return table, nil
	}
	g.o.Logger.Log(ctx, g.tuned.level, "comm: links measured", "group", g.o.Name, "over", g.link(), "points", len(points), "took", took)
	folder, err := tune.Folder()
	if err == nil {
		err = tune.Save(folder, g.tuneKey(), table)
	}
	if err != nil {
		g.o.Logger.Warn("comm: what was measured of the links is not kept, and the next job measures again", "err", err)
	}
	return table, nil
}

// tuneKey names all that the times depend on, as far as rank 0 can tell.
func (g *Group) tuneKey() string {
	var hosts []string
	for _, ranks := range hostsOf(g.members) {
		hosts = append(hosts, fmt.Sprintf("%s %v", g.members[ranks[0]].Host, ranks))
	}
	f := g.chooser() // rank 0 is in every lane
	return fmt.Sprintf("%s %d ranks; %s; latency %s, interface %q, chunk %d, connections %d; %s, %d of %d processors, %s %s; formula %d",
		g.link(), g.o.Size, strings.Join(hosts, ", "), f.cost.latency, g.o.Interface, g.o.Chunk, g.o.Conns,
		processor(), runtime.GOMAXPROCS(0), runtime.NumCPU(), runtime.GOARCH, runtime.Version(), formula)
}

// processor is the CPU's name, empty on machines that do not tell.
func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// meter measures one rank's part.
type meter struct {
	f        *flat
	header   transport.Header // of the latest call
	deadline time.Time
	dst, src []byte
	barrier  float64 // seconds
}

// measure times the algorithms over the group's links. Rank 0's times are returned
// there; where there are several lanes, all of them work at the same time.
func (g *Group) measure(ctx context.Context) ([]tune.Point, error) {
	deadline, _ := ctx.Deadline()
	began := time.Now()
	m := &meter{f: g.chooser(), header: transport.Header{Group: g.id, Seq: meterSeq, DType: dtype.F32, Root: -1}, deadline: deadline}
	kinds := measuredKinds
	if _, ok := g.engine.(*twoLevel); ok {
		kinds = kinds[:1] // the others do not go over lanes
	}
	slower := 1.0 // than the formula expects, so far
	if m.f != nil {
		two, err := m.time(transport.Barrier, Doubling, 0, 4, 1) // that of the trial, and the one behind it
		if err != nil {
			return nil, err
		}
		m.barrier = two / 2
		slower = max(1, m.barrier/m.f.cost.seconds(transport.AllReduce, Doubling, m.f.x.size(), 0, m.f.chunk))
		defer func() { m.f.scratch = nil }()
	}
	var points []tune.Point
	for round, size := range tuneSizes {
		var trials []trial
		var expected float64
		if m.f != nil {
			trials, expected = m.plan(kinds, size)
		}
		left := (tuneWithin - time.Since(began)).Seconds()
		if more, err := g.decide(deadline, round, expected*slower <= left); err != nil || !more {
			return points, err
		}
		if m.f == nil {
			continue
		}
		start := time.Now()
		measured, err := m.measure(trials)
		if err != nil {
			return nil, err
		}
		slower = max(1, time.Since(start).Seconds()/expected)
		points = append(points, measured...)
	}
	return points, nil
}

// decide gives every rank what rank 0 thinks.
func (g *Group) decide(deadline time.Time, round int, think bool) (bool, error) {
	b := []byte{0}
	if think {
		b[0] = 1
	}
	h := transport.Header{Group: g.id, Seq: decideSeq + uint64(round), Kind: transport.Broadcast, DType: dtype.U8, Root: 0, Count: 1}
	c := call{Call: transport.Call{Header: h, Deadline: deadline}, wire: h, dst: b, src: b}
	err := g.engine.run(&c)
	return b[0] == 1, err
}

// trial is an algorithm to measure at a size.
type trial struct {
	kind      transport.Kind
	algorithm Algorithm
	size      int     // of the full array
	expected  float64 // seconds
	hopeless  bool    // too slow for its size to be worth the time
}

// repeats is how often a call of a size is measured: the shortest of batches counts,
// each the mean of calls. One call before them does not.
func repeats(size int) (batches, calls int) {
	if size <= 32<<10 {
		return 3, 3
	}
	return 2, 1
}

// plan lists what to measure at a size, and how long the formula expects it to take.
func (m *meter) plan(kinds []transport.Kind, size int) (trials []trial, expected float64) {
	n := m.f.x.size()
	unit := n * dtype.F32.Size()
	size = max(size-size%unit, unit) // an equal part for each rank
	batches, calls := repeats(size)
	for _, k := range kinds {
		best := math.Inf(1)
		for _, a := range candidates(k) {
			best = min(best, m.f.cost.seconds(k, a, n, size, m.f.chunk))
		}
		for _, a := range candidates(k) {
			t := trial{k, a, size, m.f.cost.seconds(k, a, n, size, m.f.chunk), false}
			if math.IsInf(t.expected, 1) {
				continue // takes too much memory
			}
			t.hopeless = t.expected > hopeless*best
			if !t.hopeless {
				expected += t.expected * float64(1+batches*calls)
			}
			trials = append(trials, t)
		}
	}
	return trials, expected
}

// measure carries out the trials. All ranks with the same lane do, in the same order.
func (m *meter) measure(trials []trial) ([]tune.Point, error) {
	var points []tune.Point
	for _, t := range trials {
		p := tune.Point{Call: t.kind.String(), Algorithm: string(t.algorithm), Bytes: t.size, Expected: t.expected}
		if !t.hopeless {
			var err error
			batches, calls := repeats(t.size)
			if p.Seconds, err = m.time(t.kind, t.algorithm, t.size, batches, calls); err != nil {
				return nil, err
			}
		}
		points = append(points, p)
	}
	return points, nil
}

// time returns the seconds of a call. The barriers around a batch make it as long as
// its slowest rank; what one takes is not counted.
func (m *meter) time(k transport.Kind, a Algorithm, size, batches, calls int) (float64, error) {
	if len(m.src) < size {
		m.src, m.dst = make([]byte, size), make([]byte, size)
	}
	best := math.Inf(1)
	for batch := range batches + 1 {
		if batch == 0 {
			if err := m.call(k, a, size); err != nil { // connects, and touches the memory
				return 0, err
			}
			continue
		}
		if err := m.call(transport.Barrier, Doubling, 0); err != nil {
			return 0, err
		}
		began := time.Now()
		for range calls {
			if err := m.call(k, a, size); err != nil {
				return 0, err
			}
		}
		if err := m.call(transport.Barrier, Doubling, 0); err != nil {
			return 0, err
		}
		took := time.Since(began).Seconds()
		best = min(best, max(took-m.barrier, took/2)/float64(calls))
	}
	return best, nil
}

// call makes a call with a full array of size bytes.
func (m *meter) call(k transport.Kind, a Algorithm, size int) error {
	m.header.Seq++
	h := m.header
	h.Kind = k
	dst, src, n := m.dst[:size], m.src[:size], m.f.x.size()
	switch k {
	case transport.AllReduce:
		src = dst
	case transport.ReduceScatter:
		size /= n
		dst = dst[:size]
	case transport.AllGather:
		size /= n
		src = src[:size]
	case transport.Broadcast:
		h.Root, src = 0, dst
	}
	h.Count = uint64(size / h.DType.Size())
	c := call{Call: transport.Call{Header: h, Deadline: m.deadline}, wire: h, dst: dst, src: src, algorithm: a}
	return m.f.carryOut(&c)
}
