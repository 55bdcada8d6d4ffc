package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decode gives the text of ids, without special tokens and without ids outside the
// vocabulary. Bytes that are not UTF-8, as half a character leaves them, become
// U+FFFD. Spaces stay as they are, also where tokenizer_config.json has
// clean_up_tokenization_spaces, which drops those before punctuation.
func (t *BPE) Decode(ids []int32) string { return t.decode(ids, false) }

// DecodeSpecial is Decode with special tokens, as the text names them.
func (t *BPE) DecodeSpecial(ids []int32) string { return t.decode(ids, true) }

func (t *BPE) decode(ids []int32, special bool) string {
	var text strings.Builder
	var run []byte // of byte tokens
	flush := func() {
		if t.byteLevel {
			appendLossy(&text, string(run))
		} else if utf8.Valid(run) {
			text.Write(run)
		} else {
			for range run {
				text.WriteRune(utf8.RuneError)
			}
		}
		run = run[:0]
	}
	for _, id := range ids {
		if id < 0 || int(id) >= len(t.tokens) || !special && t.special[id] {
			continue
		}
		if b, ok := t.byteOf[id]; ok {
			run = append(run, b)
		} else if t.byteLevel {
			run = append(run, t.text[id]...)
		} else {
			flush()
			text.WriteString(t.text[id])
		}
	}
	flush()
	if t.stripSpace {
		return strings.TrimPrefix(text.String(), " ")
	}
	return text.String()
}

// appendLossy writes U+FFFD for each sequence of bytes that begins a character and
// does not end it, and for each byte that begins none.
func appendLossy(to *strings.Builder, text string) {
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && n == 1 {
			for n < len(text) && !utf8.FullRuneInString(text[:n+1]) {
				n++
			}
			to.WriteRune(utf8.RuneError)
		} else {
			to.WriteString(text[:n])
		}
		text = text[n:]
	}
}
