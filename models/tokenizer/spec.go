package tokenizer

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// spec is a tokenizer as its files describe it, whatever their form.
type spec struct {
	form         form
	byteLevel    bool
	ignoreMerges bool
	unknown      bool // there is a token for what the vocabulary lacks
	stripSpace   bool
	vocab        map[string]int32
	merges       []pieces
	added        []addedToken
	before       []string // tokens that the template puts before a text
	after        []string // and behind it
}

// maxVocab bounds ids, for a damaged file must not ask for gigabytes.
const maxVocab = 1 << 24

// build makes the tokenizer, without the tokens that begin and end a text.
func (s *spec) build() (*BPE, error) {
	t := &BPE{
		ids: map[string]int32{}, special: map[int32]bool{}, raw: new(matcher), normal: new(matcher),
		form: s.form, byteLevel: s.byteLevel, stripSpace: s.stripSpace, bos: -1, eos: -1, seed: maphash.MakeSeed(),
	}
	for token, id := range s.vocab {
		if err := t.addToken(token, id); err != nil {
			return nil, err
		}
	}
	for i := range s.added {
		a := &s.added[i]
		if err := t.addToken(a.content, a.id); err != nil {
			return nil, err
		}
		if a.special {
			t.special[a.id] = true
		}
		if a.normalized {
			t.normal.add(t.form.normalise(a.content, true), a)
		} else {
			t.raw.add(a.content, a)
		}
	}
	if err := t.findBytes(s); err != nil {
		return nil, err
	}
	if err := t.addMerges(s); err != nil {
		return nil, err
	}
	t.describeText(s)
	var err error
	if t.before, err = t.named(s.before); err != nil {
		return nil, err
	}
	if t.after, err = t.named(s.after); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *BPE) addToken(token string, id int32) error {
	if id < 0 || id >= maxVocab {
		return fmt.Errorf("token %q has id %d", token, id)
	}
	if old, ok := t.ids[token]; ok && old != id {
		return fmt.Errorf("token %q has the ids %d and %d", token, old, id)
	}
	if n := int(id) + 1 - len(t.tokens); n > 0 {
		t.tokens = append(t.tokens, make([]string, n)...)
	}
	if old := t.tokens[id]; old != "" && old != token {
		return fmt.Errorf("id %d belongs to the tokens %q and %q", id, old, token)
	}
	t.ids[token], t.tokens[id] = id, token
	return nil
}

// findBytes finds the tokens that words begin as. All bytes have one, but for the zero
// byte, which is left out of a text where neither it nor the unknown has one: so what
// the file says of unknown tokens does not matter.
func (t *BPE) findBytes(s *spec) error {
	name := func(b int) string { return fmt.Sprintf("<0x%02X>", b) }
	if t.byteLevel {
		name = func(b int) string { return string(byteChars[b]) }
	} else {
		t.byteOf, t.chars = map[int32]byte{}, map[string]int32{}
		for token, id := range s.vocab {
			if utf8.RuneCountInString(token) == 1 {
				t.chars[token] = id
			}
		}
	}
	for b := range t.bytes {
		id, ok := s.vocab[name(b)]
		if !ok && b == 0 && t.byteLevel && !s.unknown {
			t.noZero = true // BytesFiles give it to the end of text; others leave it out, too
			continue
		}
		if !ok {
			return fmt.Errorf("the vocabulary lacks the token %s of byte %#02x", name(b), b)
		}
		t.bytes[b] = id
		if !t.byteLevel {
			t.byteOf[id] = byte(b)
		}
	}
	return nil
}

func (t *BPE) addMerges(s *spec) error {
	t.merges = newMerges(len(s.merges))
	alone := true // spaceMark stands at the beginning of tokens only
	for rank, m := range s.merges {
		left, ok1 := s.vocab[m[0]]
		right, ok2 := s.vocab[m[1]]
		id, ok3 := s.vocab[m[0]+m[1]]
		if !ok1 || !ok2 || !ok3 {
			return fmt.Errorf("merge %d, %q and %q: the vocabulary lacks a part or the result", rank, m[0], m[1])
		}
		if first := t.merges.get(left, right); first != noMerge {
			return fmt.Errorf("merge %d, %q and %q, stands at %d already", rank, m[0], m[1], first>>32)
		}
		t.merges.set(left, right, newMerge(int32(rank), id))
		if strings.Contains(strings.TrimLeft(m[0]+m[1], spaceMark), spaceMark) {
			alone = false
		}
	}
	// Without merges over the beginning of a word, words can be merged one by one.
	if t.form.scan == nil && !t.byteLevel && alone {
		t.form.scan = markedRun
	}
	t.cuttable = t.form.scan != nil && s.cuttable()
	if t.form.scan == nil {
		t.form.scan = whole
	}
	return nil
}

// describeText finds what each token decodes to, and which words are tokens.
func (t *BPE) describeText(s *spec) {
	t.text = make([]string, len(t.tokens))
	for id, token := range t.tokens {
		if t.byteLevel {
			t.text[id] = charsToBytes(token)
		} else {
			t.text[id] = strings.ReplaceAll(token, spaceMark, " ")
		}
	}
	if !s.ignoreMerges {
		return
	}
	t.wholeWords = make(map[string]int32, len(s.vocab))
	for token, id := range s.vocab {
		if !t.byteLevel {
			t.wholeWords[token] = id
		} else if isBytes(token) {
			t.wholeWords[t.text[id]] = id
		}
	}
}

// named gives the ids of tokens.
func (t *BPE) named(tokens []string) ([]int32, error) {
	var ids []int32
	for _, token := range tokens {
		id, ok := t.ids[token]
		if !ok {
			return nil, fmt.Errorf("the vocabulary lacks the token %q that begins or ends a text", token)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// cuttable says that no added token reaches over a place where a text may be cut
// (BPE.cutHere): it holds no white space, and takes none from beside a letter.
func (s *spec) cuttable() bool {
	return !slices.ContainsFunc(s.added, func(a addedToken) bool {
		content := a.content
		if a.normalized {
			content = s.form.normalise(content, true)
		}
		first, _ := utf8.DecodeRuneInString(content)
		last, _ := utf8.DecodeLastRuneInString(content)
		return strings.ContainsFunc(content, unicode.IsSpace) || strings.Contains(content, spaceMark) ||
			a.lstrip && unicode.IsLetter(first) || a.rstrip && unicode.IsLetter(last)
	})
}
