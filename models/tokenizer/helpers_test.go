package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// object is a part of a tokenizer.json.
type object = map[string]any

func parse(text string) (v any) {
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(err)
	}
	return v
}

// charFile is a tokenizer.json as Llama 2 has it, with the merges given, and their
// parts and results as vocabulary.
func charFile(merges ...string) object {
	vocab := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2}
	for b := range 256 {
		addTo(vocab, fmt.Sprintf("<0x%02X>", b))
	}
	for _, c := range "▁abcdeho" {
		addTo(vocab, string(c))
	}
	addResults(vocab, merges)
	added := []any{}
	for id, token := range []string{"<unk>", "<s>", "</s>"} {
		added = append(added, object{"id": id, "content": token, "special": true})
	}
	return object{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "pre_tokenizer": nil,
		"normalizer": parse(`{"type": "Sequence", "normalizers": [
			{"type": "Prepend", "prepend": "\u2581"},
			{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}`),
		"decoder": parse(`{"type": "Sequence", "decoders": [` + strings.Join(charDecoder, ",") + `]}`),
		"post_processor": parse(`{"type": "TemplateProcessing",
			"single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
			"pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}`),
		"model": object{"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": merges},
	}
}

// byteFile is a tokenizer.json as Qwen2 has it, with another pattern and the merges
// given. The ids from 0 to 255 are the bytes as byteChars orders them.
func byteFile(pattern string, merges ...string) object {
	vocab := map[string]int{}
	for _, c := range byteChars {
		addTo(vocab, string(c))
	}
	addResults(vocab, merges)
	return object{
		"version": "1.0", "normalizer": object{"type": "NFC"},
		"added_tokens": []any{object{"id": len(vocab), "content": "<|end|>", "special": true}},
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false},
			object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}}},
		"decoder": object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":   object{"type": "BPE", "byte_fallback": false, "vocab": vocab, "merges": merges},
	}
}

func addTo(vocab map[string]int, token string) {
	if _, ok := vocab[token]; !ok {
		vocab[token] = len(vocab)
	}
}

func addResults(vocab map[string]int, merges []string) {
	for _, m := range merges {
		left, right, _ := strings.Cut(m, " ")
		addTo(vocab, left+right)
	}
}

// someMerges are for random text of few letters, in the vocabularies of both kinds
// where mark is a space.
func someMerges(mark string) []string {
	m := []string{"a b", "b c", "a a", "ab c", "M a", "c c", "bc c", "aa a", "ab ab", "Ma bc", "M M", "MM M", "e o", "h eo", "M heo", "Mheo abc"}
	for i := range m {
		m[i] = strings.ReplaceAll(m[i], "M", mark)
	}
	return m
}

// folder writes files, by name, into a new folder. A value that is no text is
// written as JSON.
func folder(t testing.TB, files object) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		text, ok := content.(string)
		if !ok {
			b, err := json.Marshal(content)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// open opens the tokenizer that a tokenizer.json describes.
func open(t testing.TB, f object) *BPE {
	t.Helper()
	tok, err := Open(folder(t, object{"tokenizer.json": f}))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// names are the tokens of ids, with spaces between them.
func (t *BPE) names(ids []int32) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = t.tokens[id]
	}
	return strings.Join(names, " ")
}
