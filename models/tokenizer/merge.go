package tokenizer

import "math"

// merge is what a pair of ids becomes: the rank of the merge in the upper half, the
// id of the result in the lower. The lowest rank is merged first.
type merge uint64

const noMerge merge = math.MaxUint64

func newMerge(rank, id int32) merge { return merge(rank)<<32 | merge(uint32(id)) }

func (m merge) id() int32 { return int32(uint32(m)) }

// merges has the merge of each pair of ids that has one: a hash table with open
// addressing, at most half full.
type merges struct {
	slots []mergeSlot // a power of two of them
	shift uint        // of the hash, to the index of a slot
}

type mergeSlot struct {
	pair  uint64 // left id in the upper half, right id in the lower
	merge merge  // noMerge: the slot is empty
}

func newMerges(n int) *merges {
	bits := uint(4)
	for 1<<bits < 2*n {
		bits++
	}
	m := &merges{slots: make([]mergeSlot, 1<<bits), shift: 64 - bits}
	for i := range m.slots {
		m.slots[i].merge = noMerge
	}
	return m
}

// slot is that of a pair, or the empty one where it would be.
func (m *merges) slot(left, right int32) *mergeSlot {
	pair := uint64(uint32(left))<<32 | uint64(uint32(right))
	// Multiplication by the golden ratio spreads pairs over the upper bits.
	for i := pair * 0x9e3779b97f4a7c15 >> m.shift; ; i = (i + 1) & uint64(len(m.slots)-1) {
		s := &m.slots[i]
		if s.merge == noMerge || s.pair == pair {
			return s
		}
	}
}

func (m *merges) get(left, right int32) merge { return m.slot(left, right).merge }

// set gives a pair its merge. At most as many pairs as newMerges was told may be set.
func (m *merges) set(left, right int32, to merge) {
	*m.slot(left, right) = mergeSlot{uint64(uint32(left))<<32 | uint64(uint32(right)), to}
}

// longWord is from where on a queue is faster than looking through all pairs.
const longWord = 192

// apply merges the pair of the lowest rank, the leftmost first, until none is left.
// It works in place and returns what remains of ids. The buffer pairs is scratch.
func (m *merges) apply(ids []int32, pairs *[]merge) []int32 {
	if len(ids) < 2 {
		return ids
	}
	if len(ids) > longWord {
		return m.applyQueued(ids)
	}
	p := (*pairs)[:0]
	for i := range ids[:len(ids)-1] {
		p = append(p, m.get(ids[i], ids[i+1]))
	}
	*pairs = p
	for {
		best, at := noMerge, 0
		for i, v := range p {
			if v < best {
				best, at = v, i
			}
		}
		if best == noMerge {
			return ids
		}
		ids[at] = best.id()
		ids = append(ids[:at+1], ids[at+2:]...)
		p = append(p[:at], p[at+1:]...)
		if at > 0 {
			p[at-1] = m.get(ids[at-1], ids[at])
		}
		if at < len(p) {
			p[at] = m.get(ids[at], ids[at+1])
		}
	}
}

// symbol is a piece of a word: a link in a list of pieces not yet merged.
type symbol struct {
	id         int32 // -1: merged into the one before
	prev, next int32 // -1: none
}

// queued is a merge that was possible when it was pushed.
type queued struct {
	merge
	at          int32 // index of the left symbol
	left, right int32
}

// queue is a heap: the lowest rank comes first, the leftmost where ranks are equal.
type queue []queued

func (q queue) less(i, j int) bool {
	return q[i].merge < q[j].merge || q[i].merge == q[j].merge && q[i].at < q[j].at
}

func (q *queue) push(item queued) {
	*q = append(*q, item)
	h := *q
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (q *queue) pop() queued {
	h := *q
	first, end := h[0], len(h)-1
	h[0] = h[end]
	h = h[:end]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < end; child++ {
			if h.less(child, least) {
				least = child
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	*q = h
	return first
}

// applyQueued is apply in n log n steps, for words of any length.
func (m *merges) applyQueued(ids []int32) []int32 {
	symbols := make([]symbol, len(ids))
	for i, id := range ids {
		symbols[i] = symbol{id, int32(i - 1), int32(i + 1)}
	}
	symbols[len(symbols)-1].next = -1
	var q queue
	consider := func(at int32) {
		if at < 0 || symbols[at].next < 0 {
			return
		}
		left, right := symbols[at].id, symbols[symbols[at].next].id
		if to := m.get(left, right); to != noMerge {
			q.push(queued{to, at, left, right})
		}
	}
	for i := range symbols {
		consider(int32(i))
	}
	for len(q) > 0 {
		p := q.pop()
		left := &symbols[p.at]
		if left.id != p.left || left.next < 0 || symbols[left.next].id != p.right {
			continue // an earlier merge took part of the pair
		}
		right := &symbols[left.next]
		left.id, right.id = p.id(), -1
		left.next = right.next
		if left.next >= 0 {
			symbols[left.next].prev = p.at
		}
		consider(left.prev)
		consider(p.at)
	}
	out := ids[:0]
	for i := int32(0); i >= 0; i = symbols[i].next {
		out = append(out, symbols[i].id)
	}
	return out
}
