package rows

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever a file holds, its rows are read or refused with its name; what is read is
// text.
func FuzzRows(f *testing.F) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(`{"text": "x"}`)); err != nil {
		f.Fatal(err)
	}
	if err := z.Close(); err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		`{"prompt": "a", "completion": "b"}`, `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}` + "\r\n", "[]", "[{}, {}", `{"text": "x"}` + "\n\n" + `{"text": 5}`,
		`{"conversations": [{"from": "function_call", "value": "[{\"name\": \"f\"}]"}], "tools": "[1]"}`,
		`{"instruction": "a", "input": "b", "output": "\ud83d\ude00", "system": "s"}`, `{"text": "\ud83d"}`, `{"text": "\\ud83d"}`,
		"\xef\xbb\xbf[\n\n" + `{"text": [{"type": "text", "text": "x"}]}]`, packed.String(), "\x1f\x8b", "{\"text\": \"\xff\"}",
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
		err := Read(path, sum, func(r Row) error {
			if r.Line < last || r.Line < 1 || len(r.Raw) == 0 {
				t.Errorf("a row of %d bytes on line %d behind line %d", len(r.Raw), r.Line, last)
			}
			last = r.Line
			s, err := Understand(r, "mixed", Fields{}, true)
			if err != nil {
				named(err)
				return nil
			}
			if !json.Valid(r.Raw) || !utf8.Valid(r.Raw) {
				t.Errorf("accepted %q", r.Raw)
			}
			if len(s.Messages) == 0 && s.Prompt+s.Answer == "" {
				t.Errorf("%q is empty", r.Raw)
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
