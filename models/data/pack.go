package data

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/gorun-dev/gorun/models"
)

// pack puts pieces of the given lengths, 1 to room each, into sequences of room
// positions: the longest first, each to where it leaves the least room (best fit
// decreasing). Pieces of one length come in an order that the seed decides, so that
// neighbours of a file do not lie together. It returns the pieces, one sequence
// behind the other, and where in this list each sequence begins, and the end.
func pack(lengths []int32, room int, seed uint64) (pieces, starts []int32) {
	order, draw := make([]int32, len(lengths)), make([]uint64, len(lengths))
	rand := models.NewRand(seed, "data.pack")
	for i := range order {
		order[i], draw[i] = int32(i), rand.Uint64(uint64(i))
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(lengths[b], lengths[a]), cmp.Compare(draw[a], draw[b]), cmp.Compare(a, b))
	})
	in := make([]int32, len(lengths)) // the sequence of each piece
	sequences := newShelf(room)
	for _, i := range order {
		in[i] = sequences.put(int(lengths[i]))
	}
	// Counting sort by sequence; within one the longest comes first.
	starts = make([]int32, sequences.n+1)
	for _, s := range in {
		starts[s+1]++
	}
	for s := range sequences.n {
		starts[s+1] += starts[s]
	}
	next := slices.Clone(starts)
	pieces = make([]int32, len(lengths))
	for _, i := range order {
		pieces[next[in[i]]] = i
		next[in[i]]++
	}
	return pieces, starts
}

// A shelf is sequences in the order of the room that they have left.
type shelf struct {
	room int
	n    int32    // sequences
	top  []int32  // by room left, the sequence that came last, or -1
	next []int32  // of each sequence, the one below it, or -1
	some []uint64 // a bit a room: top has a sequence
}

func newShelf(room int) *shelf {
	return &shelf{room: room, top: slices.Repeat([]int32{-1}, room+1), some: make([]uint64, room/64+1)}
}

// put finds the sequence with the least room that takes length, or a new one.
func (s *shelf) put(length int) int32 {
	left := s.least(length)
	var at int32
	if left < 0 {
		at, left = s.n, s.room
		s.n++
		s.next = append(s.next, -1)
	} else {
		at = s.top[left]
		if s.top[left] = s.next[at]; s.top[left] < 0 {
			s.some[left/64] &^= 1 << (left % 64)
		}
	}
	if left -= length; left > 0 {
		s.next[at], s.top[left] = s.top[left], at
		s.some[left/64] |= 1 << (left % 64)
	}
	return at
}

// least is the smallest room from length on that some sequence has, or -1.
func (s *shelf) least(length int) int {
	word := length / 64
	for mask := ^uint64(0) << (length % 64); word < len(s.some); mask = ^uint64(0) {
		if w := s.some[word] & mask; w != 0 {
			return word*64 + bits.TrailingZeros64(w)
		}
		word++
	}
	return -1
}
