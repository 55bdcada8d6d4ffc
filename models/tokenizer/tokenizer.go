// Package tokenizer turns text into token ids and back.
//
// Bytes is the identity of bytes. Open reads a Hugging Face tokenizer.json of
// the SentencePiece kind: byte-pair merges over characters, spaces written as
// U+2581, and bytes for characters outside the vocabulary, as Llama 2 has.
package tokenizer

// Tokenizer is safe for concurrent use.
type Tokenizer interface {
	// Encode gives the ids of text, without marks for its beginning and end.
	// Special tokens that are written in the text are recognised.
	Encode(text string) []int32
	// Decode gives the text of ids, without the special ones among them and
	// without ids outside the vocabulary.
	Decode(ids []int32) string
	// VocabSize is one more than the largest id.
	VocabSize() int
	// BOS is the token that begins a text, if there is one.
	BOS() (id int32, ok bool)
	// EOS is the token that ends a text, if there is one.
	EOS() (id int32, ok bool)
}

// Bytes is the tokenizer whose ids are the bytes of the text. The zero byte,
// which stands between documents (models/data), begins and ends a text.
type Bytes struct{}

var _ Tokenizer = Bytes{}

func (Bytes) Encode(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range ids {
		ids[i] = int32(text[i])
	}
	return ids
}

func (Bytes) Decode(ids []int32) string {
	text := make([]byte, 0, len(ids))
	for _, id := range ids {
		if id > 0 && id < 256 {
			text = append(text, byte(id))
		}
	}
	return string(text)
}

func (Bytes) VocabSize() int     { return 256 }
func (Bytes) BOS() (int32, bool) { return 0, true }
func (Bytes) EOS() (int32, bool) { return 0, true }
