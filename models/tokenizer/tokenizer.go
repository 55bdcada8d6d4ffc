// Package tokenizer turns text into token ids and back.
//
// Bytes is the identity of bytes. Open reads the tokenizer of a Hugging Face
// folder, byte-pair encoding of either kind: over bytes, as GPT-2, Llama 3 and
// Qwen have it, or over characters with bytes as the fallback, as Llama 2 has it.
// The ids are those that Hugging Face's tokenizers give. What a file asks for and
// this package does not do is an error that names it.
//
// A text takes five steps, of which a tokenizer may lack some: added tokens are
// cut out (added.go), the rest is normalised (nfc.go), split into words (scan.go),
// and the symbols of each word are merged (encoder.go, merge.go).
//
// Letters and numbers are those of Unicode 16, as there. Canonical composition is
// golang.org/x/text's, of Unicode 15, where Hugging Face's goes by an older
// version: ids differ where one of some hundred rare combining marks, such as the
// Telugu nukta U+0C3C, stands behind another mark that belongs before it.
package tokenizer

import "fmt"

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

// CheckVocab says whether a model with an embedding of rows rows can take the ids
// of t. More rows than ids are right: models pad their vocabulary.
func CheckVocab(t Tokenizer, rows int) error {
	if n := t.VocabSize(); n > rows {
		return fmt.Errorf("the tokenizer's ids go to %d, the model's vocabulary has %d rows: they do not belong together", n-1, rows)
	}
	return nil
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
