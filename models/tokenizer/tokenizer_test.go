package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestBytesAreTheirOwnIds(t *testing.T) {
	text := "héllo\n\xff"
	ids := Bytes{}.Encode(text)
	if len(ids) != len(text) || ids[1] != 0xc3 {
		t.Errorf("Encode(%q) = %v", text, ids)
	}
	if got := (Bytes{}).Decode(append([]int32{0}, append(ids, 0, 256, -1)...)); got != text {
		t.Errorf("Decode gave %q, want %q", got, text)
	}
}

func TestVocabularyOfAModel(t *testing.T) {
	tok := open(t, charFile())
	for rows, fits := range map[int]bool{tok.VocabSize(): true, tok.VocabSize() + 100: true, tok.VocabSize() - 1: false} {
		if err := CheckVocab(tok, rows); (err == nil) != fits {
			t.Errorf("%d ids and %d rows: %v", tok.VocabSize(), rows, err)
		}
	}
}

func TestDecodeOverCharacters(t *testing.T) {
	tok := open(t, charFile("a b", "▁ a", "h e"))
	for _, text := range []string{"abc", " abc", "he ab  e\n", "é€😀", "▁"} {
		want := strings.ReplaceAll(text, spaceMark, " ")
		if got := tok.Decode(tok.Encode(text)); got != want {
			t.Errorf("%q came back as %q", text, got)
		}
	}
	e := tok.Encode("é€")
	if got := tok.Decode(e[:5]); got != strings.Repeat("\ufffd", 4) { // one a byte
		t.Errorf("half a character decodes to %q", got)
	}
	if got := tok.Decode([]int32{1, 9999, -1, 2}); got != "" {
		t.Errorf("special and unknown ids decode to %q", got)
	}
	if got := tok.DecodeSpecial([]int32{1, 9999, -1, 2}); got != "<s></s>" {
		t.Errorf("with special tokens it is %q", got)
	}
}

func TestDecodeOverBytes(t *testing.T) {
	f := byteFile(qwen2Pattern, "a b")
	f["added_tokens"] = []any{
		object{"id": 257, "content": "<|end|>", "special": true},
		object{"id": 258, "content": "<tag>", "normalized": false},
		object{"id": 259, "content": "no byte", "normalized": false},
	}
	tok := open(t, f)
	for text, want := range map[string]string{
		"\xe2\x82":             "\ufffd", // what begins a character is one
		"\xe2\x82\xe2\x82\xac": "\ufffd€",
		"\xff\x80a":            "\ufffd\ufffda",
		"\xed\xa0\x80":         "\ufffd\ufffd\ufffd", // surrogates begin none
		"\xf0\x9f\x98(":        "\ufffd(",
		"a<tag>\xc3":           "a<tag>\ufffd",
		"ab<|end|>no byte":     "abno byte",
	} {
		if got := tok.Decode(tok.Encode(text)); got != want {
			t.Errorf("%q came back as %q, want %q", text, got, want)
		}
	}
	if ids := tok.Encode("ab<|end|>"); tok.DecodeSpecial(ids) != "ab<|end|>" {
		t.Errorf("with special tokens it is %q", tok.DecodeSpecial(ids))
	}
	if got := tok.Decode([]int32{-1, 256, 1 << 20}); got != "ab" {
		t.Errorf("unknown ids decode to %q", got)
	}
}

func TestTokensByName(t *testing.T) {
	tok := open(t, byteFile(gpt2Pattern, "a b"))
	if id, ok := tok.ID("<|end|>"); !ok || id != 257 || !tok.Special(id) {
		t.Errorf("<|end|> is %d, %t", id, ok)
	}
	if name, ok := tok.Token(256); !ok || name != "ab" || tok.Special(256) {
		t.Errorf("256 is %q, %t", name, ok)
	}
	if _, ok := tok.ID("q r"); ok {
		t.Error("there is no token q r")
	}
	for _, id := range []int32{-1, 258} {
		if name, ok := tok.Token(id); ok {
			t.Errorf("%d is the token %q", id, name)
		}
	}
}

// The bytes of invalid UTF-8 stand for themselves.
func TestBytesThatAreNoText(t *testing.T) {
	for _, pattern := range []string{gpt2Pattern, qwen2Pattern, llama3Pattern} {
		tok := open(t, byteFile(pattern))
		text := "a\xff\xfe \xe2\x82 b\xc3"
		var bytes []byte
		for _, id := range tok.Encode(text) {
			bytes = append(bytes, tok.text[id]...)
		}
		if string(bytes) != text {
			t.Errorf("%s: got %q", pattern, bytes)
		}
	}
}

func TestUseByManyAtATime(t *testing.T) {
	tok := open(t, byteFile(qwen2Pattern, someMerges("Ġ")...))
	text := strings.Repeat("abc heo<|end|>aabc ccc\n", 200)
	want := tok.Encode(text)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				if got := tok.Encode(text); !slices.Equal(got, want) {
					t.Error("other ids than alone")
				}
				if tok.DecodeSpecial(want) != text {
					t.Error("another text than alone")
				}
			}
		})
	}
	all.Wait()
}
