package data

import (
	"testing"

	"github.com/gorun-dev/gorun/models/data/store"
)

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
			if tokens[i]&store.IDMask != uint32(id) {
				t.Fatalf("token %d is %d, want %d", i, tokens[i]&store.IDMask, id)
			}
			if want := at < to && end > from && from < to; want != (tokens[i]&store.Learned != 0) {
				t.Errorf("%q from %d to %d: token %d at %d to %d is marked %t", text, from, to, i, at, end, !want)
			}
			at = end
		}
	})
}
