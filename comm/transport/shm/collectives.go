package shm

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
)

// enter starts a collective and waits until every rank called the same; the caller
// unlocks t.open.
func (t *Team) enter(c *transport.Call) error {
	if err := t.begin(); err != nil {
		return err
	}
	err := t.publish(c, 0, 0)
	if err == nil {
		_, err = t.agree(c)
	}
	if err != nil {
		t.open.RUnlock()
	}
	return err
}

func (t *Team) checkRoot(c *transport.Call, root int) error {
	if root < 0 || root >= t.ranks {
		return fmt.Errorf("shm: %s: root %d of a team of %d", c.Header, root, t.ranks)
	}
	return nil
}

// Barrier returns when every rank has called it.
func (t *Team) Barrier(c transport.Call) error {
	if err := t.enter(&c); err != nil {
		return err
	}
	t.open.RUnlock()
	return nil
}

// AllReduce replaces buf, c.Count elements, by the reduction over all ranks. It is
// fastest in memory from Alloc, at the same offset on every rank.
func (t *Team) AllReduce(c transport.Call, buf []byte) error {
	return t.AllReduceInto(c, buf, buf)
}

// AllReduceInto stores the reduction of src over all ranks in dst. dst is src or
// does not overlap it; src keeps its contents in the second case.
func (t *Team) AllReduceInto(c transport.Call, dst, src []byte) error {
	if err := arguments(&c, int(c.Count), dst, src); err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	defer t.open.RUnlock()
	n := len(src)
	if n <= t.oneShot {
		return t.allReduceSmall(&c, dst, src)
	}
	from, to := t.place(src), t.place(dst)
	same, entered, err := t.start(&c, from, to, from != private && to != private)
	if err != nil {
		return err
	}
	if same {
		return t.push(&c, to, from, n)
	}
	return t.mailbox(&c, reduction{dst: dst, src: src, per: shardBytes(n, t.ranks), to: toAll}, entered)
}

// ReduceScatter stores in dst, c.Count elements, this rank's part of the reduction
// of src over all ranks; src has Size parts. dst does not overlap src, or is this
// rank's part of it.
func (t *Team) ReduceScatter(c transport.Call, dst, src []byte) error {
	if err := arguments(&c, int(c.Count), dst); err != nil {
		return err
	}
	if err := arguments(&c, int(c.Count)*t.ranks, src); err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	defer t.open.RUnlock()
	from := t.place(src)
	same, entered, err := t.start(&c, from, private, from != private)
	if err != nil {
		return err
	}
	if same {
		return t.pullShard(&c, dst, from)
	}
	return t.mailbox(&c, reduction{dst: dst, src: src, per: len(dst), to: toOwn}, entered)
}

// AllGather stores src, c.Count elements, of every rank in dst of every rank, in
// the order of ranks. src does not overlap dst, or is this rank's part of it.
func (t *Team) AllGather(c transport.Call, dst, src []byte) error {
	if err := arguments(&c, int(c.Count), src); err != nil {
		return err
	}
	if err := arguments(&c, int(c.Count)*t.ranks, dst); err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	defer t.open.RUnlock()
	n, to := len(src), t.place(dst)
	same, entered, err := t.start(&c, private, to, to != private)
	if err != nil {
		return err
	}
	if same {
		return t.pushAll(&c, to, t.rank*n, n*t.ranks, src)
	}
	copyBounded(dst[t.rank*n:][:n], src)
	return t.spread(&c, dst, n, n, toAll, entered)
}

// Broadcast replaces buf, c.Count elements, by root's.
func (t *Team) Broadcast(c transport.Call, buf []byte, root int) error {
	if err := t.checkRoot(&c, root); err != nil {
		return err
	}
	if err := arguments(&c, int(c.Count), buf); err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	defer t.open.RUnlock()
	place := t.place(buf)
	same, entered, err := t.start(&c, place, place, place != private)
	if err != nil {
		return err
	}
	if same {
		return t.pullFrom(&c, buf, place, root)
	}
	return t.spread(&c, buf, len(buf), 0, root, entered)
}

// Reduce stores the reduction of src, c.Count elements, over all ranks in dst of
// root. dst counts on root alone, where it is src or does not overlap it.
func (t *Team) Reduce(c transport.Call, dst, src []byte, root int) error {
	if err := t.checkRoot(&c, root); err != nil {
		return err
	}
	if err := arguments(&c, int(c.Count), src); err != nil {
		return err
	}
	if t.rank == root {
		if err := arguments(&c, int(c.Count), dst); err != nil {
			return err
		}
	}
	if err := t.begin(); err != nil {
		return err
	}
	defer t.open.RUnlock()
	if err := t.publish(&c, private, private); err != nil {
		return err
	}
	return t.mailbox(&c, reduction{dst: dst, src: src, per: shardBytes(len(src), t.ranks), to: root}, false)
}

// start publishes a call. Where this rank's buffers allow direct access, it waits
// for the others: same says that theirs lie at the same places, entered that it
// waited. A rank with a private buffer need not wait, for then no rank finds all
// places alike.
func (t *Team) start(c *transport.Call, src, dst uint64, direct bool) (same, entered bool, err error) {
	if err := t.publish(c, src, dst); err != nil {
		return false, false, err
	}
	if !direct {
		return false, false, nil
	}
	same, err = t.agree(c)
	return same, true, err
}
