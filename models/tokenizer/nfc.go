package tokenizer

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc composes text canonically (Unicode's NFC). Package norm alone is not enough:
// into more than 30 marks on one letter it puts a character of its own, as the
// stream-safe format of UAX #15 has it.
func nfc(text string) string {
	if norm.NFC.IsNormalString(text) {
		return text
	}
	marks := 0
	for i := 0; i < len(text); {
		if text[i] < utf8.RuneSelf {
			marks = 0
			i++
			continue
		}
		p := norm.NFD.PropertiesString(text[i:])
		if marks++; p.CCC() == 0 {
			marks = 0
		}
		if marks > longMarks {
			return composeLong(text)
		}
		i += max(p.Size(), 1)
	}
	return norm.NFC.String(text)
}

// longMarks is safe for package norm: a character is at most three marks, and the
// letter below brings at most three.
const longMarks = 8

// composeLong is nfc for any number of marks, by the definition: decompose, put
// marks in their order, compose. It takes no account of speed, only of not being
// quadratic in the number of marks.
func composeLong(text string) string {
	type char struct {
		text  string
		class uint8
	}
	var chars []char
	for len(text) > 0 {
		p := norm.NFD.PropertiesString(text)
		n := max(p.Size(), 1)
		parts := text[:n]
		if d := p.Decomposition(); d != nil {
			parts = string(d)
		} else if utf8.ValidString(parts) {
			parts = norm.NFD.String(parts) // Hangul, whose parts are computed
		}
		for parts != "" {
			p := norm.NFD.PropertiesString(parts)
			n := max(p.Size(), 1)
			chars = append(chars, char{parts[:n], p.CCC()})
			parts = parts[n:]
		}
		text = text[n:]
	}
	for i := 0; i < len(chars); {
		end := i + 1
		for ; chars[i].class != 0 && end < len(chars) && chars[end].class != 0; end++ {
		}
		slices.SortStableFunc(chars[i:end], func(a, b char) int { return int(a.class) - int(b.class) })
		i = end
	}
	var out []char
	starter := -1
	for _, c := range chars {
		// A mark is blocked where one of its class or a higher one, or a letter,
		// stands between it and the letter.
		if starter >= 0 && (len(out)-1 == starter || out[len(out)-1].class != 0 && out[len(out)-1].class < c.class) {
			pair := out[starter].text + c.text
			if one := norm.NFC.String(pair); utf8.RuneCountInString(one) == 1 && one != pair {
				out[starter].text = one
				continue
			}
		}
		if c.class == 0 {
			starter = len(out)
		}
		out = append(out, c)
	}
	var composed []byte
	for _, c := range out {
		composed = append(composed, c.text...)
	}
	return string(composed)
}
