package cluster

import (
	"fmt"
	"time"
)

const (
	silence      = 10 * time.Second // without a heartbeat: the node is lost
	shortSilence = 4 * time.Second  // the same once something has failed
	refereeTick  = 250 * time.Millisecond
)

// routineReferee watches over the nodes and ends each attempt once all of them
// are done or lost. One, on node 0; ends in Close.
func (m *Member) routineReferee() {
	tick := time.NewTicker(refereeTick)
	defer tick.Stop()
	last := m.clock()
	for {
		select {
		case <-tick.C:
			now := m.clock()
			m.judge(now, now.Sub(last) > 8*refereeTick)
			last = now
		case <-m.ctx.Done():
			return
		}
	}
}

// judge looks at the attempt under way. Where this agent itself slept (stopped,
// or starved of the processor), the silence is its own: the others get their time
// afresh. When they were last heard of stays as it is.
func (m *Member) judge(now time.Time, slept bool) {
	m.mu.Lock()
	var out []message
	if slept {
		m.awake = now
	}
	r := m.round(m.now)
	if !r.ended {
		out = m.verdict(r, now)
	}
	m.mu.Unlock()
	for _, msg := range out {
		m.send(msg)
	}
}

// verdict returns what the nodes are to be told: a node's loss, or the end. The
// caller holds the lock.
func (m *Member) verdict(r *round, now time.Time) []message {
	limit := silence
	if r.first != nil {
		limit = shortSilence
	}
	cause, waiting := culprit(r.first, r.workers), !r.done[0]
	for i, node := range m.layout.Nodes {
		if i == 0 || r.done[i] {
			continue
		}
		quiet := m.quiet(i, now)
		if quiet <= limit {
			waiting = true
			continue
		}
		gone := &Failure{
			Kind: NodeLost, Node: i, Host: node.Host, Rank: -1, Code: 1,
			Cause: fmt.Sprintf("node %d (host %s, ranks %d to %d) is lost: no heartbeat for %s",
				i, node.Host, m.layout.Base(i), m.layout.Base(i)+node.NProc-1, quiet.Round(time.Second)),
		}
		if r.first == nil {
			return []message{m.told("failure", gone, true)}
		}
		// A node that fell silent before another one complained is the cause of the
		// complaint: its peers notice the broken connections within milliseconds.
		if r.first.Kind == WorkerFailed && r.first.Node != i && m.beats[i].Before(r.failedAt) {
			cause = gone
		}
	}
	if waiting {
		return nil
	}
	r.ended = true
	return []message{m.told("end", cause, false)}
}

func (m *Member) told(name string, f *Failure, first bool) message {
	return message{key: fmt.Sprintf("%d/%s", m.now, name), value: marshal(f), first: first}
}

// quiet is how long a node has been silent while this one listened. The caller holds
// the lock.
func (m *Member) quiet(node int, now time.Time) time.Duration {
	return min(now.Sub(m.beats[node]), now.Sub(m.awake))
}

// allQuiet reports that none of the nodes that could still read the verdict lives.
func (m *Member) allQuiet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.beats {
		if i > 0 && !m.byes[i] && m.quiet(i, m.clock()) <= shortSilence {
			return false
		}
	}
	return true
}
