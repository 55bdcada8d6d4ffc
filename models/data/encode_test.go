package data

import (
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
)

// measured is a tokenizer that counts the bytes that it encodes.
type measured struct {
	Tokenizer
	bytes *int
}

func (c measured) Encode(text string) []int32 {
	*c.bytes += len(text)
	return c.Tokenizer.Encode(text)
}

// spaced is a tokenizer whose texts begin with a space, as some write it before each.
type spaced struct{ Tokenizer }

func (s spaced) Encode(text string) []int32 { return s.Tokenizer.Encode(" " + text) }

// Cuts are where all that is before them ends among the tokens of the text, whatever is
// joined across them.
func TestCutsAmongTokens(t *testing.T) {
	for name, tok := range map[string]Tokenizer{"parts are the whole's": fakeTokenizer{bos, eos}, "parts are others": spaced{fakeTokenizer{bos, eos}}} {
		e := &encoder{Encoding: Encoding{Tokenizer: tok}}
		r, joined := models.NewRand(3, name), 0
		for i := range uint64(300) {
			var b strings.Builder
			for k := range 20 {
				b.WriteString([]string{"a", "\n", "\n", "<end>", "é"}[r.Uint64(100*i+uint64(k))%5])
			}
			text := b.String()
			var cuts []int
			for at := range len(text) + 1 {
				if r.Uint64(100*i+50+uint64(at))%4 == 0 {
					cuts = append(cuts, at)
				}
			}
			ids := tok.Encode(text)
			for k, p := range e.find(text, ids, cuts) {
				head := tok.Encode(text[:cuts[k]])
				n := common(head, ids)
				if want := (place{n, n < len(head)}); p != want {
					t.Errorf("%s: %q cut at %d: %+v, want %+v", name, text, cuts[k], p, want)
				}
				if p.within {
					joined++
				}
			}
		}
		if joined == 0 {
			t.Errorf("%s: no cut was joined", name)
		}
	}
}

// A conversation of many turns is encoded a few times, and not once for each of them,
// also where every answer begins within a token.
func TestCutsOfALongConversationCostLittle(t *testing.T) {
	const turns = 200
	var text strings.Builder
	var cuts []int
	for range turns {
		text.WriteString("<user>what is it<end><assistant>\n")
		cuts = append(cuts, text.Len())
		text.WriteString("\nit is so<end>")
		cuts = append(cuts, text.Len())
	}
	encoded := 0
	e := &encoder{Encoding: Encoding{Tokenizer: measured{fakeTokenizer{bos, eos}, &encoded}}}
	ids := fakeTokenizer{bos, eos}.Encode(text.String())
	places := e.find(text.String(), ids, cuts)
	if n := slices.IndexFunc(places, func(p place) bool { return p.within }); n != 0 {
		t.Errorf("the first cut that is joined is number %d", n)
	}
	if encoded > 3*text.Len() {
		t.Errorf("%d bytes were encoded, of a text of %d", encoded, text.Len())
	}
}
