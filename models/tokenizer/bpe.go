package tokenizer

import (
	"hash/maphash"
	"sync"
)

// BPE is byte-pair encoding, as Open reads it. It is safe for concurrent use. Each
// call that encodes at the same time as others has a cache of words, of 1 MB; the
// garbage collector takes those that are not in use.
type BPE struct {
	ids     map[string]int32 // all tokens, as tokenizer.json writes them
	tokens  []string         // by id, "" where there is none
	text    []string         // by id: what it decodes to
	special map[int32]bool   // left out of decoded text

	raw, normal *matcher // added tokens in the text as written, and as normalised
	form        form
	cuttable    bool // EncodeParallel may cut a text

	byteLevel  bool
	bytes      [256]int32       // the token of each byte
	noZero     bool             // the zero byte has none
	byteOf     map[int32]byte   // and back, where tokens are characters
	chars      map[string]int32 // the tokens of one character, where tokens are characters
	wholeWords map[string]int32 // words that are not merged: they are tokens (ignore_merges)
	merges     *merges
	stripSpace bool // decoded text loses the space it begins with

	bos, eos      int32 // -1: none
	ends          []int32
	before, after []int32 // what the template puts around a text

	seed     maphash.Seed // of the encoders' caches
	encoders sync.Pool    // of *encoder
}

var _ Tokenizer = (*BPE)(nil)

// Encode gives the ids of text, without what the template puts around it. Added
// tokens that are written in the text, special ones among them, are recognised. A
// text need not be UTF-8: a byte that is not stands for itself.
func (t *BPE) Encode(text string) []int32 { return t.encode(text, true, false) }

// EncodePlain is Encode for text from outside, which must not be able to end a turn
// of a chat: special tokens written in it are text like any other. Added tokens that
// are not special are recognised.
func (t *BPE) EncodePlain(text string) []int32 { return t.encode(text, true, true) }

// encode encodes a text or, where first is not set, what follows a cut.
func (t *BPE) encode(text string, first, plain bool) []int32 {
	e, ok := t.encoders.Get().(*encoder)
	if !ok {
		e = &encoder{BPE: t}
	}
	e.ids = make([]int32, 0, len(text)/3+1)
	e.encodeText(text, first, plain)
	ids := e.ids
	e.ids = nil
	t.encoders.Put(e)
	return ids
}

func (t *BPE) VocabSize() int { return len(t.tokens) }

// BOS is the token that tokenizer_config.json calls bos_token or, where it names
// none, the one that the template begins a text with. Not every tokenizer that has
// one puts it before a text: Template says what goes there.
func (t *BPE) BOS() (int32, bool) { return t.bos, t.bos >= 0 }

// EOS is the token that tokenizer_config.json calls eos_token or, where it names
// none, the first of EOSIDs.
func (t *BPE) EOS() (int32, bool) { return t.eos, t.eos >= 0 }

// EOSIDs are the tokens at which generation ends, those of generation_config.json
// first. Qwen2.5-Instruct has two, for example. The caller must not change them.
func (t *BPE) EOSIDs() []int32 { return t.ends }

// Template is what goes around a single text where special tokens are to be added,
// as with Hugging Face's add_special_tokens. The caller must not change it.
func (t *BPE) Template() (before, after []int32) { return t.before, t.after }

// ID is the id of a token, as tokenizer.json writes it: "<|im_end|>", "Ġthe".
func (t *BPE) ID(token string) (id int32, ok bool) {
	id, ok = t.ids[token]
	return id, ok
}

// Token is the token of an id, as tokenizer.json writes it.
func (t *BPE) Token(id int32) (token string, ok bool) {
	if id < 0 || int(id) >= len(t.tokens) || t.tokens[id] == "" {
		return "", false
	}
	return t.tokens[id], true
}

// Special says whether id is left out of decoded text.
func (t *BPE) Special(id int32) bool { return t.special[id] }
