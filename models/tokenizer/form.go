package tokenizer

import "strings"

// form is how text is prepared before its words are encoded.
type form struct {
	nfc     bool   // canonical composition
	prepend bool   // spaceMark before each stretch, whatever it begins with
	replace bool   // spaces become spaceMark, when the text is normalised
	marked  bool   // the same, when it is split
	prefix  prefix // a space before a stretch that does not begin with one
	scan    scanner
}

// prefix says which stretches get a space that they lack.
type prefix int

const (
	noPrefix prefix = iota
	prefixFirst
	prefixEach
)

// normalise is the normaliser of tokenizer.json. Where text does not begin its
// stretch, nothing goes before it.
func (f *form) normalise(text string, begins bool) string {
	if f.nfc {
		text = nfc(text)
	}
	if f.prepend && begins {
		text = spaceMark + text
	}
	if f.replace {
		text = strings.ReplaceAll(text, " ", spaceMark)
	}
	return text
}

// prepare is what the pre-tokeniser does before it splits into words.
func (f *form) prepare(p part) string {
	text, space := p.text, " "
	if f.marked {
		text, space = strings.ReplaceAll(text, " ", spaceMark), spaceMark
	}
	if wants := f.prefix == prefixEach && p.begins || f.prefix == prefixFirst && p.first; wants && !strings.HasPrefix(text, space) {
		text = space + text
	}
	return text
}
