package cluster

import (
	"strings"
	"testing"
	"time"
)

func TestCulprit(t *testing.T) {
	at := time.Now()
	worker := func(rank int, how How, after time.Duration, blames ...int) Failure {
		f := Failure{Kind: WorkerFailed, How: how, Rank: rank, Host: "h", PID: 100 + rank, Started: true, Blames: blames, At: at.Add(after)}
		switch how {
		case Failed:
			f.Code, f.Cause, f.Message = 1, "exit status 1", "words of rank "+string(rune('0'+rank))
		case Stopped:
			f.State, f.StateFor = "stopped (T)", time.Second
		case Told:
			f.State = "waiting (S)"
		}
		return f
	}
	killed := func(f Failure) Failure {
		f.Signal, f.Code, f.Cause = "SIGKILL", 137, "killed by SIGKILL"
		return f
	}
	words := func(f Failure, s string) Failure { f.Message = s; return f }
	since := func(f Failure, d time.Duration) Failure { f.StateFor = d; return f }
	const ms, s = time.Millisecond, time.Second
	for _, c := range []struct {
		name    string
		workers []Failure // the first of them was reported first
		rank    int
		code    int
		says    string
	}{
		{"one fails, the others are told", []Failure{worker(1, Failed, 0), worker(0, Told, 0)}, 1, 1, "rank 1 failed first: exit status 1 (host h, local rank 0, pid 101): words of rank 1"},
		{"a peer complains before the death is seen", []Failure{worker(0, Failed, 0, 2), killed(worker(2, Failed, ms)), worker(1, Failed, 2*ms, 2)}, 2, 137, "rank 2 failed first: killed by SIGKILL"},
		{"a peer that blames nobody complains first", []Failure{worker(0, Failed, 0), killed(worker(2, Failed, ms))}, 2, 137, "rank 2 failed first"},
		{"it fails by itself, and others blame it first", []Failure{worker(0, Failed, 0, 1), worker(1, Failed, ms)}, 1, 1, "words of rank 1"},
		{"of two that blame nobody, the one that is blamed", []Failure{worker(0, Failed, 0), worker(1, Failed, ms), worker(2, Failed, 2*ms, 1)}, 1, 1, "words of rank 1"},
		{"of two that blame nobody, the first reported", []Failure{worker(0, Failed, ms), worker(1, Failed, 0)}, 0, 1, "words of rank 0"},
		{"a lost connection is a complaint", []Failure{words(worker(0, Failed, 0), "RuntimeError: Connection closed by peer [::1]:7"), worker(1, Failed, ms)}, 1, 1, "words of rank 1"},
		{"a goodbye that did not come is a complaint", []Failure{words(worker(0, Failed, 0), "rank 1 on h: its connection ended without a goodbye (EOF)"), worker(1, Failed, ms)}, 1, 1, "words of rank 1"},
		{"nothing but a lost connection", []Failure{words(worker(0, Failed, 0), "Connection reset by peer"), worker(1, Told, 0)}, 0, 1, "Connection reset"},
		{"stopped, and blamed", []Failure{worker(0, Failed, 0, 2), worker(1, Failed, 0, 2), worker(2, Stopped, 0)}, 2, 1, "rank 2 stopped answering: stopped (T) for 1s (host h, local rank 0, pid 102): words of rank 1"},
		{"stopped for long, nobody is blamed", []Failure{worker(0, Failed, 0), since(worker(2, Stopped, 0), 5*s)}, 2, 1, "rank 2 stopped answering: stopped (T) for 5s (host h, local rank 0, pid 102): words of rank 0"},
		{"stopped a moment ago, nobody is blamed", []Failure{worker(0, Failed, 0), worker(2, Stopped, 0)}, 0, 1, "rank 0 failed first"},
		{"left with success", []Failure{worker(0, Failed, 0, 1), worker(1, Ended, -s)}, 1, 1, "rank 1 ended while the others still needed it: exit status 0 (host h, local rank 0, pid 101): words of rank 0"},
		{"left with success, nobody is blamed", []Failure{worker(0, Failed, 0), worker(1, Ended, -s)}, 0, 1, "(rank 1 on host h had ended before with exit status 0)"},
		{"it hangs, and is blamed", []Failure{worker(0, Failed, 0, 1), worker(1, Told, 0)}, 1, 1, "rank 1 is blamed by the others: waiting (S)"},
		{"blame goes on to who blames nobody", []Failure{worker(0, Failed, 0, 1), worker(1, Failed, 0, 2), worker(2, Told, 0)}, 2, 1, "rank 2"},
		{"they blame each other", []Failure{worker(1, Failed, 0, 0), worker(0, Failed, 0, 1)}, 1, 1, "rank 1 failed first"},
		{"the blamed one is on a lost node", []Failure{worker(0, Failed, 0, 7)}, 0, 1, "rank 0 failed first"},
		{"another hangs at a disk", []Failure{worker(0, Failed, 0), since(Failure{How: Told, Rank: 1, Host: "h", PID: 7, State: "in D"}, 9*s)}, 0, 1, "(rank 1 on host h, pid 7, was in D for 9s)"},
	} {
		got := culprit(&c.workers[0], c.workers)
		if got.Rank != c.rank || got.Code != c.code || !strings.Contains(got.String(), c.says) {
			t.Errorf("%s: rank %d, status %d: %s", c.name, got.Rank, got.Code, got)
		}
		if alone := culprit(&c.workers[0], nil); alone.Rank != c.workers[0].Rank {
			t.Errorf("%s: without other words rank %d", c.name, alone.Rank)
		}
	}
	for _, f := range []*Failure{nil, {Kind: UserSignal}, {Kind: NodeLost}, {Kind: WorkerFailed, Started: false}} {
		if got := culprit(f, []Failure{killed(worker(1, Failed, 0))}); got != f {
			t.Errorf("%+v became %+v", f, got)
		}
	}
}
