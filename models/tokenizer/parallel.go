package tokenizer

import (
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// chunkSize is how much text a worker takes at a time, in bytes.
const chunkSize = 256 << 10

// EncodeParallel is Encode, by several workers. The ids are the same: text is cut
// only where words end whatever stands around. A text without such places, or a
// tokenizer that has none, is encoded in one piece.
func (t *BPE) EncodeParallel(text string, workers int) []int32 {
	return slices.Concat(t.encodeChunks(text, true, workers)...)
}

// EncodeReader encodes a text that need not fit into memory, by several workers,
// and gives the ids to emit, in order; their concatenation is what Encode gives for
// the whole. It ends with the first error of r or emit.
func (t *BPE) EncodeReader(r io.Reader, workers int, emit func(ids []int32) error) error {
	workers = max(workers, 1)
	buffer := make([]byte, 2*chunkSize*workers)
	held := 0 // bytes in buffer
	for first := true; ; {
		n, err := io.ReadFull(r, buffer[held:])
		held += n
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return err
		}
		text := string(buffer[:held])
		if !end {
			cut := t.lastCut(text)
			if cut == 0 {
				buffer = append(buffer, make([]byte, len(buffer))...)
				continue
			}
			text = text[:cut]
		}
		for _, ids := range t.encodeChunks(text, first, workers) {
			if err := emit(ids); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
		held = copy(buffer, buffer[len(text):held])
		first = false
	}
}

// chunks is a text that workers encode.
type chunks struct {
	t     *BPE
	texts []string
	first bool // the first of them begins the text
	next  atomic.Int64
	ids   [][]int32
	done  sync.WaitGroup
}

func (t *BPE) encodeChunks(text string, first bool, workers int) [][]int32 {
	c := &chunks{t: t, first: first}
	for text != "" {
		cut := t.nextCut(text, chunkSize)
		c.texts = append(c.texts, text[:cut])
		text = text[cut:]
	}
	c.ids = make([][]int32, len(c.texts))
	for range min(max(workers, 1), len(c.texts)) {
		c.done.Go(c.work)
	}
	c.done.Wait()
	return c.ids
}

// work encodes chunks until none is left. encodeChunks starts it, once for each
// worker, and waits for its end.
func (c *chunks) work() {
	for {
		i := int(c.next.Add(1)) - 1
		if i >= len(c.texts) {
			return
		}
		c.ids[i] = c.t.encode(c.texts[i], i == 0 && c.first, false)
	}
}

// nextCut is the first place from at on where text may be cut, or its end.
func (t *BPE) nextCut(text string, at int) int {
	for ; at < len(text); at++ {
		if t.cutHere(text, at) {
			return at
		}
	}
	return len(text)
}

// lastCut is the last place where text, of which more may follow, may be cut, or 0.
func (t *BPE) lastCut(text string) int {
	for at := len(text) - utf8.UTFMax; at > 0; at-- {
		if t.cutHere(text, at) {
			return at
		}
	}
	return 0
}

// cutHere says that text may be cut before at: between a Latin letter and a space,
// or, where words are found by a pattern, between the end of a line that is not
// blank and a letter. No word of any pattern reaches over such a place or depends on
// what follows it, no added token does either (spec.cuttable), and nothing composes
// with a space, or with the end of a line.
func (t *BPE) cutHere(text string, at int) bool {
	if !t.cuttable {
		return false
	}
	switch before := text[at-1]; {
	case text[at] == ' ':
		return 'a' <= before && before <= 'z' || 'A' <= before && before <= 'Z'
	case before == '\n' && t.byteLevel && at > 1:
		r, _ := utf8.DecodeLastRuneInString(text[:at-1])
		after, _ := unicodeClasses().at(text, at)
		return after == letter && !unicodeClasses().of(r).blank()
	}
	return false
}
