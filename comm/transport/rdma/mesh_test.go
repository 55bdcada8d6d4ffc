package rdma

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/rdmatest"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

func TestMessagesOfAllSizes(t *testing.T) {
	for _, qps := range []int{1, 2, 3} {
		exchangeBothWays(t, join(t, 2, newFabric(t).API(), Settings{QPs: qps}))
	}
	exchangeBothWays(t, join(t, 3, newFabric(t).API(), Settings{}))
}

// A device that takes small messages only: what is larger goes in several, more than
// the queue holds at once.
func TestShortMessages(t *testing.T) {
	f := newFabric(t)
	f.Port.MaxMessage = 16 << 10
	exchangeBothWays(t, join(t, 2, f.API(), Settings{}))
}

// one sends a message from rank 0 to 1 and returns what both waits say.
func one(ends []*end, within time.Duration, size int) (sent, got error) {
	var both sync.WaitGroup
	both.Go(func() {
		c := callAt(1, within)
		if sent = ends[0].PostSend(c, 1, make([]byte, size)); sent == nil {
			sent = ends[0].WaitSend(c, 1)
		}
		if sent == nil { // until the data is there, or the write has failed
			if sent = ends[0].PostRecv(c, 1, nil); sent == nil {
				sent = ends[0].WaitRecv(c, 1)
			}
		}
	})
	both.Go(func() {
		c := callAt(1, within)
		if got = ends[1].PostRecv(c, 0, make([]byte, size)); got == nil {
			got = ends[1].WaitRecv(c, 0)
		}
		if got == nil {
			if got = ends[1].PostSend(c, 0, nil); got == nil {
				got = ends[1].WaitSend(c, 0)
			}
		}
	})
	both.Wait()
	return sent, got
}

// says fails the test unless err is of a peer and names all of these.
func says(t *testing.T, err error, want ...string) {
	t.Helper()
	if _, ok := errors.AsType[*transport.PeerError](err); !ok {
		t.Fatalf("got %v, want a PeerError", err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// What a failed write says: both ends, and what its status means.
func TestFailedWrites(t *testing.T) {
	for status, want := range map[verbs.Status]string{
		verbs.RetryExceeded: "does not answer", verbs.RemoteAccess: "may not write", verbs.RNRExceeded: "no receive posted",
		verbs.RemoteInvalid: "MTU", verbs.LocalProtect: "may not touch", verbs.LocalOperation: "link is down", 77: "vendor's documentation",
	} {
		f := newFabric(t)
		f.Fate = func(s *verbs.Send) rdmatest.Fate {
			if s.Op == verbs.WriteImm && s.Bytes > headSize {
				return rdmatest.Fate{Status: status}
			}
			return rdmatest.Fate{}
		}
		ends := join(t, 2, f.API(), Settings{})
		c := callAt(1, time.Minute)
		if err := ends[0].PostSend(c, 1, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		err := errors.Join(ends[0].WaitSend(c, 1), ends[0].PostRecv(c, 1, nil))
		if err != nil {
			t.Fatal(err)
		}
		says(t, ends[0].WaitRecv(c, 1), "rank 0 on host0", "fake0 port 1", "::ffff:10.0.0.1", "rank 1 on host1", "fake1 port 1", want, "vendor's code 7")
		if err := ends[0].PostSend(c, 1, nil); err == nil {
			t.Error("a mesh that has failed takes messages")
		}
	}
}

// A write whose completion never comes ends by the mesh's own deadline.
func TestLostCompletion(t *testing.T) {
	f := newFabric(t)
	f.Fate = func(s *verbs.Send) rdmatest.Fate { return rdmatest.Fate{Lost: true} }
	ends := join(t, 2, f.API(), Settings{Timeout: 1})
	sent, got := one(ends, time.Minute, 10)
	says(t, sent, "neither ended nor failed", "rank 1 on host1", "MTU")
	says(t, got, "neither ended nor failed", "rank 0 on host0")
	if !errors.Is(sent, errSilent) {
		t.Errorf("%v", sent)
	}
}

// A peer whose process is gone is found by an empty write.
func TestDeadPeer(t *testing.T) {
	ends := join(t, 2, newFabric(t).API(), Settings{})
	ends[1].Abort(errors.New("dead"))
	if err := ends[1].Close(); err != nil { // without a goodbye
		t.Fatal(err)
	}
	c := callAt(1, time.Minute)
	if err := ends[0].PostRecv(c, 1, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	says(t, ends[0].WaitRecv(c, 1), "does not answer", "host1")
}

// A peer that has closed the group is no failure, until something is wanted of it.
func TestGoodbye(t *testing.T) {
	ends := join(t, 2, newFabric(t).API(), Settings{})
	c := callAt(1, time.Minute)
	if err := errors.Join(ends[1].PostSend(c, 0, []byte("last")), ends[1].WaitSend(c, 0), ends[1].Close()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if err := errors.Join(ends[0].PostRecv(c, 1, got), ends[0].WaitRecv(c, 1)); err != nil || string(got) != "last" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := ends[0].PostRecv(c, 1, got); err != nil {
		t.Fatal(err)
	}
	err := ends[0].WaitRecv(c, 1)
	says(t, err, "closed the group")
	if !errors.Is(err, errLeft) {
		t.Error(err)
	}
}

// The device's own failures end the mesh, whether somebody waits or not.
func TestEvents(t *testing.T) {
	f := newFabric(t)
	ends := join(t, 2, f.API(), Settings{})
	f.Event(verbs.GIDChange)
	f.Event(verbs.PortDown)
	f.Event(verbs.PortUp)
	f.Event(verbs.QPFatal)
	for r, e := range ends {
		err := <-e.lost
		for _, want := range []string{"queue pair has failed", "host", "fake", "port 1"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %q does not say %q", r, err, want)
			}
		}
		if err := e.PostSend(callAt(1, time.Minute), 1-r, nil); err == nil || !strings.Contains(err.Error(), "queue pair") {
			t.Errorf("rank %d posts: %v", r, err)
		}
	}
}

// An Abort ends a wait that sleeps.
func TestAbortEndsAWait(t *testing.T) {
	ends := join(t, 2, newFabric(t).API(), Settings{})
	c := callAt(1, time.Minute)
	if err := ends[0].PostRecv(c, 1, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	why := errors.New("the test says so")
	done := make(chan error)
	go func() { done <- ends[0].WaitRecv(c, 1) }()
	ends[0].Abort(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestDeadlineOfACall(t *testing.T) {
	ends := join(t, 2, newFabric(t).API(), Settings{})
	c := callAt(7, 0)
	if err := ends[0].PostRecv(c, 1, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	err := ends[0].WaitRecv(c, 1)
	if late, ok := errors.AsType[*transport.TimeoutError](err); !ok || late.Peer != 1 || late.Call.Seq != 7 {
		t.Errorf("got %v", err)
	}
}

func TestRanksThatCallDifferentThings(t *testing.T) {
	for name, size := range map[string]int{"records": 8, "announced": directLeast} {
		t.Run(name, func(t *testing.T) {
			ends := join(t, 2, newFabric(t).API(), Settings{})
			c, other := callAt(1, time.Minute), callAt(1, time.Minute)
			other.DType = dtype.F32
			out, err := ends[0].Alloc(size)
			if err := errors.Join(err, ends[0].PostSend(c, 1, out), ends[1].PostRecv(other, 0, make([]byte, size))); err != nil {
				t.Fatal(err)
			}
			err = ends[1].WaitRecv(other, 0)
			if m, ok := errors.AsType[*transport.MismatchError](err); !ok || m.Mine != other.Header || m.Theirs != c.Header || m.Peer != 0 {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A message for which nothing is posted is shown to the owner.
func TestMessagesThatNobodyWaitsFor(t *testing.T) {
	why := errors.New("it will never be")
	api := newFabric(t).API()
	ends, errs := tryJoin(t, 2, func(int) Options {
		return Options{API: api, Check: func(peer int, h transport.Header) error {
			if h.Seq == 3 {
				return why
			}
			return nil
		}}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	// Rank 1 waits for what rank 0 does not send, and gets something else.
	c := callAt(2, time.Minute)
	err := errors.Join(ends[0].PostSend(c, 1, nil), ends[0].PostSend(callAt(3, time.Minute), 1, nil),
		ends[1].PostRecv(c, 0, nil), ends[1].WaitRecv(c, 0))
	if err == nil { // it may have been seen by then
		if err = ends[1].PostSend(c, 0, make([]byte, directLeast)); err == nil {
			err = ends[1].WaitSend(c, 0)
		}
	}
	if !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

// Memory that can't be registered says what limits it.
func TestLimitOnLockedMemory(t *testing.T) {
	api := newFabric(t).API()
	api.Register = func(verbs.PD, uintptr, int, verbs.Access) (verbs.Region, error) {
		return verbs.Region{}, syscall.ENOMEM
	}
	_, errs := tryJoin(t, 1, func(int) Options { return Options{API: api} })
	if errs[0] == nil || !errors.Is(errs[0], syscall.ENOMEM) {
		t.Errorf("got %v", errs[0])
	}
}
