// Package transport holds what comm and its transports say to each other: which
// collective a message belongs to, and how a transport fails.
package transport

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Kind is a collective. The values travel in messages: append, never renumber.
type Kind uint8

const (
	AllReduce Kind = iota + 1
	ReduceScatter
	AllGather
	Broadcast
	Reduce
	Gather
	Scatter
	AllToAll
	Send
	Recv
	Barrier
	Alloc
)

var kindNames = [...]string{"", "AllReduce", "ReduceScatter", "AllGather", "Broadcast", "Reduce", "Gather", "Scatter", "AllToAll", "Send", "Recv", "Barrier", "Alloc"}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Op is how elements of several ranks become one.
type Op uint8

const (
	Sum Op = iota
	Avg
	Min
	Max
	Prod
)

var opNames = [...]string{"sum", "avg", "min", "max", "prod"}

func (o Op) String() string {
	if int(o) >= len(opNames) {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return opNames[o]
}

// Header says which call a message belongs to. Every message carries it; ranks
// that disagree on it have called different collectives, and the job ends.
type Header struct {
	Group uint32 // a hash of the group's members and creation order
	Seq   uint64 // calls on the group so far
	Kind  Kind
	Op    Op
	DType dtype.DType
	Root  int32  // -1 where the collective has none
	Count uint64 // elements: of the full array for AllReduce, Broadcast and Reduce, of one rank's part otherwise
}

// HeaderSize is the size of an encoded Header.
const HeaderSize = 32

// Encode writes h to the first HeaderSize bytes of b.
func (h Header) Encode(b []byte) {
	_ = b[HeaderSize-1]
	le := binary.LittleEndian
	le.PutUint32(b, h.Group)
	b[4], b[5], b[6], b[7] = byte(h.Kind), byte(h.Op), byte(h.DType), 0
	le.PutUint64(b[8:], h.Seq)
	le.PutUint64(b[16:], h.Count)
	le.PutUint32(b[24:], uint32(h.Root))
	le.PutUint32(b[28:], 0)
}

// Decode reads what Encode wrote.
func Decode(b []byte) Header {
	_ = b[HeaderSize-1]
	le := binary.LittleEndian
	return Header{
		Group: le.Uint32(b), Kind: Kind(b[4]), Op: Op(b[5]), DType: dtype.DType(b[6]),
		Seq: le.Uint64(b[8:]), Count: le.Uint64(b[16:]), Root: int32(le.Uint32(b[24:])),
	}
}

// String is the call as a person would write it: AllReduce(sum, f32, 1048576) #17.
func (h Header) String() string {
	s := h.Kind.String() + "("
	switch h.Kind {
	case AllReduce, ReduceScatter, Reduce:
		s += h.Op.String() + ", "
	}
	s += fmt.Sprintf("%s, %d", h.DType, h.Count)
	if h.Root >= 0 {
		role := "root"
		switch h.Kind {
		case Send:
			role = "to"
		case Recv:
			role = "from"
		}
		s += fmt.Sprintf(", %s %d", role, h.Root)
	}
	return fmt.Sprintf("%s) #%d", s, h.Seq)
}

// Traffic counts what went over a transport. The transport adds to it as it
// moves data, whoever made it reads it.
type Traffic struct {
	Sent, Received atomic.Int64 // bytes of the ranks' data, headers not counted
}

// Call is a collective under way on this rank: what it is, and until when.
type Call struct {
	Header
	Deadline time.Time
}

// MismatchError says that two ranks called different collectives.
type MismatchError struct {
	Rank, Peer   int // ranks of the group
	Mine, Theirs Header
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("rank %d called %s, rank %d called %s: every rank must make the same calls in the same order", e.Rank, e.Mine, e.Peer, e.Theirs)
}

// PeerError says that a peer cannot be reached any more.
type PeerError struct {
	Peer int // rank of the group
	Host string
	Err  error
}

func (e *PeerError) Error() string {
	if e.Host == "" {
		return fmt.Sprintf("rank %d: %v", e.Peer, e.Err)
	}
	return fmt.Sprintf("rank %d on %s: %v", e.Peer, e.Host, e.Err)
}

func (e *PeerError) Unwrap() error { return e.Err }

// TimeoutError says that a peer did not do its part of a call in time.
type TimeoutError struct {
	Peer int // rank of the group
	Call Header
	Wait time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("waited %s for rank %d in %s", e.Wait.Round(time.Millisecond), e.Peer, e.Call)
}

// Timeout makes TimeoutError a timeout in the sense of package net.
func (e *TimeoutError) Timeout() bool { return true }
