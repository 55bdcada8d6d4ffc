package comm

import (
	"context"
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
	// hopeless is how many times longer than the best an algorithm must be expected to
	// take to be left out.
	hopeless = 4
	// formula is the version of what tables correct: cost.seconds and its figures, and
	// how measurements are made.
	formula = 2
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

// linkBench measures the links that the group has a choice of algorithms for.
type linkBench struct{ g *Group }

func (b linkBench) over() string           { return b.g.link() }
func (b linkBench) key() string            { return b.g.tuneKey() }
func (b linkBench) owns(p tune.Point) bool { return !strings.HasPrefix(p.Call, gpuPrefix) }

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

// tuneKey names all that the times depend on, as far as rank 0 can tell.
func (g *Group) tuneKey() string {
	var hosts []string
	for _, ranks := range hostsOf(g.members) {
		hosts = append(hosts, fmt.Sprintf("%s %v", g.members[ranks[0]].Host, ranks))
	}
	f := g.chooser() // rank 0 is in every lane
	return fmt.Sprintf("%s %d ranks; %s; latency %s, interface %q, chunk %d, connections %d, variables %q %d %d; %s, %d of %d processors, %s %s; formula %d",
		g.link(), g.o.Size, strings.Join(hosts, ", "), f.cost.latency, g.o.Interface, g.o.Chunk, g.o.Conns,
		g.o.nccl.socket, g.o.nccl.minChannels, g.o.nccl.maxChannels,
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

// kinds are the collectives that are measured.
func (b linkBench) kinds() []transport.Kind {
	if _, ok := b.g.engine.(*twoLevel); ok {
		return measuredKinds[:1] // the others do not go over lanes
	}
	return measuredKinds
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
// there; where there are several lanes, all of them work at the same time. A size counts
// only as a whole, for algorithms are compared with each other.
//
// Before each trial rank 0 looks at the time, when its first two calls have been made:
// these are all that may be too much. It goes on where all trials of the size fit, if
// they are like this one.
func (b linkBench) measure(ctx context.Context, within time.Duration) ([]tune.Point, error) {
	g := b.g
	deadline, _ := ctx.Deadline()
	began := time.Now()
	m := &meter{f: g.chooser(), header: transport.Header{Group: g.id, Seq: meterSeq, DType: dtype.F32, Root: -1}, deadline: deadline}
	var trials []trial
	if m.f != nil {
		trials = m.plan(b.kinds())
		defer func() { m.f.scratch = nil }()
	}
	done := 0
	for round := 0; ; round++ {
		enough := true
		if done < len(trials) {
			first, err := m.first(trials[done])
			if err != nil {
				return nil, err
			}
			enough = first*float64(callsOf(trials[done:])) > (within - time.Since(began)).Seconds()
		}
		more, err := g.decide(deadline, round, !enough)
		if err != nil || !more {
			return points(trials, done), err
		}
		if m.f == nil {
			continue
		}
		if err := m.measure(&trials[done]); err != nil {
			return nil, err
		}
		for done++; done < len(trials) && trials[done].hopeless; done++ {
		}
	}
}

// points are the trials of all sizes that are done as a whole.
func points(trials []trial, done int) (list []tune.Point) {
	for i, t := range trials {
		if t.kind == transport.Barrier || done < len(trials) && t.size == trials[done].size {
			continue
		}
		if i >= done {
			break
		}
		list = append(list, tune.Point{Call: t.kind.String(), Algorithm: string(t.algorithm), Bytes: t.size, Expected: t.expected, Seconds: t.seconds})
	}
	return list
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
	seconds   float64 // as measured
}

// repeats is how often a trial's call is measured: the shortest of batches counts, each
// the mean of calls. Those of first do not.
func (t *trial) repeats() (batches, calls int) {
	if t.size <= 32<<10 {
		return 3, 3
	}
	return 2, 1
}

// calls is how many calls of about the trial's length it takes, barriers among them.
func (t *trial) calls() int {
	batches, calls := t.repeats()
	if t.kind == transport.Barrier {
		calls += 2
	}
	return batches * calls
}

// callsOf is how many calls there are in the trials of the first one's size.
func callsOf(trials []trial) (n int) {
	for _, t := range trials {
		if t.size == trials[0].size && !t.hopeless {
			n += t.calls()
		}
	}
	return n
}

// plan lists what to measure: a barrier, and then all algorithms, size by size. The first
// of a size is not hopeless.
func (m *meter) plan(kinds []transport.Kind) []trial {
	n := m.f.x.size()
	unit := n * dtype.F32.Size()
	trials := []trial{{kind: transport.Barrier, algorithm: Doubling}}
	for _, size := range tuneSizes {
		size = max(size-size%unit, unit) // an equal part for each rank
		if size == trials[len(trials)-1].size {
			continue // of so many ranks that the part is one element
		}
		var hopeful, others []trial
		for _, k := range kinds {
			best := math.Inf(1)
			for _, a := range candidates(k) {
				best = min(best, m.f.cost.seconds(k, a, n, size, m.f.chunk))
			}
			for _, a := range candidates(k) {
				t := trial{kind: k, algorithm: a, size: size, expected: m.f.cost.seconds(k, a, n, size, m.f.chunk)}
				switch {
				case math.IsInf(t.expected, 1): // takes too much memory
				case t.expected > hopeless*best:
					t.hopeless = true
					others = append(others, t)
				default:
					hopeful = append(hopeful, t)
				}
			}
		}
		trials = append(append(trials, hopeful...), others...)
	}
	return trials
}

// first makes the first two calls of a trial, which do not count, and returns the
// seconds of the second: one connects, and touches the memory.
func (m *meter) first(t trial) (float64, error) {
	if err := m.call(t.kind, t.algorithm, t.size); err != nil {
		return 0, err
	}
	began := time.Now()
	err := m.call(t.kind, t.algorithm, t.size)
	return time.Since(began).Seconds(), err
}

// measure takes the seconds of a call. The barriers around a batch make it as long as its
// slowest rank; what one takes is not counted. All ranks with the same lane measure the
// same.
func (m *meter) measure(t *trial) error {
	batches, calls := t.repeats()
	t.seconds = math.Inf(1)
	for range batches {
		if err := m.call(transport.Barrier, Doubling, 0); err != nil {
			return err
		}
		began := time.Now()
		for range calls {
			if err := m.call(t.kind, t.algorithm, t.size); err != nil {
				return err
			}
		}
		if err := m.call(transport.Barrier, Doubling, 0); err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		t.seconds = min(t.seconds, max(took-m.barrier, took/2)/float64(calls))
	}
	if t.kind == transport.Barrier { // one more than its calls ended each batch
		m.barrier = t.seconds * float64(calls) / float64(calls+1)
	}
	return nil
}

// call makes a call with a full array of size bytes.
func (m *meter) call(k transport.Kind, a Algorithm, size int) error {
	m.header.Seq++
	h := m.header
	h.Kind = k
	if len(m.src) < size {
		m.src, m.dst = make([]byte, size), make([]byte, size)
	}
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
