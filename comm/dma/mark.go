package dma

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// stamps is how many calls are remembered, more than a stream takes before it makes the
// host wait. It divides 1<<16.
const stamps, stampBytes = 4096, 8

// Mark is a collective that kernels make, which tell the host themselves when it begins and
// ends. An event costs more time of the GPU and of the host than a small call takes.
//
// A stamp is one word, so that it is there as a whole or not at all: the GPU's time in
// nanoseconds above 16 bits of the call's number. Those of later calls take its place. They
// follow each other, and so tell as well that this one has ended.
type Mark struct {
	team        *Team
	stream      *cuda.Stream
	first, last uint32 // its kernels
	through     uint32 // the blocks that have ended when it has
}

// mark notes a call whose kernels are the latest, from number first on.
func (t *Team) mark(s *cuda.Stream, first uint32) {
	t.latest = Mark{team: t, stream: s, first: first, last: t.calls, through: t.blocks[collectives]}
}

// Latest is the Mark of the latest Exchange or Direct that launched kernels, but for
// AllToAllV, Send and Recv, which have none.
func (t *Team) Latest() Mark {
	t.enqueuing.Lock()
	defer t.enqueuing.Unlock()
	return t.latest
}

// Began reports whether the call has begun. The error is its stream's.
func (m Mark) Began() (bool, error) {
	_, ok := m.team.stamp(0, m.first)
	return ok, m.broken()
}

// Ended reports whether the call has ended and its results are there. The error is its
// stream's: a call that was aborted, behind its stream's failure, has not ended.
func (m Mark) Ended() (bool, error) {
	_, ok := m.team.stamp(1, m.last)
	err := m.broken()
	return ok && err == nil, err
}

// broken is the stream's error. That work came after it was closed is none: to be closed it
// has waited for the call.
func (m Mark) broken() error {
	if err := m.stream.Err(); !errors.Is(err, device.ErrClosed) {
		return err
	}
	return nil
}

// Took is the GPU's time from the begin of a call that has ended to its end; 0 where so
// many calls came behind it that it is not known.
func (m Mark) Took() time.Duration {
	began, _ := m.team.stamp(0, m.first)
	ended, _ := m.team.stamp(1, m.last)
	if began == 0 || ended == 0 {
		return 0
	}
	return time.Duration((ended - began) << 16 >> 16) // of which the upper bits are lost
}

// Precede makes s wait for the call.
func (m Mark) Precede(s *cuda.Stream) {
	m.team.machine.wait(s, m.team.ended().Addr()+collectives*flagBytes, m.through)
}

// stamp is when call began or ended. ok: it, or a later one, has; at is 0 in that case.
func (t *Team) stamp(which int, call uint32) (at uint64, ok bool) {
	words := device.View[uint64](t.words.Slice(stampsAt, wordsBytes))
	v := atomic.LoadUint64(&words[which*stamps+int(call%stamps)])
	switch newer := int16(uint16(v) - uint16(call)); {
	case v == 0 || newer < 0:
		return 0, false
	case newer > 0:
		return 0, true
	}
	return v >> 16, true
}
