package rdma

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport/rdma/rdmatest"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// A rank that makes no call learns that a peer is gone, too, and only once.
func TestDeadPeerOfAnIdleRank(t *testing.T) {
	t.Parallel() // it waits for seconds
	ends := join(t, 3, newFabric(t).API(), Settings{})
	if err := ends[2].Close(); err != nil { // with a goodbye: it is nobody's loss
		t.Fatal(err)
	}
	ends[1].Abort(errors.New("dead"))
	if err := ends[1].Close(); err != nil { // without
		t.Fatal(err)
	}
	says(t, <-ends[0].lost, "does not answer", "rank 1 on host1", "fake1 port 1")
	says(t, ends[0].PostSend(callAt(1, time.Minute), 1, nil), "rank 1 on host1")
	ends[0].broke(errors.New("later"))
	select {
	case err := <-ends[0].lost:
		t.Errorf("a second reason: %v", err)
	default:
	}
}

// A device that tells neither success nor failure is no better.
func TestLostCompletionOfAnIdleRank(t *testing.T) {
	f := newFabric(t)
	f.Fate = func(*verbs.Send) rdmatest.Fate { return rdmatest.Fate{Lost: true} }
	m := join(t, 2, f.API(), Settings{})[0].Mesh
	m.use.Lock()
	defer m.use.Unlock()
	for i, later := range []time.Duration{0, m.s.patience() - time.Second, m.s.patience() + time.Minute} {
		if err := m.lookAfter(time.Now().Add(later)); errors.Is(err, errSilent) != (i == 2) {
			t.Errorf("after %s: %v", later, err)
		}
	}
}

// Nothing is written while the port is down: it may come back before anybody needs it.
func TestIdleRankWithItsPortDown(t *testing.T) {
	var writes atomic.Int32
	f := newFabric(t)
	f.Fate = func(s *verbs.Send) rdmatest.Fate {
		if s.ID>>idRank == 1 { // to rank 1
			writes.Add(1)
		}
		return rdmatest.Fate{}
	}
	m := join(t, 2, f.API(), Settings{QPs: 2})[0].Mesh
	look := func() int32 {
		m.use.Lock()
		defer m.use.Unlock()
		before := writes.Load()
		if err := m.lookAfter(time.Now()); err != nil {
			t.Error(err)
		}
		return writes.Load() - before
	}
	m.setDown(time.Now())
	if n := look(); n != 0 {
		t.Errorf("%d writes while the port is down", n)
	}
	m.setDown(time.Time{})
	if n := look(); n != 2 {
		t.Errorf("%d writes on 2 queue pairs when it is back", n)
	}
	if n := look(); n != 2 { // those before have ended
		t.Errorf("%d writes the next time", n)
	}
}
