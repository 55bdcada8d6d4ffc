package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/store"
)

const (
	callTimeout = 5 * time.Second // for one call of the store, once joined
	beatEvery   = time.Second     // between heartbeats

	// farewell is how long node 0 waits for the others to have read the end. They may be
	// busy; one that is silent is not waited for.
	farewell = 10 * time.Second
)

// Member is an agent of a job on several nodes. The keys that the agents share:
//
//	beat/<node>            a counter, raised each second while the agent lives
//	<attempt>/failure      the first Failure of the attempt, whoever reported it
//	<attempt>/done/<node>  that node's workers are gone; what its agent saw of them
//	<attempt>/end          node 0's verdict, once all are: a Failure, or null
//	bye/<node>             that node has read the last verdict, or its refusal
//
// Four routines run until Close: routineBeat, routineSend, routineWatch and, on
// node 0, routineReferee.
type Member struct {
	o        Options
	layout   *Layout
	server   *store.Server // node 0 only
	visitors *visitors     // node 0 only
	client   *store.Client
	ctx      context.Context // ends in Close
	cancel   context.CancelFunc
	outbox   chan message // read by routineSend; never closed
	clock    func() time.Time
	routines sync.WaitGroup

	mu     sync.Mutex // guards what follows
	now    int        // the attempt that is under way here
	rounds map[int]*round
	lost   *Failure    // the store is gone: how every round ends
	beats  []time.Time // when each node was last heard of
	awake  time.Time   // since when this one has listened without a break
	byes   map[int]bool
	left   chan struct{} // closed when all other nodes said goodbye
}

// round is one attempt as an agent knows it.
type round struct {
	failures chan Failure  // holds the first failure; never closed
	verdict  chan *Failure // holds the verdict; never closed
	first    *Failure
	failedAt time.Time // when first arrived
	done     map[int]bool
	workers  []Failure // what the nodes that are done saw of their workers
	ended    bool      // node 0: the verdict is on its way
}

// message is a key to write: where it must be the first, and where it need not.
type message struct {
	key   string
	value []byte
	first bool
}

func newMember(o Options) *Member {
	if o.NodeRank == 0 && o.Job == "" {
		o.Job = o.RandomJob
	}
	m := &Member{o: o, outbox: make(chan message, 64), clock: time.Now, rounds: map[int]*round{}, byes: map[int]bool{}, left: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// begin starts the routines.
func (m *Member) begin() {
	m.beats = make([]time.Time, len(m.layout.Nodes))
	for i := range m.beats {
		m.beats[i] = m.clock()
	}
	m.routines.Go(m.routineBeat)
	m.routines.Go(m.routineSend)
	m.routines.Go(m.routineWatch)
	if m.server != nil {
		m.routines.Go(m.routineReferee)
	}
}

// abandon ends a member that never joined.
func (m *Member) abandon() {
	m.cancel()
	if m.visitors != nil {
		m.visitors.met.Store(true)
	}
	if m.client != nil {
		m.client.Close()
	}
	if m.server != nil {
		m.server.Close()
	}
}

// Layout is who takes part.
func (m *Member) Layout() *Layout { return m.layout }

// Begin opens an attempt; the one before is closed to its workers.
func (m *Member) Begin(attempt int) (<-chan Failure, error) {
	if attempt > 0 && m.server != nil {
		m.server.Retire(m.layout.Job, attempt-1)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = attempt
	return m.round(attempt).failures, nil
}

// Report tells all nodes of a failure here.
func (m *Member) Report(f Failure) {
	m.send(message{key: m.key("failure"), value: marshal(f.aged(m.clock())), first: true})
}

// marshal is for Failures, which always marshal.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cluster: a Failure does not marshal: %v", err))
	}
	return b
}

// Conclude says that this node's workers are gone and how they ended, and delivers
// the verdict once those of all nodes are.
func (m *Member) Conclude(attempt int, workers []Failure) <-chan *Failure {
	aged := make([]Failure, len(workers))
	for i, w := range workers {
		aged[i] = w.aged(m.clock())
	}
	m.send(message{key: m.key("done/" + strconv.Itoa(m.layout.Self)), value: marshal(aged)})
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.round(attempt).verdict
}

// Close leaves the job. Node 0 first lets the others read the verdict, for the
// store ends with it.
func (m *Member) Close() error {
	if m.server == nil {
		ctx, cancel := context.WithTimeout(m.ctx, callTimeout)
		m.client.Set(ctx, byeKey(m.layout.Self), []byte{1}) // node 0 may be gone already
		cancel()
	} else {
		m.awaitByes()
	}
	m.cancel()
	err := m.client.Close()
	m.routines.Wait()
	if m.server != nil {
		err = errors.Join(err, m.server.Close())
	}
	return err
}

// awaitByes waits until the other nodes have read the verdict, are gone, or have had
// their time.
func (m *Member) awaitByes() {
	tick := time.NewTicker(refereeTick)
	defer tick.Stop()
	late := time.After(farewell)
	for !m.allQuiet() {
		select {
		case <-tick.C:
		case <-m.left:
			return
		case <-late:
			return
		}
	}
}

func byeKey(node int) string { return "bye/" + strconv.Itoa(node) }

func (m *Member) key(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strconv.Itoa(m.now) + "/" + name
}

// round returns the attempt's round. The caller holds the lock.
func (m *Member) round(attempt int) *round {
	r := m.rounds[attempt]
	if r == nil {
		r = &round{failures: make(chan Failure, 1), verdict: make(chan *Failure, 1), done: map[int]bool{}}
		m.rounds[attempt] = r
		if m.lost != nil {
			r.fail(*m.lost, m.clock())
			r.end(m.lost)
		}
	}
	return r
}

func (r *round) fail(f Failure, now time.Time) {
	if r.first != nil {
		return
	}
	r.first, r.failedAt = &f, now
	r.failures <- f
}

func (r *round) end(f *Failure) {
	select {
	case r.verdict <- f:
	default: // the first verdict stands
	}
}

func (m *Member) send(msg message) {
	select {
	case m.outbox <- msg:
	case <-m.ctx.Done():
	}
}

// routineSend writes what the agent reports, in order. One; ends in Close.
func (m *Member) routineSend() {
	for {
		select {
		case msg := <-m.outbox:
			if err := m.write(msg); err != nil {
				m.storeLost(err)
			}
		case <-m.ctx.Done():
			return
		}
	}
}

// write stores a message, again where the store is slow, until it is known to be
// lost.
func (m *Member) write(msg message) error {
	for {
		ctx, cancel := context.WithTimeout(m.ctx, callTimeout)
		var err error
		if msg.first {
			_, _, err = m.client.CompareAndSet(ctx, msg.key, nil, msg.value)
		} else {
			err = m.client.Set(ctx, msg.key, msg.value)
		}
		cancel()
		if err == nil || m.client.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// routineBeat raises this node's counter. One; ends in Close or with the store.
func (m *Member) routineBeat() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	key := "beat/" + strconv.Itoa(m.layout.Self)
	for {
		select {
		case <-tick.C:
			ctx, cancel := context.WithTimeout(m.ctx, callTimeout)
			m.client.Add(ctx, key, 1) // the next beat makes up for one that fails
			cancel()
		case <-m.client.Done():
			m.storeLost(m.client.Err())
			return
		case <-m.ctx.Done():
			return
		}
	}
}

// routineWatch takes in what the agents write. One; ends in Close or with the
// store.
func (m *Member) routineWatch() {
	w, err := m.client.Watch(m.ctx, "")
	if err != nil {
		m.storeLost(err)
		return
	}
	defer w.Close()
	for {
		c, err := w.Next(m.ctx)
		switch {
		case err == nil:
			m.take(c)
		case m.ctx.Err() == nil && m.client.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			// Nothing changed for a while: it cannot be with heartbeats, but is no error.
		default:
			m.storeLost(err)
			return
		}
	}
}

// take files one change.
func (m *Member) take(c store.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	parts := strings.Split(c.Key, "/")
	if len(parts) < 2 {
		return // the layout, which join has read
	}
	number, _ := strconv.Atoi(parts[len(parts)-1])
	switch parts[0] {
	case "beat":
		if number < len(m.beats) {
			m.beats[number] = m.clock()
		}
		return
	case "bye":
		if !m.byes[number] {
			m.byes[number] = true
			m.checkLeft()
		}
		return
	}
	attempt, err := strconv.Atoi(parts[0])
	if err != nil {
		return // an entry, which join has read
	}
	r := m.round(attempt)
	switch parts[1] {
	case "done":
		var workers []Failure
		if json.Unmarshal(c.Value, &workers) == nil && !r.done[number] {
			r.done[number] = true
			for _, w := range workers {
				r.workers = append(r.workers, w.arrived(m.clock()))
			}
		}
	case "failure":
		var f Failure
		if json.Unmarshal(c.Value, &f) == nil {
			r.fail(f.arrived(m.clock()), m.clock())
		}
	case "end":
		var f *Failure
		if json.Unmarshal(c.Value, &f) == nil {
			r.end(f)
		}
	}
}

// checkLeft closes left when all others have said goodbye. The caller holds the
// lock.
func (m *Member) checkLeft() {
	if len(m.byes) == len(m.layout.Nodes)-1 {
		close(m.left)
	}
}

// storeLost ends all attempts: without the store no agent knows of the others.
func (m *Member) storeLost(err error) {
	if m.ctx.Err() != nil {
		return // Close is under way
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil {
		return
	}
	node0 := m.layout.Nodes[0]
	m.lost = &Failure{
		Kind: NodeLost, Node: 0, Host: node0.Host, Rank: -1, Code: 1,
		Cause: fmt.Sprintf("node 0 (host %s) is lost: its store does not answer: %v", node0.Host, err),
	}
	for _, r := range m.rounds {
		r.fail(*m.lost, m.clock())
		r.end(m.lost)
	}
}
