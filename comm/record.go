package comm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// remembered is how many calls a group looks back on.
const remembered = 64

// State is how far a call has come.
type State uint8

const (
	Enqueued State = iota // its stream or an earlier call is not done
	Running
	Ended
	Failed
)

func (s State) String() string { return [...]string{"enqueued", "running", "ended", "failed"}[s] }

// Record is one of a group's latest calls.
type Record struct {
	transport.Header
	GPU            bool // of memory of a GPU
	State          State
	Algorithm      Algorithm
	Sent, Received int64 // bytes
	Enqueued       time.Time
	Start, End     time.Time // zero until then
}

func (r Record) String() string { return fmt.Sprintf("%s %s", r.Header, r.State) }

// recorder keeps the latest calls. Entries count from 0 and never end.
type recorder struct {
	ring [remembered]Record
	next uint64
}

func (r *recorder) add(h transport.Header, gpu bool) (entry uint64) {
	entry = r.next
	r.next++
	r.ring[entry%remembered] = Record{Header: h, GPU: gpu, Enqueued: time.Now()}
	return entry
}

// at returns the entry's record, nil when it has been overwritten.
func (r *recorder) at(entry uint64) *Record {
	if entry+remembered < r.next {
		return nil
	}
	return &r.ring[entry%remembered]
}

func (r *recorder) start(entry uint64, at time.Time) {
	if rec := r.at(entry); rec != nil {
		rec.State, rec.Start = Running, at
	}
}

func (r *recorder) end(entry uint64, res Result) {
	rec := r.at(entry)
	if rec == nil {
		return
	}
	rec.State, rec.End, rec.Algorithm, rec.Sent, rec.Received = Ended, res.End, res.Algorithm, res.Sent, res.Received
	if res.Err != nil {
		rec.State = Failed
	}
}

// collective returns the record of collective number seq, nil when there is none
// yet or it has been overwritten.
func (r *recorder) collective(seq uint64) *Record {
	for i := range r.ring {
		rec := &r.ring[i]
		if rec.Kind != 0 && rec.Kind != transport.Send && rec.Kind != transport.Recv && rec.Seq == seq {
			return rec
		}
	}
	return nil
}

// list returns the records, the oldest first.
func (r *recorder) list() []Record {
	var out []Record
	for e := r.next - min(r.next, remembered); e < r.next; e++ {
		out = append(out, r.ring[e%remembered])
	}
	return out
}

// Recent returns the group's latest calls on this rank, the oldest first. What runs
// is among them, however many calls were enqueued behind it.
func (g *Group) Recent() []Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	latest := g.history.list()
	var older []Record
	for _, c := range g.running(nil) {
		if !slices.ContainsFunc(latest, func(r Record) bool { return r.Header == c.Header && r.GPU == c.gpu }) {
			// It was enqueued when it began at the latest.
			older = append(older, Record{Header: c.Header, GPU: c.gpu, State: Running, Enqueued: c.since, Start: c.since})
		}
	}
	return append(older, latest...)
}

// Stats is what a group has done on this rank. Everything in it was counted, but
// for wires that say otherwise.
type Stats struct {
	Calls, Failed int64
	Time          time.Duration // while a call was running
	Wires         []WireStats
	Choices       []ChoiceStats // in the order of first use

	choices choices
}

// WireStats is what went over one transport.
type WireStats struct {
	Transport      string // local, tcp, shm or gpu
	Sent, Received int64  // bytes of data, headers not counted
	// Computed says that the bytes were not counted, as on the GPUs, where neither NCCL
	// nor the copy engines count. They are what a ring moves.
	Computed bool
}

// Stats returns what the group has done so far.
func (g *Group) Stats() Stats {
	g.mu.Lock()
	s := g.stats
	s.Choices, s.choices = s.choices.list(), choices{}
	g.mu.Unlock()
	for _, w := range g.wires {
		s.Wires = append(s.Wires, WireStats{Transport: w.name, Sent: w.traffic.Sent.Load(), Received: w.traffic.Received.Load()})
	}
	if u := g.gpu; u != nil && u.engine != nil {
		s.Wires = append(s.Wires, WireStats{"gpu", u.moved.Sent.Load(), u.moved.Received.Load(), true})
	}
	return s
}

// add counts a call of a group with so many ranks. first says that none before it was of
// its kind, algorithm and class of sizes.
func (s *Stats) add(h transport.Header, ranks int, gpu bool, r Result) (first bool) {
	s.Calls++
	s.Time += r.End.Sub(r.Start)
	if r.Err != nil {
		s.Failed++
		return false
	}
	return s.choices.add(choice{h.Kind, r.Algorithm, classOf(fullBytes(h, ranks)), gpu}, r)
}

// wire is a transport in use.
type wire struct {
	name    string
	traffic transport.Traffic
}

// wires are those of an engine.
type wires []*wire

func (w *wires) add(name string) *wire {
	*w = append(*w, &wire{name: name})
	return (*w)[len(*w)-1]
}

// moved is the bytes of all transports of host memory so far.
func (g *Group) moved() (sent, received int64) {
	for _, w := range g.wires {
		sent += w.traffic.Sent.Load()
		received += w.traffic.Received.Load()
	}
	return sent, received
}
