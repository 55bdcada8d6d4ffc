package dma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// state is what a Mark says: whether its call has begun and ended, and whether it knows for
// how long it ran.
type state struct{ began, ended, timed bool }

func stateOf(m Mark) (s state, err error) {
	began, err := m.Began()
	ended, err2 := m.Ended()
	return state{began, ended, m.Took() > 0}, errors.Join(err, err2)
}

// says compares a Mark with what it should say.
func says(when string, m Mark, want state) error {
	got, err := stateOf(m)
	if err != nil || got != want {
		return fmt.Errorf("%s: %+v, %v; want %+v", when, got, err, want)
	}
	return nil
}

// sum makes an AllReduce of n floats.
func sum(team *Team, s *cuda.Stream, b device.Buffer, n int) error {
	h := transport.Header{Kind: transport.AllReduce, DType: dtype.F32, Root: -1, Count: uint64(n)}
	return team.Exchange(s, &Call{Header: h, To: b.Slice(0, 4*n), From: b.Slice(0, 4*n)})
}

// Calls say when they begin and end, where their numbers wrap too, and a call of several
// rounds when the first begins and the last ends.
func TestMarksEmulated(t *testing.T) {
	const n, rounds = 2, 3
	elems := (inbox{n}.room()*n*(rounds-1) + 1024) / 4
	for _, before := range []uint32{0, 1<<16 - 3, 1<<32 - 3} {
		teams := emulated(t, n)
		for _, team := range teams { // as if so many calls had been made
			team.calls = before
			clear(view(team.words)[stampsAt:])
			flags := view(team.box.own)[:2*MaxRanks*maxBlocks*flagBytes]
			for at := 0; at < len(flags); at += flagBytes {
				binary.NativeEndian.PutUint32(flags[at:], before)
			}
		}
		ranks(t, n, func(rank int) error {
			team := teams[rank]
			s, memory, _, free, err := room(team, 4*elems)
			if err != nil {
				return err
			}
			began := time.Now()
			var small, large Mark
			for range 4 {
				if err := sum(team, s, memory, 256); err != nil {
					return err
				}
				small = team.Latest()
			}
			next := small // of a call that is not made
			next.first, next.last = team.calls+1, team.calls+1
			if err := errors.Join(says("behind a call", small, state{true, true, true}), says("before a call", next, state{})); err != nil {
				return err
			}
			if err := sum(team, s, memory, elems); err != nil {
				return err
			}
			large = team.Latest()
			if got := large.last - large.first + 1; got != rounds {
				return fmt.Errorf("a call of %d bytes took %d kernels, want %d", 4*elems, got, rounds)
			}
			half := large // which goes on
			half.last++
			if err := errors.Join(says("behind a large call", large, state{true, true, true}), says("in a large call", half, state{true, false, false})); err != nil {
				return err
			}
			if all := time.Since(began); small.Took()+large.Took() > all || small.Took() >= large.Took() {
				return fmt.Errorf("%v and %v of %v", small.Took(), large.Took(), all)
			}
			return free()
		})
	}
}

// Later calls take the places of earlier ones, and tell that those have ended.
func TestMarksOfLongAgoEmulated(t *testing.T) {
	const n = 2
	teams := emulated(t, n)
	ranks(t, n, func(rank int) error {
		team := teams[rank]
		s, memory, _, free, err := room(team, 64)
		if err != nil {
			return err
		}
		var first Mark
		for i := range stamps + 1 {
			if err := sum(team, s, memory, 1); err != nil {
				return err
			}
			if i == 0 {
				first = team.Latest()
			}
		}
		return errors.Join(says("one lap later", first, state{true, true, false}), says("now", team.Latest(), state{true, true, true}), free())
	})
}

// A stream waits for calls on another one.
func TestMarksPrecedeEmulated(t *testing.T) {
	const n = 2
	teams := emulated(t, n)
	ranks(t, n, func(rank int) error {
		team := teams[rank]
		s, memory, _, free, err := room(team, 1<<12)
		if err != nil {
			return err
		}
		other, err := newStream(team.d, "other")
		if err != nil {
			return err
		}
		if err := sum(team, s, memory, 1<<10); err != nil {
			return err
		}
		team.Latest().Precede(other) // does not come back before the call has ended
		later := team.Latest()
		later.through++
		blocks := make(chan uint32) // that had ended when the stream went on
		go func() {
			later.Precede(other)
			blocks <- binary.NativeEndian.Uint32(view(team.ended()))
		}()
		if err := sum(team, s, memory, 1); err != nil {
			return err
		}
		if n := <-blocks; n < later.through {
			return fmt.Errorf("a stream that waits for a call whose end is that of block %d went on at %d", later.through, n)
		}
		return errors.Join(other.Close(), free())
	})
}

// A call that has ended on a stream has ended when that is closed, whatever comes after.
func TestMarksOfClosedStreamsEmulated(t *testing.T) {
	teams := emulated(t, 2)
	ranks(t, 2, func(rank int) error {
		team := teams[rank]
		s, memory, host, _, err := room(team, 64)
		if err != nil {
			return err
		}
		if err := errors.Join(sum(team, s, memory, 1), s.Close()); err != nil {
			return err
		}
		s.Copy(memory, memory)
		if !errors.Is(s.Err(), device.ErrClosed) {
			return fmt.Errorf("work on a closed stream: %v", s.Err())
		}
		return errors.Join(says("behind a closed stream", team.Latest(), state{true, true, true}), team.d.Free(memory), team.d.Free(host))
	})
}

// What has ended on a stream that failed may have been aborted.
func TestMarksOfFailedStreamsEmulated(t *testing.T) {
	teams := emulated(t, 2)
	ranks(t, 2, func(rank int) error {
		team := teams[rank]
		s, memory, host, _, err := room(team, 64)
		if err != nil {
			return err
		}
		if err := errors.Join(sum(team, s, memory, 1), says("behind a call", team.Latest(), state{true, true, true})); err != nil {
			return err
		}
		broken := errors.New("broken")
		s.Fail(broken)
		if there, err := team.Latest().Ended(); there || !errors.Is(err, broken) {
			return fmt.Errorf("%v, %w", there, err)
		}
		s.Close() // whose error is broken
		return errors.Join(team.d.Free(memory), team.d.Free(host))
	})
}
