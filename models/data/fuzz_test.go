package data

import (
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever a file holds, its rows are read or refused with its name; what is read is
// text, and every sample ends in a token.
func FuzzRows(f *testing.F) {
	for _, seed := range []string{
		rows(pair("a", "b")), rows(said("user", "a", "assistant", "b")), "[]", "[{}, {}", `{"text": "x"}` + "\n\n" + `{"text": 5}`,
		`{"conversations": [{"from": "function_call", "value": "[{\"name\": \"f\"}]"}], "tools": "[1]"}`,
		`{"instruction": "a", "input": "b", "output": "\ud83d\ude00", "system": "s"}`, `{"text": "\ud83d"}`, `{"text": "\\ud83d"}`,
		"\xef\xbb\xbf[\n\n" + `{"text": [{"type": "text", "text": "x"}]}]`, zipped(`{"text": "x"}`), "\x1f\x8b", "{\"text\": \"\xff\"}",
		`{"messages": [{"role": "assistant", "content": null, "tool_calls": [], "weight": 0}]}`,
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "rows")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o666); err != nil {
			t.Fatal(err)
		}
		named := func(err error) {
			if !strings.Contains(err.Error(), path) {
				t.Errorf("error %q does not name the file", err)
			}
		}
		sum, last := sha256.New(), 0
		e := &encoder{fakeEncoding, "assistant"}
		err := readRows(path, sum, func(r record) error {
			if r.line < last || r.line < 1 || len(r.raw) == 0 {
				t.Errorf("a row of %d bytes on line %d behind line %d", len(r.raw), r.line, last)
			}
			last = r.line
			s, err := understand(r, "mixed", Fields{}, true)
			if err != nil {
				named(err)
				return nil
			}
			if !json.Valid(r.raw) || !utf8.Valid(r.raw) {
				t.Errorf("accepted %q", r.raw)
			}
			if tokens, err := e.tokens(s); err == nil && len(tokens) < 2 {
				t.Errorf("%q has %d tokens", r.raw, len(tokens))
			}
			return nil
		})
		if err != nil {
			named(err)
		} else if [sha256.Size]byte(sum.Sum(nil)) != sha256.Sum256(content) {
			t.Error("not all of the file was summed")
		}
	})
}

// The tokens that are marked are those that reach into a span, however the text is
// cut, and marking changes no token.
func FuzzMarked(f *testing.F) {
	f.Add("ab\n\ncd<end>\n", 3, 5)
	f.Add("<s>\n\n\n", 4, 4)
	f.Add("ab\n\ncd", 1, 3)
	f.Add("ab\n\ncd", 3, 6)
	f.Fuzz(func(t *testing.T, text string, from, to int) {
		if from < 0 || to < from || to > len(text) {
			t.Skip("no span") // of the fuzzer's making: not a thing to require
		}
		e := &encoder{fakeEncoding, "assistant"}
		tokens := e.marked(text, []Span{{from, to}})
		at := 0
		for i, id := range e.Tokenizer.Encode(text) {
			end := at + len(decode([]int32{id}))
			if tokens[i]&idMask != uint32(id) {
				t.Fatalf("token %d is %d, want %d", i, tokens[i]&idMask, id)
			}
			if want := at < to && end > from && from < to; want != (tokens[i]&learned != 0) {
				t.Errorf("%q from %d to %d: token %d at %d to %d is marked %t", text, from, to, i, at, end, !want)
			}
			at = end
		}
	})
}
