package data

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/gorun-dev/gorun/models/data/rows"
	"github.com/gorun-dev/gorun/models/data/store"
)

// Tokenizer is what reading samples needs of one. It is safe for concurrent use.
type Tokenizer interface {
	// Encode gives the ids of a text, without marks for its beginning and end.
	// Special tokens that are written in the text are recognised.
	Encode(text string) []int32
	// VocabSize is one more than the largest id.
	VocabSize() int
	// Around is the tokens that stand before and behind a plain text.
	Around() (before, after []int32)
}

// What rows hold; see package rows.
type (
	Conversation = rows.Conversation
	Message      = rows.Message
	Fields       = rows.Fields
)

// Template writes conversations as the model reads them. It is safe for concurrent
// use.
type Template interface {
	// Render gives the text of a conversation, and the parts of it that the
	// assistant writes, in their order: of a message the content and the mark that
	// ends the turn, but nothing behind that.
	Render(c Conversation) (text string, said []Span, err error)
}

// Span is the bytes from From up to To of a text.
type Span struct{ From, To int }

// Encoding is how text becomes tokens.
type Encoding struct {
	Tokenizer Tokenizer
	Template  Template // nil: conversations cannot be read
	// ID is equal for encodings that give equal tokens, and for no others: a hash
	// of the tokenizer's and the template's files.
	ID string
}

// encoder turns samples into tokens.
type encoder struct {
	Encoding
	trainOn string // assistant, last or all
}

// tokens are the ids of s, each with its mark. A conversation is as the template
// renders it. Plain text is between the tokens that stand around a text; what is
// behind it is learned. A text that begins as all do has no second beginning.
func (e *encoder) tokens(s rows.Sample) ([]uint32, error) {
	if len(s.Messages) > 0 {
		return e.conversation(s.Conversation)
	}
	text := s.Prompt + s.Answer
	tokens := e.marked(text, []Span{{len(s.Prompt), len(text)}})
	before, after := e.Tokenizer.Around()
	if !begins(tokens, before) {
		first := make([]uint32, len(before))
		for i, id := range before {
			first[i] = uint32(id)
		}
		tokens = slices.Concat(first, tokens)
	}
	for _, id := range after {
		tokens = append(tokens, uint32(id)|store.Learned)
	}
	return e.all(tokens), nil
}

func (e *encoder) conversation(c Conversation) ([]uint32, error) {
	text, said, err := e.Template.Render(c)
	if err != nil {
		return nil, err
	}
	spans, err := e.voiced(c, said)
	if err != nil {
		return nil, err
	}
	if e.trainOn == "last" && len(spans) > 1 {
		spans = spans[len(spans)-1:]
	}
	return e.all(e.marked(text, spans)), nil
}

// begins says that tokens begin with the ids of before.
func begins(tokens []uint32, before []int32) bool {
	if len(tokens) < len(before) {
		return false
	}
	for i, id := range before {
		if tokens[i]&store.IDMask != uint32(id) {
			return false
		}
	}
	return true
}

// voiced is what the assistant writes, without the messages that are muted.
func (e *encoder) voiced(c Conversation, said []Span) (spans []Span, err error) {
	var mute []bool // of the assistant's messages
	for _, m := range c.Messages {
		if m.Role == "assistant" {
			mute = append(mute, m.Mute)
		}
	}
	if len(said) == 0 || !slices.Contains(mute, true) {
		return said, nil
	}
	if len(mute) != len(said) {
		return nil, fmt.Errorf("the chat template marks %d parts of the text as the assistant's, which has %d messages: those with a weight of 0 cannot be told", len(said), len(mute))
	}
	for i, s := range said {
		if !mute[i] {
			spans = append(spans, s)
		}
	}
	return spans, nil
}

// all marks every token where all are learned.
func (e *encoder) all(tokens []uint32) []uint32 {
	if e.trainOn == "all" {
		return e.every(tokens)
	}
	return tokens
}

func (e *encoder) every(tokens []uint32) []uint32 {
	for i := range tokens {
		tokens[i] |= store.Learned
	}
	return tokens
}

// marked encodes text and marks the tokens that reach into one of the spans, which
// follow each other.
func (e *encoder) marked(text string, spans []Span) []uint32 {
	ids := e.encode(text)
	tokens := make([]uint32, len(ids))
	for i, id := range ids {
		tokens[i] = uint32(id)
	}
	var cuts []int // offsets in text
	for _, s := range spans {
		if s.From < s.To {
			cuts = append(cuts, s.From, s.To)
		}
	}
	if len(cuts) == 2 && cuts[0] == 0 && cuts[1] == len(text) {
		return e.every(tokens)
	}
	at := e.find(text, ids, cuts)
	for i := 0; i < len(at); i += 2 {
		from, to := at[i].before, at[i+1].before
		if at[i+1].within {
			to++
		}
		for j := from; j < min(to, len(tokens)); j++ {
			tokens[j] |= store.Learned
		}
	}
	return tokens
}

// large is the text that several workers encode at once, where the tokenizer can do
// that: a file of text is one sample.
const large = 1 << 20

func (e *encoder) encode(text string) []int32 {
	if p, ok := e.Tokenizer.(parallel); ok && len(text) >= large {
		return p.EncodeParallel(text, runtime.GOMAXPROCS(0))
	}
	return e.Tokenizer.Encode(text)
}

// parallel is what a Tokenizer may have beside: Encode by several workers.
type parallel interface {
	EncodeParallel(text string, workers int) []int32
}

// place is where a cut of a text is among its tokens: behind so many, and within
// the next one or not.
type place struct {
	before int
	within bool
}

// find locates cuts, which ascend, among ids, the tokens of text.
func (e *encoder) find(text string, ids []int32, cuts []int) []place {
	// A tokenizer hardly ever joins what a cut parts: then the parts' tokens are the
	// whole's. Where it does, the part that ends there has the whole's tokens but for the
	// joined ones, and the next begins where the last one did that was not joined.
	places := make([]place, len(cuts))
	begin, done := 0, 0 // of the part, and the tokens before it
	for i, cut := range cuts {
		part := e.Tokenizer.Encode(text[begin:cut])
		n := common(part, ids[done:])
		places[i] = place{done + n, n < len(part)}
		if n == len(part) {
			begin, done = cut, done+n
		}
	}
	if slices.Equal(e.Tokenizer.Encode(text[begin:]), ids[done:]) {
		return places
	}
	// The tokens of a part are others within the whole: each cut is behind those that
	// all before it has in common with all.
	for i, cut := range cuts {
		head := e.Tokenizer.Encode(text[:cut])
		n := common(head, ids)
		places[i] = place{n, n < len(head)}
	}
	return places
}

// common is how many ids a and b begin with alike.
func common(a, b []int32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
