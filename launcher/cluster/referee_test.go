package cluster

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// judged builds node 0's view of three nodes whose last heartbeats came so long
// ago, and returns what it tells the others.
func judged(t *testing.T, first *Failure, failedAgo time.Duration, beatsAgo [3]time.Duration, done ...int) (key string, told *Failure) {
	t.Helper()
	m := newMember(Options{})
	m.layout = &Layout{Nodes: []Node{{Index: 0, NProc: 2}, {Index: 1, NProc: 1}, {Index: 2, NProc: 1}}}
	now := time.Now()
	for _, ago := range beatsAgo {
		m.beats = append(m.beats, now.Add(-ago))
	}
	r := m.round(0)
	r.first, r.failedAt = first, now.Add(-failedAgo)
	for _, i := range done {
		r.done[i] = true
	}
	m.judge(now, false)
	select {
	case msg := <-m.outbox:
		if err := json.Unmarshal(msg.value, &told); err != nil {
			t.Fatal(err)
		}
		return msg.key, told
	default:
		return "", nil
	}
}

func TestReferee(t *testing.T) {
	const s = time.Second
	worker := &Failure{Kind: WorkerFailed, Node: 0, Code: 3}
	alive := [3]time.Duration{s, s, s}
	for _, c := range []struct {
		name      string
		first     *Failure
		failedAgo time.Duration
		beats     [3]time.Duration
		done      []int
		key       string
		kind      Kind
		node      int
	}{
		{"all run", nil, 0, alive, nil, "", "", 0},
		{"some are done", nil, 0, alive, []int{0, 2}, "", "", 0},
		{"all are done", nil, 0, alive, []int{0, 1, 2}, "0/end", "", 0},
		{"silent though another runs", nil, 0, [3]time.Duration{s, s, 11 * s}, nil, "0/failure", NodeLost, 2},
		{"silent, but done", nil, 0, [3]time.Duration{s, s, 11 * s}, []int{2}, "", "", 0},
		{"quiet, not yet silent", nil, 0, [3]time.Duration{s, s, 9 * s}, nil, "", "", 0},
		{"a failure is waited out", worker, s, alive, []int{0, 2}, "", "", 0},
		{"a failure, all done", worker, s, alive, []int{0, 1, 2}, "0/end", WorkerFailed, 0},
		{"dead before its peer complained", worker, 4 * s, [3]time.Duration{s, s, 5 * s}, []int{0, 1}, "0/end", NodeLost, 2},
		{"dead after the failure", worker, 8 * s, [3]time.Duration{s, s, 5 * s}, []int{0, 1}, "0/end", WorkerFailed, 0},
		{"it complained itself", &Failure{Kind: WorkerFailed, Node: 2}, 4 * s, [3]time.Duration{s, s, 5 * s}, []int{0, 1}, "0/end", WorkerFailed, 2},
		{"the user ended it", &Failure{Kind: UserSignal}, 4 * s, [3]time.Duration{s, s, 5 * s}, []int{0, 1}, "0/end", UserSignal, 0},
	} {
		key, told := judged(t, c.first, c.failedAgo, c.beats, c.done...)
		var kind Kind
		node := 0
		if told != nil {
			kind, node = told.Kind, told.Node
		}
		if key != c.key || kind != c.kind || node != c.node {
			t.Errorf("%s: told %q %q node %d, want %q %q node %d", c.name, key, kind, node, c.key, c.kind, c.node)
		}
	}
}

// A referee that slept must not take its own silence for the others'.
func TestRefereeSlept(t *testing.T) {
	m := newMember(Options{})
	m.layout = &Layout{Nodes: make([]Node, 2)}
	m.beats = []time.Time{{}, {}}
	m.judge(time.Now(), true)
	if len(m.outbox) != 0 {
		t.Error("it ended the job")
	}
}

// Who had fallen silent before another complained is the cause, also where the referee
// sleeps before it finds that out.
func TestRefereeSleptAfterAFailure(t *testing.T) {
	const s = time.Second
	m := newMember(Options{})
	m.layout = &Layout{Nodes: []Node{{Index: 0, NProc: 1}, {Index: 1, NProc: 1}}}
	now := time.Now()
	m.beats = []time.Time{now, now.Add(-2 * s)}
	r := m.round(0)
	r.first, r.failedAt = &Failure{Kind: WorkerFailed, Node: 0, Code: 3}, now.Add(-s)
	r.done[0] = true
	m.judge(now.Add(shortSilence), true)
	if len(m.outbox) != 0 {
		t.Fatal("it did not give node 1 its time afresh")
	}
	m.judge(now.Add(2*shortSilence+s), false)
	var told *Failure
	if msg := <-m.outbox; json.Unmarshal(msg.value, &told) != nil || told == nil || told.Kind != NodeLost || told.Node != 1 {
		t.Errorf("named %v, want the loss of node 1", told)
	}
}

func TestRanksFollowNodes(t *testing.T) {
	l := Layout{Nodes: []Node{{NProc: 3}, {NProc: 1}, {NProc: 2}}}
	if l.World() != 6 || l.Base(0) != 0 || l.Base(1) != 3 || l.Base(2) != 4 {
		t.Errorf("world %d, bases %d %d %d", l.World(), l.Base(0), l.Base(1), l.Base(2))
	}
}

// After the store is lost every attempt ends at once, later ones included.
func TestStoreLost(t *testing.T) {
	m := newMember(Options{})
	m.layout = &Layout{Nodes: []Node{{Host: "first"}, {}}}
	before := m.round(0)
	m.storeLost(errTest)
	for _, r := range []*round{before, m.round(1)} {
		if f := <-r.failures; f.Kind != NodeLost || f.Host != "first" {
			t.Errorf("failure %+v", f)
		}
		if f := <-r.verdict; f == nil || f.Kind != NodeLost {
			t.Errorf("verdict %+v", f)
		}
	}
}

var errTest = errors.New("cut off")
