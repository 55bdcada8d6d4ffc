package comm

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Staged is what staged makes of calls: they go through pinned memory of the host.
const Staged Algorithm = "staged"

// slots is how many pieces are on their way through the host at once: some that have come
// from the GPU, one that travels, and one that goes back. It is a power of two, for the
// numbers of pieces wrap.
const slots = 4

// slotBytes is the room for a piece, a variable for tests. Larger ones leave the links idle
// for longer while the first piece comes and the last one goes, smaller ones cost more
// steps.
var slotBytes = 4<<20 + gap

// staged moves the memory of GPUs through the host's, where neither NCCL can be had nor
// the GPUs reach each other, as between hosts.
//
// A call goes in pieces, see passage. The caller's stream copies a piece into a slot of
// pinned memory and writes its number to a word. routineProxy sees that, carries out the
// piece over an engine of host memory, in place in the slot, and writes the number to
// another word, for which the stream waits before it copies the results back:
//
//	stream   in 0 | in 1 | in 2 | in 3 | wait 0, out 0 | in 4 | wait 1, out 1 | ...
//	proxy          piece 0          | piece 1          | piece 2 ...
//
// The engine of host memory is staged's own, with links of its own: calls of the two kinds
// do not wait for each other. Its messages carry the header of the user's call.
type staged struct {
	*relay
	why     error  // neither NCCL nor the GPUs themselves move their memory
	noCards string // why network cards do not; empty where they do, see gpuDirect

	over   engine
	memory []byte // the slots
	room   int    // bytes of a slot
	unpin  func() error

	passages *calls[passage] // for routineProxy
}

// The words, beside wordLeft.
const (
	wordStaged  = wordLeft + wordBytes*(iota+1) // by the stream: the latest piece that is in its slot
	wordMoved                                   // by routineProxy: the latest piece whose results are in its slot
	stagedWords = iota + 1
)

// joinStaged makes the engine; why says what else there could be, and is not.
func joinStaged(ctx context.Context, g *Group, ex exchangeUnder, why error) (_ *staged, err error) {
	e := &staged{why: why, room: slotBytes, passages: newCalls[passage]()}
	if e.relay, err = newRelay(g, "memory of GPUs through the host", stagedWords, wordMoved); err != nil {
		return nil, err
	}
	ex.prefix += "staged/"
	var own wires // the bytes of calls are counted as the GPU's
	if e.over, err = g.wire(ctx, ex, &own); err == nil {
		err = e.takeSlots(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", e.what, err), e.release())
	}
	go e.routineProxy()
	return e, nil
}

// takeSlots allocates memory that the links move without a copy, as far as they have such,
// and pins it for the GPU. All ranks meet there.
func (e *staged) takeSlots(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	h := transport.Header{Group: e.g.id, Kind: transport.Alloc, DType: dtype.U8, Root: -1, Count: uint64(slots * e.room)}
	c := call{Call: transport.Call{Header: h, Deadline: deadline}, wire: h, memory: &e.memory}
	leave := context.AfterFunc(ctx, func() { e.over.abort(context.Cause(ctx)) })
	err := e.over.run(&c)
	if !leave() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return e.g.explain(&c, err)
	}
	e.unpin, err = e.dev.Register(e.memory)
	return err
}

func (e *staged) algorithm(*call) Algorithm { return Staged }

func (e *staged) String() string {
	return fmt.Sprintf("staged in pinned memory of the host, over %s, %d ranks", e.g.linkTo(-1), e.g.o.Size)
}

// link names what carries calls.
func (e *staged) link() string { return "pinned host memory and " + e.g.linkTo(-1) }

func (e *staged) enqueue(s *cuda.Stream, c *call) (*cuda.Event, error) {
	return placed(s, e.make(s, c))
}

// make enqueues the copies of a call, and hands its pieces to routineProxy.
func (e *staged) make(s *cuda.Stream, c *call) error {
	return e.relay.enqueue(s, func(before uint32) uint32 {
		p := newPassage(c, e.g.o.Size, e.g.o.Rank, e.room, before)
		last := p.number(p.pieces - 1)
		e.latest.Store(last)
		e.passages.put(p)
		const behind = slots - 1
		for i := range p.pieces + behind {
			if i < p.pieces {
				e.in(s, p, i)
			}
			if i >= behind {
				e.out(s, p, i-behind)
			}
		}
		return last
	})
}

// in copies this rank's part of piece i into its slot.
func (e *staged) in(s *cuda.Stream, p *passage, i int) {
	_, src := p.place(i, e.slot(p.number(i)))
	p.each(p.src, i, func(_ int, on device.Buffer) {
		e.hand.copy(s, device.Host(src[:on.Len()]), on)
		src = src[on.Len():]
	})
	e.hand.write(s, e.addr(wordStaged), p.number(i))
}

// out copies the results of piece i to the GPU.
func (e *staged) out(s *cuda.Stream, p *passage, i int) {
	e.hand.wait(s, e.addr(wordMoved), p.number(i))
	dst, _ := p.place(i, e.slot(p.number(i)))
	p.each(p.dst, i, func(part int, on device.Buffer) {
		if !p.there(part) {
			e.hand.copy(s, on, device.Host(dst[:on.Len()]))
		}
		dst = dst[on.Len():]
	})
}

func (e *staged) slot(piece uint32) []byte {
	return e.memory[int(piece%slots)*e.room:][:e.room:e.room]
}

// abort ends the proxy's call, and then lets the streams go on, which have failed. It
// returns when they have left the slots.
func (e *staged) abort() error {
	err := errors.New("the group has failed")
	e.fail(err)
	e.over.abort(err)
	stuck := e.end() // which must not keep the streams
	if stuck == nil {
		e.over.stop()
	}
	return errors.Join(stuck, e.letGo())
}

// close releases everything, unless routineProxy does not end: what it uses is lost then.
func (e *staged) close() error {
	if err := e.end(); err != nil {
		return err
	}
	return e.release()
}

// release gives back what the engine holds.
func (e *staged) release() (err error) {
	if e.unpin != nil {
		err = e.unpin()
	}
	err = errors.Join(err, e.dev.Free(e.words))
	if e.over != nil {
		err = errors.Join(err, e.over.close())
	}
	return err
}
