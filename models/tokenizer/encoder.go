package tokenizer

import (
	"hash/maphash"
	"strings"
	"unicode/utf8"
)

// encoder is what one call of Encode works with. It is used by one goroutine at a
// time; the tokenizer keeps those that are not in use.
type encoder struct {
	*BPE
	ids   []int32 // the result
	word  []int32 // scratch
	pairs []merge // scratch
	cache [cacheSlots]cachedWord
}

// The cache has one slot for each hash, and a word pushes out the one before it, so
// it never grows. A slot is a cache line of 64 bytes.
const (
	cacheSlots   = 1 << 14
	maxCached    = 26 // bytes of a word
	maxCachedIDs = 8
)

type cachedWord struct {
	ids  [maxCachedIDs]int32
	text [maxCached]byte
	n    uint8 // ids
	len  uint8 // bytes of text; 0: the slot is empty
}

// part is a stretch of text and what came before it.
type part struct {
	text   string
	begins bool // nothing of its stretch came before
	first  bool // nothing at all came before
}

// encodeText appends the ids of text. Added tokens are cut out first.
func (e *encoder) encodeText(text string, first, plain bool) {
	e.raw.split(text, plain, func(at int, text string) {
		e.normalise(part{text, at > 0 || first, at == 0 && first}, plain)
	}, e.found)
}

func (e *encoder) found(id int32) { e.ids = append(e.ids, id) }

// normalise encodes a stretch between the added tokens of the text as it is
// written, after it has cut out those of the normalised text.
func (e *encoder) normalise(p part, plain bool) {
	p.text = e.form.normalise(p.text, p.begins)
	e.normal.split(p.text, plain, func(at int, text string) {
		e.words(part{text, at > 0 || p.begins, at == 0 && p.first})
	}, e.found)
}

// words splits a stretch into words and encodes each.
func (e *encoder) words(p part) {
	text := e.form.prepare(p)
	for at := 0; at < len(text); {
		end := e.form.scan(text, at)
		e.encodeWord(text[at:end])
		at = end
	}
}

// encodeWord appends the ids of a word, from the cache where they are there.
func (e *encoder) encodeWord(text string) {
	if id, ok := e.wholeWords[text]; ok {
		e.ids = append(e.ids, id)
		return
	}
	if len(text) > maxCached {
		e.ids = append(e.ids, e.mergeWord(text)...)
		return
	}
	c := &e.cache[maphash.String(e.seed, text)%cacheSlots]
	if string(c.text[:c.len]) == text {
		e.ids = append(e.ids, c.ids[:c.n]...)
		return
	}
	ids := e.mergeWord(text)
	e.ids = append(e.ids, ids...)
	if len(ids) <= maxCachedIDs {
		c.n, c.len = uint8(copy(c.ids[:], ids)), uint8(copy(c.text[:], text))
	}
}

// mergeWord gives the ids of a word. They are valid until the next call.
func (e *encoder) mergeWord(text string) []int32 {
	word := e.word[:0]
	if e.byteLevel {
		for i := range len(text) {
			if text[i] == 0 && e.noZero {
				continue
			}
			word = append(word, e.bytes[text[i]])
		}
	} else {
		for i := 0; i < len(text); {
			_, n := utf8.DecodeRuneInString(text[i:])
			if id, ok := e.chars[text[i:i+n]]; ok {
				word = append(word, id)
			} else {
				for _, b := range []byte(text[i : i+n]) {
					word = append(word, e.bytes[b])
				}
			}
			i += n
		}
	}
	e.word = word[:0]
	return e.merges.apply(word, &e.pairs)
}

// form is how text is prepared before its words are encoded.
type form struct {
	nfc     bool   // canonical composition
	prepend bool   // spaceMark before each stretch, whatever it begins with
	replace bool   // spaces become spaceMark, when the text is normalised
	marked  bool   // the same, when it is split
	prefix  prefix // a space before a stretch that does not begin with one
	scan    scanner
}

// prefix says which stretches get a space that they lack.
type prefix int

const (
	noPrefix prefix = iota
	prefixFirst
	prefixEach
)

// normalise is the normaliser of tokenizer.json. Where text does not begin its
// stretch, nothing goes before it.
func (f *form) normalise(text string, begins bool) string {
	if f.nfc {
		text = nfc(text)
	}
	if f.prepend && begins {
		text = spaceMark + text
	}
	if f.replace {
		text = strings.ReplaceAll(text, " ", spaceMark)
	}
	return text
}

// prepare is what the pre-tokeniser does before it splits into words.
func (f *form) prepare(p part) string {
	text, space := p.text, " "
	if f.marked {
		text, space = strings.ReplaceAll(text, " ", spaceMark), spaceMark
	}
	if wants := f.prefix == prefixEach && p.begins || f.prefix == prefixFirst && p.first; wants && !strings.HasPrefix(text, space) {
		text = space + text
	}
	return text
}
