package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// vec's operations have the numbers of transport's.
var _ = [1]struct{}{}[int(transport.Sum)-int(vec.Sum)|int(transport.Avg)-int(vec.Avg)|int(transport.Min)-int(vec.Min)|int(transport.Max)-int(vec.Max)|int(transport.Prod)-int(vec.Prod)]

// begin starts a call; the caller unlocks t.open. So Close cannot unmap memory
// that a call uses.
func (t *Team) begin() error {
	t.open.RLock()
	if t.mem == nil {
		t.open.RUnlock()
		return ErrClosed
	}
	return nil
}

// publish shows the other ranks what this one calls, where its source and
// destination lie, and all data that it stored before.
func (t *Team) publish(c *transport.Call, src, dst uint64) error {
	if err := t.Err(); err != nil {
		return err
	}
	op := t.ops.Add(1)
	b := t.call(t.rank, op)
	c.Encode(b)
	binary.LittleEndian.PutUint64(b[placesOff-headerOff:], src)
	binary.LittleEndian.PutUint64(b[placesOff-headerOff+8:], dst)
	signal(t.entered(t.rank, op), op)
	return nil
}

// agree waits until every rank has published this call, and fails where one
// published another. It reports whether all ranks have their buffers at the same
// places.
//
// Each rank's header of call s is read before it is overwritten at s+2: that rank
// got there after everyone entered s+1, and so had left s.
func (t *Team) agree(c *transport.Call) (samePlaces bool, err error) {
	type published = [placesOff - headerOff + 16]byte
	op := t.ops.Load()
	mine := (*published)(t.call(t.rank, op))
	samePlaces = true
	for i := 1; i < t.ranks; i++ {
		r := t.peer(i)
		if err := t.wait(c, r, t.entered(r, op), op); err != nil {
			return false, err
		}
		theirs := (*published)(t.call(r, op))
		if *theirs == *mine {
			continue
		}
		samePlaces = false
		if [transport.HeaderSize]byte(theirs[:]) != [transport.HeaderSize]byte(mine[:]) {
			return false, t.fail(&failure{kind: mismatched, peer: r, mine: c.Header, theirs: transport.Decode(theirs[:])})
		}
	}
	return samePlaces, nil
}

// peer is the i-th rank after this one, so that not all turn to the same rank first.
func (t *Team) peer(i int) int {
	r := t.rank + i
	if r >= t.ranks {
		r -= t.ranks
	}
	return r
}

// await waits for the flag of every peer.
func (t *Team) await(c *transport.Call, k line, v uint32) error {
	for i := 1; i < t.ranks; i++ {
		r := t.peer(i)
		if err := t.wait(c, r, t.flag(r, k), v); err != nil {
			return err
		}
	}
	return nil
}

// arguments checks buffers against the call: wants[i] elements in bufs[i].
func arguments(c *transport.Call, elements int, bufs ...[]byte) error {
	size := c.DType.Size()
	if size == 0 {
		return fmt.Errorf("shm: %s: no such element type", c.Header)
	}
	if c.Op > transport.Prod {
		return fmt.Errorf("shm: %s: no such operation", c.Header)
	}
	for _, b := range bufs {
		if len(b) != elements*size {
			return fmt.Errorf("shm: %s: a buffer of %d bytes, want %d", c.Header, len(b), elements*size)
		}
	}
	return nil
}
