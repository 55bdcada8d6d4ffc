package shm

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
)

// Messages between two ranks go in letters: a header and a chunk. The slots of
// each ordered pair of ranks are a ring with two counters, the letters posted and
// the letters taken. An empty message is one empty letter.

// letters is the number of letters of n bytes.
func (t *Team) letters(n int) int { return max(1, (n+t.pairChunk-1)/t.pairChunk) }

// body is chunk k of x.
func (t *Team) body(x []byte, k int) []byte {
	return x[k*t.pairChunk : min((k+1)*t.pairChunk, len(x))]
}

// post sends letter k of the message x.
func (t *Team) post(c *transport.Call, h transport.Header, to int, x []byte, k int) error {
	n := t.sent[to]
	if err := t.wait(c, to, t.word(t.pairOff(t.rank, to, 1)), n+1-pairDepth); err != nil {
		return err
	}
	head, body := t.letter(t.rank, to, n)
	h.Encode(head)
	copy(body, t.body(x, k))
	t.sent[to] = n + 1
	signal(t.word(t.pairOff(t.rank, to, 0)), n+1)
	return nil
}

// take receives letter k of the message x.
func (t *Team) take(c *transport.Call, h transport.Header, from int, x []byte, k int) error {
	n := t.received[from]
	if err := t.wait(c, from, t.word(t.pairOff(from, t.rank, 0)), n+1); err != nil {
		return err
	}
	head, body := t.letter(from, t.rank, n)
	if theirs := transport.Decode(head); k == 0 && !answers(h, theirs) {
		return t.fail(&failure{kind: mismatched, peer: from, mine: h, theirs: theirs})
	}
	b := t.body(x, k)
	copyOut(b, body[:len(b)])
	t.received[from] = n + 1
	signal(t.word(t.pairOff(from, t.rank, 1)), n+1)
	return nil
}

// answers reports whether a receiver's call fits a sender's. The sequence numbers
// of two ranks are their own where they send and receive.
func answers(mine, theirs transport.Header) bool {
	kind := mine.Kind
	if kind == transport.Recv {
		kind = transport.Send
	}
	return theirs.Kind == kind && theirs.Group == mine.Group && theirs.DType == mine.DType && theirs.Count == mine.Count
}

// Send sends buf, c.Count elements, to peer (of the team), which calls Recv with as
// many of the same type. Small messages do not wait for it.
func (t *Team) Send(c transport.Call, peer int, buf []byte) error {
	if err := t.beginPair(&c, peer, buf); err != nil {
		return err
	}
	defer t.open.RUnlock()
	for k := range t.letters(len(buf)) {
		if err := t.post(&c, c.Header, peer, buf, k); err != nil {
			return err
		}
	}
	return nil
}

// Recv receives c.Count elements from peer (of the team).
func (t *Team) Recv(c transport.Call, peer int, buf []byte) error {
	if err := t.beginPair(&c, peer, buf); err != nil {
		return err
	}
	defer t.open.RUnlock()
	for k := range t.letters(len(buf)) {
		if err := t.take(&c, c.Header, peer, buf, k); err != nil {
			return err
		}
	}
	return nil
}

func (t *Team) beginPair(c *transport.Call, peer int, buf []byte) error {
	if peer < 0 || peer >= t.ranks || peer == t.rank {
		return fmt.Errorf("shm: %s with rank %d of a team of %d, from rank %d", c.Header, peer, t.ranks, t.rank)
	}
	if err := arguments(c, int(c.Count), buf); err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	if err := t.Err(); err != nil {
		t.open.RUnlock()
		return err
	}
	return nil
}

// AllToAllV sends each rank its part of src and receives one from each into dst.
// Parts follow each other in the order of ranks; sendCounts and recvCounts are
// their elements, one for each rank of the team. src and dst do not overlap. The
// header's Count is the same on every rank.
func (t *Team) AllToAllV(c transport.Call, dst, src []byte, sendCounts, recvCounts []int) error {
	if err := t.checkCounts(&c, dst, src, sendCounts, recvCounts); err != nil {
		return err
	}
	if err := t.enter(&c); err != nil {
		return err
	}
	defer t.open.RUnlock()
	size := c.DType.Size()
	copyBounded(piece(dst, recvCounts, t.rank, size), piece(src, sendCounts, t.rank, size))
	// In round i everyone sends i ranks up and receives from i ranks down, letter by
	// letter, so that no rank waits for one that waits for it.
	for i := 1; i < t.ranks; i++ {
		to, from := t.peer(i), t.peer(t.ranks-i)
		out, in := piece(src, sendCounts, to, size), piece(dst, recvCounts, from, size)
		mine, theirs := c.Header, c.Header
		mine.Count, theirs.Count = uint64(sendCounts[to]), uint64(recvCounts[from])
		for k := range max(t.letters(len(out)), t.letters(len(in))) {
			if k < t.letters(len(out)) {
				if err := t.post(&c, mine, to, out, k); err != nil {
					return err
				}
			}
			if k < t.letters(len(in)) {
				if err := t.take(&c, theirs, from, in, k); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (t *Team) checkCounts(c *transport.Call, dst, src []byte, send, recv []int) error {
	if len(send) != t.ranks || len(recv) != t.ranks {
		return fmt.Errorf("shm: %s: counts for %d and %d ranks, the team has %d", c.Header, len(send), len(recv), t.ranks)
	}
	if send[t.rank] != recv[t.rank] {
		return fmt.Errorf("shm: %s: a rank sends %d elements to itself and receives %d", c.Header, send[t.rank], recv[t.rank])
	}
	out, in := 0, 0
	for r := range t.ranks {
		if send[r] < 0 || recv[r] < 0 {
			return fmt.Errorf("shm: %s: a negative count for rank %d", c.Header, t.members[r])
		}
		out, in = out+send[r], in+recv[r]
	}
	if err := arguments(c, out, src); err != nil {
		return err
	}
	return arguments(c, in, dst)
}

// piece is rank's part of x.
func piece(x []byte, counts []int, rank, size int) []byte {
	at := 0
	for _, n := range counts[:rank] {
		at += n
	}
	return x[at*size : (at+counts[rank])*size]
}

// Gather collects src, c.Count elements, of every rank in dst of root, in the order
// of ranks. dst counts on root alone; root's src may lie at its place in dst.
func (t *Team) Gather(c transport.Call, dst, src []byte, root int) error {
	return t.fan(c, dst, src, root, true)
}

// Scatter gives each rank its part of src of root: c.Count elements, in the order
// of ranks. src counts on root alone; root's dst may lie at its place in src.
func (t *Team) Scatter(c transport.Call, dst, src []byte, root int) error {
	return t.fan(c, src, dst, root, false)
}

// fan moves parts between whole, which root has, and part, which everyone has.
func (t *Team) fan(c transport.Call, whole, part []byte, root int, gather bool) error {
	if err := t.checkRoot(&c, root); err != nil {
		return err
	}
	if err := arguments(&c, int(c.Count), part); err != nil {
		return err
	}
	if t.rank == root {
		if err := arguments(&c, int(c.Count)*t.ranks, whole); err != nil {
			return err
		}
	}
	if err := t.enter(&c); err != nil {
		return err
	}
	defer t.open.RUnlock()
	n := len(part)
	post := gather != (t.rank == root)
	if t.rank != root {
		for k := range t.letters(n) {
			if err := t.move(post, &c, root, part, k); err != nil {
				return err
			}
		}
		return nil
	}
	own := whole[root*n:][:n]
	if gather {
		copyBounded(own, part)
	} else {
		copyBounded(part, own)
	}
	for k := range t.letters(n) {
		for i := 1; i < t.ranks; i++ {
			r := t.peer(i)
			if err := t.move(post, &c, r, whole[r*n:][:n], k); err != nil {
				return err
			}
		}
	}
	return nil
}

// move posts letter k of x to peer, or takes it from there.
func (t *Team) move(post bool, c *transport.Call, peer int, x []byte, k int) error {
	if post {
		return t.post(c, c.Header, peer, x, k)
	}
	return t.take(c, c.Header, peer, x, k)
}
