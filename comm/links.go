package comm

import (
	"github.com/gorun-dev/gorun/comm/transport"
)

// links moves messages between this rank and its peers, in order per peer and
// direction. What is posted may still be read or written until the matching wait
// returns. Waits end at the call's deadline, when the peer is lost, and on Abort;
// every failure is final. One goroutine at a time uses it, but for Abort.
type links interface {
	PostSend(c *transport.Call, peer int, b []byte) error
	PostRecv(c *transport.Call, peer int, b []byte) error
	// WaitSend and WaitRecv wait for the oldest posted message not waited for before.
	WaitSend(c *transport.Call, peer int) error
	WaitRecv(c *transport.Call, peer int) error
	// Abort ends all waits with err.
	Abort(err error)
	// Close releases everything; no posted memory is touched once it returns.
	Close() error
}

// exchange is links between the members of a group, or of a part of it, with
// tickets: a post returns one, and a wait for it waits for all before it too.
type exchange struct {
	links links
	ranks []int // members, as the links number them
	me    int   // this rank's place among the members

	call  transport.Call
	sends []progress // of each member
	recvs []progress
	seen  place
}

type progress struct{ posted, done int }

func newExchange(l links, ranks []int, me int) *exchange {
	return &exchange{links: l, ranks: ranks, me: me, sends: make([]progress, len(ranks)), recvs: make([]progress, len(ranks))}
}

func (x *exchange) size() int { return len(x.ranks) }

// send posts b for member p.
func (x *exchange) send(p int, b []byte) (ticket int, err error) {
	if err := x.links.PostSend(&x.call, x.ranks[p], b); err != nil {
		return 0, err
	}
	x.sends[p].posted++
	return x.sends[p].posted, nil
}

// recv posts b for the next message of member p.
func (x *exchange) recv(p int, b []byte) (ticket int, err error) {
	if err := x.links.PostRecv(&x.call, x.ranks[p], b); err != nil {
		return 0, err
	}
	x.recvs[p].posted++
	return x.recvs[p].posted, nil
}

func (x *exchange) waitSend(p, ticket int) error {
	for ; x.sends[p].done < ticket; x.sends[p].done++ {
		x.seen.waits(x.call.Header, x.ranks[p], 0)
		if err := x.links.WaitSend(&x.call, x.ranks[p]); err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) waitRecv(p, ticket int) error {
	for ; x.recvs[p].done < ticket; x.recvs[p].done++ {
		x.seen.waits(x.call.Header, x.ranks[p], 1)
		if err := x.links.WaitRecv(&x.call, x.ranks[p]); err != nil {
			return err
		}
	}
	return nil
}

// drain waits for everything posted. Every algorithm ends with it. Receives come
// first: a peer's send may end only when it is received.
func (x *exchange) drain() error {
	for p := range x.ranks {
		if err := x.waitRecv(p, x.recvs[p].posted); err != nil {
			return err
		}
	}
	for p := range x.ranks {
		if err := x.waitSend(p, x.sends[p].posted); err != nil {
			return err
		}
	}
	return nil
}
