package comm

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// GPUDirect is what gpuDirect makes of calls: network cards read and write GPU memory. It
// is no option.
const GPUDirect Algorithm = "gpudirect"

const (
	// directSlots is how many messages to a rank are on their way at once: some that are
	// made, some that travel, some that are taken in. A peer takes no more announcements.
	directSlots = 8
	// directBlocks is enough for most of the memory's speed, and leaves multiprocessors to
	// the computation beside it.
	directBlocks, directThreads = 64, 512
)

// directSlot is the room for a message, a variable for tests. A card of 400 Gb/s takes some
// 40 µs for one.
var directSlot = 2 << 20

// GPUDirectMemory is the bytes of GPU memory that a group takes for its slots where network
// cards move the memory of its GPUs.
func GPUDirectMemory() int { return 2 * directSlots * directSlot }

// gpuDirect moves the memory of GPUs of several hosts by their network cards, which read
// and write it: no data passes through the hosts' memory.
//
// Ranks form a ring, see route. The cards know slots in memory of the GPUs alone: the
// user's arrays may go away at any time. A message goes so:
//
//	stream of the sender    copies or sums into a slot, and writes its place to a word
//	routineProxy            sees that, and posts the write to the receiver's slot
//	the receiver's          sees that it is there, and writes to a word how far its stream may go
//	stream of the receiver  waits for that, copies or sums, and writes its place to a word
//	the receiver's          sees that the slot is free, and posts a receive for it
//
// Nobody waits for the end of a call, but for the messages that it needs: directSlots of
// them are under way, and the hosts' goroutines look at words and completions alone.
//
// It has the collectives of equal parts, of all types and operations. All others are made
// by the engine under it, which goes through the hosts: whose they are follows from the
// call alone, so that all ranks find the same.
type gpuDirect struct {
	*relay
	under *staged
	fold  folds

	mesh  *rdma.Mesh
	slots device.Buffer
	known rdma.GPUMemory // the slots, as the card knows them
	seen  place          // for whom routineProxy waits

	flush func() error // makes what the card has written visible to the GPU; nil: it is
	how   string       // flush in words

	routes *calls[journey] // for routineProxy
}

// The words, beside wordLeft.
const (
	wordDone    = wordLeft + wordBytes*(iota+1) // by the stream: the latest place that is done
	wordGo                                      // by routineProxy: the latest place to which the stream may go
	directWords = iota + 1
)

// journey is a call under way. Its places are numbered among those of all calls, and there
// is one in front of them: that the stream has come to the call, and that the call before
// has left the slots.
type journey struct {
	*route
	before uint32 // the last place of the call before
}

func (j *journey) number(i int) uint32 { return j.before + 2 + uint32(i) }

const front = -1

// takes tells whose a call is.
func (e *gpuDirect) takes(c *call) bool {
	switch c.Kind {
	case transport.AllReduce, transport.ReduceScatter, transport.AllGather, transport.Broadcast:
		return true
	case transport.AllToAll:
		return c.sendCounts == nil // else ranks know only of what they themselves send and get
	}
	return false
}

func (e *gpuDirect) algorithm(c *call) Algorithm {
	if e.takes(c) {
		return GPUDirect
	}
	return e.under.algorithm(c)
}

// link names what carries its own calls.
func (e *gpuDirect) link() string { return fmt.Sprintf("gpudirect over rdma (%s)", e.mesh.Port()) }

func (e *gpuDirect) String() string {
	return fmt.Sprintf("gpudirect over rdma (%s), by %s, %d ranks, for all-reduce, reduce-scatter, all-gather, broadcast and all-to-all of equal parts; the rest %s",
		e.mesh.Port(), e.known.Path, e.g.o.Size, e.under)
}

func (e *gpuDirect) enqueue(s *cuda.Stream, c *call) (*cuda.Event, error) {
	if !e.takes(c) {
		return e.under.enqueue(s, c)
	}
	return placed(s, e.relay.enqueue(s, func(before uint32) uint32 { return e.make(s, c, before) }))
}

// make enqueues this rank's part of a call, and hands it to routineProxy. The first places,
// as many as may be under way, only fill slots.
func (e *gpuDirect) make(s *cuda.Stream, c *call, before uint32) (last uint32) {
	j := &journey{newRoute(c, e.g.o.Size, e.g.o.Rank, directSlot, directSlots), before}
	last = j.number(j.places() - 1)
	e.latest.Store(last)
	e.routes.put(j)
	e.hand.write(s, e.addr(wordDone), j.number(front))
	e.hand.wait(s, e.addr(wordGo), j.number(front))
	e.carryOut(s, c, j.inside())
	for i := range j.places() {
		from, _ := j.recv(i - j.window)
		to, _ := j.send(i)
		if from == none && to == none {
			continue
		}
		if i >= j.window {
			e.hand.wait(s, e.addr(wordGo), j.number(i))
		}
		e.carryOut(s, c, j.moves(i, e.in(i-j.window), e.out(i)))
		e.hand.write(s, e.addr(wordDone), j.number(i))
	}
	return last
}

func (e *gpuDirect) carryOut(s *cuda.Stream, c *call, list []move) {
	for _, m := range list {
		switch {
		case m.dst.Len() == 0:
		case m.b.Len() == 0:
			e.hand.copy(s, m.dst, m.a)
		default:
			e.fold.enqueue(e.hand, s, c, m, e.g.o.Size)
		}
	}
}

// in and out are the slots of a call's message that comes, and of one that goes.
func (e *gpuDirect) in(message int) device.Buffer { return e.slot(e.inAt(message)) }

func (e *gpuDirect) out(message int) device.Buffer { return e.slot(e.outAt(message)) }

func (e *gpuDirect) slot(at int) device.Buffer { return e.slots.Slice(at, at+directSlot) }

func (e *gpuDirect) inAt(message int) int { return mod(message, directSlots) * directSlot }

func (e *gpuDirect) outAt(message int) int { return e.inAt(message) + directSlots*directSlot }

func (e *gpuDirect) failed() error {
	if err := e.relay.failed(); err != nil {
		return err
	}
	return e.under.failed()
}

// abort ends the calls of both engines at the same time, for on a stream each may lie
// behind the other's.
func (e *gpuDirect) abort() error {
	var own, under error
	var ending sync.WaitGroup
	ending.Go(func() { own = e.abortOwn() }) // ends within twice patience
	under = e.under.abort()
	ending.Wait()
	return errors.Join(own, under)
}

func (e *gpuDirect) abortOwn() error {
	err := errors.New("the group has failed")
	e.fail(err)
	e.mesh.Abort(err)
	stuck := e.end() // which must not keep the streams
	return errors.Join(stuck, e.letGo())
}

// close releases everything, unless routineProxy does not end: what it uses is lost then.
func (e *gpuDirect) close() error {
	var left error
	if errors.Is(e.g.Err(), ErrClosed) { // else abort has ended what was under way
		left = e.drain()
	}
	err := e.end()
	if err == nil {
		err = e.release()
	}
	return errors.Join(left, err, e.under.close())
}

// drain waits until routineProxy is through with all calls, which their deadlines bound: a
// stream is done with a message that it sends once that lies in a slot.
func (e *gpuDirect) drain() error {
	look := gaze{since: time.Now()}
	for !e.reached(wordGo, e.latest.Load()+1) {
		if !look.again(e.stopped) {
			return e.relay.failed()
		}
	}
	return nil
}

// release gives back what the engine holds, but for the one under it. The card forgets the
// slots before they are freed.
func (e *gpuDirect) release() (err error) {
	if e.mesh != nil {
		err = e.mesh.Close()
	}
	return errors.Join(err, e.fold.close(), e.dev.Free(e.slots), e.dev.Free(e.words))
}
