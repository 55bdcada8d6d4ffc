package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func TestManyMarksStayAsTheyAre(t *testing.T) {
	below, above := "\u0316", "\u0301"
	for text, want := range map[string]string{
		"a" + strings.Repeat(below, 40):                     "a" + strings.Repeat(below, 40),
		"a" + strings.Repeat(above, 40):                     "á" + strings.Repeat(above, 39),
		"a" + strings.Repeat(above, 40) + below:             "á" + below + strings.Repeat(above, 39),
		strings.Repeat(below, 50):                           strings.Repeat(below, 50),
		strings.Repeat(above+below, 30) + "e" + above:       strings.Repeat(below, 30) + strings.Repeat(above, 30) + "é",
		"\u1112\u1161\u11ab" + strings.Repeat(below, 40):    "한" + strings.Repeat(below, 40),
		"\xff" + strings.Repeat(below, 40) + "\xe2\x82":     "\xff" + strings.Repeat(below, 40) + "\xe2\x82",
		"x" + strings.Repeat("\u0344", 20) + "\u0316\u212b": "ẍ\u0316\u0301" + strings.Repeat("\u0308\u0301", 19) + "Å",
	} {
		if got := nfc(text); got != want {
			t.Errorf("%+q: got %+q, want %+q", text, got, want)
		}
	}
}

// Where there are few marks, package norm and the definition agree.
func TestCompositionByDefinition(t *testing.T) {
	for r := range rune(unicode.MaxRune + 1) {
		if text := string(r); !norm.NFC.IsNormalString(text) && composeLong(text) != norm.NFC.String(text) {
			t.Fatalf("%U: got %+q, want %+q", r, composeLong(text), norm.NFC.String(text))
		}
	}
	marks := []rune("\u0301\u0323\u0307\u0316\u0334\u0345\u3099\u0308\u093c\u0344")
	letters := []rune("aeoqAÅ\u212bがか한\u1112\u1161\u11abनΩ\u1e9b ")
	random := rand.New(rand.NewPCG(1, 2))
	for range 30000 {
		var text strings.Builder
		for range 1 + random.IntN(12) {
			switch random.IntN(8) {
			case 0:
				text.WriteRune(rune(random.IntN(unicode.MaxRune + 1)))
			case 1, 2, 3, 4:
				text.WriteRune(letters[random.IntN(len(letters))])
			default:
				text.WriteRune(marks[random.IntN(len(marks))])
			}
		}
		want := norm.NFC.String(text.String())
		if got := composeLong(text.String()); got != want {
			t.Fatalf("%+q: got %+q, want %+q", text.String(), got, want)
		}
		if got := nfc(text.String()); got != want {
			t.Fatalf("nfc(%+q): got %+q, want %+q", text.String(), got, want)
		}
	}
}

// Decoding gives the text as it was encoded: composed, where the tokenizer does
// that, and with U+FFFD for bytes that are not UTF-8.
func FuzzRoundTrip(f *testing.F) {
	for _, text := range []string{
		"", " ", "Hello world", "it's 12345 \r\n\r\n  x", "é e\u0301 \u212b", "한국 你好 नि", "😊👍🏽", "\x00\u2028\ufeff",
		"<|end|>", "\xff\xe2\x82", "a" + strings.Repeat("\u0301\u0316", 40), strings.Repeat("abc", 200), "▁a ▁b", "  leading",
	} {
		f.Add(text)
	}
	composed := []*BPE{open(f, byteFile(qwen2Pattern, someMerges("Ġ")...)), open(f, byteFile(llama3Pattern, someMerges("Ġ")...))}
	other := byteFile(gpt2Pattern, someMerges("Ġ")...)
	other["normalizer"] = nil
	asItIs := open(f, other)
	chars := open(f, charFile(someMerges("▁")...))
	f.Fuzz(func(t *testing.T, text string) {
		var lossy strings.Builder
		appendLossy(&lossy, nfc(text))
		for _, tok := range composed {
			if got := tok.Decode(tok.EncodePlain(text)); got != lossy.String() {
				t.Errorf("%+q came back as %+q", text, got)
			}
		}
		lossy.Reset()
		appendLossy(&lossy, text)
		if got := asItIs.Decode(asItIs.EncodePlain(text)); got != lossy.String() {
			t.Errorf("%+q came back as %+q", text, got)
		}
		if want := strings.ReplaceAll(text, spaceMark, " "); utf8.ValidString(text) && chars.Decode(chars.EncodePlain(text)) != want {
			t.Errorf("%+q came back as %+q", text, chars.Decode(chars.EncodePlain(text)))
		}
	})
}
