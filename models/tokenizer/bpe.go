package tokenizer

import (
	"container/heap"
	"strings"
	"unicode/utf8"
)

// space is how the vocabulary writes a space.
const space = "\u2581"

// bpe is byte-pair encoding over characters with bytes as the fallback.
type bpe struct {
	ids    map[string]int32 // vocabulary
	tokens []string         // by id, "" where there is none
	bytes  [256]int32       // the tokens <0x00> to <0xFF>
	byteOf map[int32]byte   // and back
	merges map[[2]int32]merge

	special  map[int32]bool // left out of decoded text
	added    []string       // recognised in a text before anything else, longest first
	bos, eos int32          // -1: none
}

// merge says that a pair becomes the token id; the lowest rank comes first.
type merge struct{ rank, id int32 }

func (t *bpe) VocabSize() int     { return len(t.tokens) }
func (t *bpe) BOS() (int32, bool) { return t.bos, t.bos >= 0 }
func (t *bpe) EOS() (int32, bool) { return t.eos, t.eos >= 0 }

func (t *bpe) Encode(text string) []int32 {
	var ids []int32
	for text != "" {
		at, token := t.nextAdded(text)
		if at > 0 {
			ids = append(ids, t.encodePlain(text[:at])...)
		}
		if token != "" {
			ids = append(ids, t.ids[token])
		}
		text = text[at+len(token):]
	}
	return ids
}

// nextAdded finds the first added token in text; without one it is at the end.
func (t *bpe) nextAdded(text string) (at int, token string) {
	at = len(text)
	for _, a := range t.added {
		if i := strings.Index(text, a); i >= 0 && i < at {
			at, token = i, a
		}
	}
	return at, token
}

// symbol is a piece of the text: a link in a list of pieces not yet merged.
type symbol struct {
	id         int32 // -1: merged into the one before
	prev, next int   // -1: none
}

// pair is a merge that was possible when it was pushed.
type pair struct {
	merge
	at          int // index of the left symbol
	left, right int32
}

// queue orders pairs by rank, and by place where ranks are equal.
type queue []pair

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].at < q[j].at
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(pair)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// encodePlain encodes a text without special tokens. The whole of it is one
// word, with a space before it.
func (t *bpe) encodePlain(text string) []int32 {
	symbols := t.symbols(space + strings.ReplaceAll(text, " ", space))
	var q queue
	consider := func(at int) {
		if at < 0 || symbols[at].next < 0 {
			return
		}
		left, right := symbols[at].id, symbols[symbols[at].next].id
		if m, ok := t.merges[[2]int32{left, right}]; ok {
			heap.Push(&q, pair{m, at, left, right})
		}
	}
	for i := range symbols {
		consider(i)
	}
	for len(q) > 0 {
		p := heap.Pop(&q).(pair)
		left := &symbols[p.at]
		if left.id != p.left || left.next < 0 || symbols[left.next].id != p.right {
			continue // an earlier merge took part of the pair
		}
		right := &symbols[left.next]
		left.id, right.id = p.id, -1
		left.next = right.next
		if left.next >= 0 {
			symbols[left.next].prev = p.at
		}
		consider(left.prev)
		consider(p.at)
	}
	var ids []int32
	for i := 0; i >= 0; i = symbols[i].next {
		ids = append(ids, symbols[i].id)
	}
	return ids
}

// symbols splits text into characters of the vocabulary, and the others into
// bytes.
func (t *bpe) symbols(text string) []symbol {
	var s []symbol
	add := func(id int32) { s = append(s, symbol{id: id, prev: len(s) - 1, next: len(s) + 1}) }
	for len(text) > 0 {
		_, n := utf8.DecodeRuneInString(text)
		if id, ok := t.ids[text[:n]]; ok {
			add(id)
		} else {
			for _, b := range []byte(text[:n]) {
				add(t.bytes[b])
			}
		}
		text = text[n:]
	}
	s[len(s)-1].next = -1
	return s
}

func (t *bpe) Decode(ids []int32) string {
	var text strings.Builder
	var run []byte // bytes of characters outside the vocabulary
	flush := func() {
		if utf8.Valid(run) {
			text.Write(run)
		} else {
			for range run {
				text.WriteRune(utf8.RuneError)
			}
		}
		run = run[:0]
	}
	for _, id := range ids {
		if id < 0 || int(id) >= len(t.tokens) || t.special[id] {
			continue
		}
		if b, ok := t.byteOf[id]; ok {
			run = append(run, b)
			continue
		}
		flush()
		text.WriteString(strings.ReplaceAll(t.tokens[id], space, " "))
	}
	flush()
	return strings.TrimPrefix(text.String(), " ")
}
