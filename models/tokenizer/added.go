package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in a text before the text is encoded.
type addedToken struct {
	id         int32
	content    string
	singleWord bool // not inside a word
	lstrip     bool // takes the white space on its left
	rstrip     bool // and on its right
	normalized bool // looked for in the normalised text, and normalised itself
	special    bool // left out of decoded text
}

// matcher finds added tokens: a tree of their bytes. The zero matcher finds none.
type matcher struct {
	root [256]*matchNode
}

type matchNode struct {
	next  map[byte]*matchNode
	token *addedToken // that ends here, or nil
}

// add makes the matcher find token where pattern stands.
func (m *matcher) add(pattern string, token *addedToken) {
	if pattern == "" {
		return
	}
	n := m.root[pattern[0]]
	if n == nil {
		n = &matchNode{next: map[byte]*matchNode{}}
		m.root[pattern[0]] = n
	}
	for _, b := range []byte(pattern[1:]) {
		child := n.next[b]
		if child == nil {
			child = &matchNode{next: map[byte]*matchNode{}}
			n.next[b] = child
		}
		n = child
	}
	if n.token == nil {
		n.token = token
	}
}

// find gives the first place from at on where a token stands, and the longest
// that does; token is nil where there is none.
func (m *matcher) find(text string, at int) (start, end int, token *addedToken) {
	for ; at < len(text); at++ {
		n := m.root[text[at]]
		for i := at + 1; n != nil; i++ {
			if n.token != nil {
				start, end, token = at, i, n.token
			}
			if i == len(text) {
				break
			}
			n = n.next[text[i]]
		}
		if token != nil {
			return start, end, token
		}
	}
	return len(text), len(text), nil
}

// split cuts text at the added tokens: it gives stretches of text, none empty, with
// where they begin, and in their order the tokens between them. Where plain is set,
// special tokens are text.
func (m *matcher) split(text string, plain bool, stretch func(at int, text string), found func(id int32)) {
	done := 0 // all before it is given
	for next := 0; ; {
		start, end, token := m.find(text, next)
		if token == nil {
			break
		}
		next = end
		if plain && token.special || token.singleWord && (endsInWord(text[:start]) || beginsWithWord(text[end:])) {
			continue
		}
		if token.lstrip {
			start = len(strings.TrimRightFunc(text[:start], unicode.IsSpace)) // done, or before it, where a token took it
		}
		if token.rstrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if done < start {
			stretch(done, text[done:start])
		}
		found(token.id)
		done = end
	}
	if done < len(text) {
		stretch(done, text[done:])
	}
}

func endsInWord(text string) bool {
	r, _ := utf8.DecodeLastRuneInString(text)
	return text != "" && inWord(r)
}

func beginsWithWord(text string) bool {
	r, _ := utf8.DecodeRuneInString(text)
	return text != "" && inWord(r)
}

// inWord is the \w of regular expressions with Unicode.
func inWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control, letters16)
}
