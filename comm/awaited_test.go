package comm

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// cut is links that lose what goes to one peer.
type cut struct {
	links
	peer int
}

func (l *cut) PostSend(c *transport.Call, peer int, b []byte) error {
	if peer == l.peer {
		return nil
	}
	return l.links.PostSend(c, peer, b)
}

func (l *cut) WaitSend(c *transport.Call, peer int) error {
	if peer == l.peer {
		return nil
	}
	return l.links.WaitSend(c, peer)
}

// All ranks are in a ring, and one link of it is dead. Whoever notices first, the error
// names that link's ends.
func TestTheDeadLinkOfARingIsNamed(t *testing.T) {
	for first := range 4 {
		groups, err := Local(4, Options{Algo: Ring, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		x := groups[2].engine.(*flat).x
		x.links = &cut{x.links, 3}
		h := transport.Header{Kind: transport.AllReduce, DType: i32, Root: -1, Count: 400, Group: groups[0].id, Seq: 1}
		works := make([]*Work, 4)
		var ranks sync.WaitGroup
		for r, g := range groups {
			ranks.Go(func() {
				c := &call{dst: make([]byte, 1600), src: make([]byte, 1600)}
				c.Kind, c.DType, c.Root, c.Count = h.Kind, h.DType, h.Root, h.Count
				works[r] = g.place(here{}, c)
			})
		}
		// Rank 3 has nothing; what it sent itself has come as far as it can.
		for r, least := range []int{1, 2, 3, 0} {
			for at := (*Awaited)(nil); at == nil || at.Messages < least; at = groups[r].engine.(*flat).x.seen.in(h) {
				runtime.Gosched()
			}
		}
		late := (first + 3) % 4
		err = groups[first].fail(&transport.TimeoutError{Peer: late, Call: h, Wait: time.Second})
		ranks.Wait()
		const want = " over local; all ranks are in it, and the one that has got least far is behind or cut off: rank 3 on "
		e, ok := errors.AsType[*StuckError](err)
		if !ok || !strings.Contains(e.Error(), want) || !strings.Contains(e.Error(), "waits for rank 2 on ") || !strings.HasSuffix(e.Error(), "after 0 messages") {
			t.Errorf("rank %d noticed: %v", first, err)
		}
		for r, g := range groups {
			if works[r].Err() == nil || g.Close() == nil {
				t.Errorf("rank %d did not fail", r)
			}
		}
	}
}

// What a rank waited for in an earlier call is not taken for the one that runs.
func TestPlaceIsOfItsCall(t *testing.T) {
	var p place
	one, two := transport.Header{Kind: transport.AllReduce, Seq: 1}, transport.Header{Kind: transport.AllReduce, Seq: 2}
	p.waits(one, 3, 1)
	p.waits(one, 2, 1)
	p.waits(one, 5, 0)
	if at := p.in(one); at == nil || *at != (Awaited{5, 1}) {
		t.Errorf("%+v: want rank 5, after one message", at)
	}
	if at := p.in(two); at != nil {
		t.Errorf("the next call waits for %+v before it began", at)
	}
	p.waits(two, 1, 1)
	if at := p.in(two); at == nil || *at != (Awaited{1, 0}) || p.in(one) != nil {
		t.Errorf("%+v: want rank 1, after no message", at)
	}
}

// On GPUs, which tell no numbers of messages, all waits are said.
func TestWaitsOfGPUs(t *testing.T) {
	g := &Group{members: []member{{Host: "a"}, {Host: "b"}, {Host: "c"}}}
	run := &transport.Header{Kind: transport.AllReduce, DType: i32, Seq: 7, Root: -1}
	at := func(host string, h *transport.Header, rank int) *Position {
		return &Position{Host: host, GPU: Progress{Running: h, Awaits: &Awaited{rank, -1}}}
	}
	all := []*Position{at("a", run, 2), at("b", run, 0), at("c", &transport.Header{Kind: transport.Barrier, Seq: 6}, 1)}
	late := transport.TimeoutError{Peer: 2, Call: *run, Wait: time.Second}
	e := &StuckError{TimeoutError: late, GPU: "cuda:0", Link: "kernels between the GPUs of a host", Waits: g.waits(all, 7, true)}
	const want = "rank 0 waited 1s for rank 2 in AllReduce(sum, i32, 0) #7 on cuda:0 over kernels between the GPUs of a host; " +
		"all ranks have got to it, rank 0 on a waits for rank 2 on c, rank 1 on b waits for rank 0 on a"
	if e.Error() != want {
		t.Errorf("%q\nwant %q", e, want)
	}
	if list := g.waits([]*Position{nil, at("b", run, 9), nil}, 7, true); len(list) > 0 {
		t.Errorf("a rank that there is not is waited for: %v", list)
	}
}
