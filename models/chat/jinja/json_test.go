package jinja

import (
	"strings"
	"testing"
)

func TestParseJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"b": 1, "a": [1.0, 1e2, -0, null, true, "\u00e9\ud83d\ude0a"]}`: `{'b': 1, 'a': [1.0, 100.0, 0, None, True, 'é😊']}`,
		`{"a": 1, "b": 2, "a": 3}`:                                        `{'a': 3, 'b': 2}`,
		` [ ] `:                                                           `[]`,
		`{}`:                                                              `{}`,
		`"a\\ud83d"`:                                                      `a\ud83d`,
		`9223372036854775807`:                                             `9223372036854775807`,
	} {
		v, err := ParseJSON([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := render("{{ v }}", map[string]Value{"v": v})
		if err != nil || got.Text != want {
			t.Errorf("%s: got %s and error %v, want %s", text, got.Text, err, want)
		}
	}
	for text, want := range map[string]string{
		``:                        "unexpected EOF",
		`{"a": `:                  "unexpected EOF",
		`[1, 2`:                   "unexpected EOF",
		`{"a"}`:                   "invalid character",
		`[1,]`:                    "invalid character",
		`{"a": 1} x`:              "more behind the JSON value",
		`1 2`:                     "more behind the JSON value",
		`"\ud83d"`:                "half a character",
		`"\ude0a\ud83d"`:          "half a character",
		`"\udc00\udc00"`:          "half a character",
		`"\ud83dx"`:               "half a character",
		`"\ud83d\n"`:              "half a character",
		"\"\xff\"":                "not valid UTF-8",
		`18446744073709551616`:    "more than 64 bits",
		`1e999`:                   "out of range",
		strings.Repeat("[", 9999): "nested more than",
		`nul`:                     "",
		`{1: 2}`:                  "",
	} {
		if v, err := ParseJSON([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: got %v and error %v, want %q", text, v, err, want)
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, seed := range []string{`{"a": [1, 2.5, "\ud83d\ude0a", null, true, {"b": -1e-5}]}`, `[`, `"\u`, `{"a":1,}`, `"\\\ud800"`} {
		f.Add([]byte(seed))
	}
	// What can be read and written again reads as the same value.
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := ParseJSON(text)
		if err != nil {
			return
		}
		written, err := render("{{ v | tojson }}", map[string]Value{"v": v})
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		again, err := ParseJSON([]byte(written.Text))
		if err != nil {
			t.Fatalf("%q: %v", written.Text, err)
		}
		same, err := render("{{ a == b }}", map[string]Value{"a": v, "b": again})
		if err != nil || same.Text != "True" {
			t.Errorf("%q: written as %q (%v)", text, written.Text, err)
		}
	})
}
