package jinja

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// kind is the kind of a token. An operator's or bracket's kind is its text.
type kind string

const (
	kindData       kind = "text"
	kindName       kind = "name"
	kindString     kind = "string"
	kindInteger    kind = "integer"
	kindFloat      kind = "float"
	kindTagBegin   kind = "{%"
	kindTagEnd     kind = "%}"
	kindPrintBegin kind = "{{"
	kindPrintEnd   kind = "}}"
	kindEnd        kind = "end of template"
)

// token is a piece of a template. value is that of a literal.
type token struct {
	kind  kind
	text  string
	value Value
	at    int // offset in the source
}

// lexer cuts a template into tokens and drops the white space that tags take
// away.
type lexer struct {
	src       string
	at        int
	tokens    []token
	lineStart bool // the text that follows begins a line
}

func (t *Template) lex() ([]token, error) {
	l := &lexer{src: t.source, lineStart: true}
	for l.at < len(l.src) {
		if err := l.next(); err != nil {
			return nil, t.errorAt(l.at, err)
		}
	}
	return append(l.tokens, token{kind: kindEnd, at: len(l.src)}), nil
}

func (l *lexer) add(k kind, text string, at int) {
	l.tokens = append(l.tokens, token{kind: k, text: text, at: at})
}

// next takes the text up to the next tag, and the tag.
func (l *lexer) next() error {
	begin := l.tag()
	if begin < 0 {
		l.add(kindData, l.src[l.at:], l.at)
		l.at = len(l.src)
		return nil
	}
	open := l.src[begin : begin+2]
	inside := begin + 2
	var sign byte
	if inside < len(l.src) && (l.src[inside] == '-' || l.src[inside] == '+') {
		sign = l.src[inside]
		inside++
	}
	if text := l.before(l.src[l.at:begin], sign, open != "{{"); text != "" {
		l.add(kindData, text, l.at)
	}
	l.at = begin
	switch {
	case open == "{#":
		return l.comment(inside)
	case open == "{{":
		l.add(kindPrintBegin, open, begin)
		return l.inside(inside, kindPrintEnd)
	}
	if raw, ok := l.rawBegin(inside); ok {
		return l.raw(raw)
	}
	l.add(kindTagBegin, open, begin)
	return l.inside(inside, kindTagEnd)
}

// tag is the offset of the next tag's opening, or -1.
func (l *lexer) tag() int {
	for at := l.at; ; {
		i := strings.IndexByte(l.src[at:], '{')
		if i < 0 || at+i+1 == len(l.src) {
			return -1
		}
		at += i
		if strings.IndexByte("{%#", l.src[at+1]) >= 0 {
			return at
		}
		at++
	}
}

// before is the text in front of a tag, less what the tag takes away: all white
// space with the sign -, and for a tag that prints nothing, without the sign +,
// the blanks between the start of its line and itself.
func (l *lexer) before(text string, sign byte, silent bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || !silent {
		return text
	}
	start := strings.LastIndexByte(text, '\n') + 1
	if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
		return text[:start]
	}
	return text
}

// after ends a tag whose closing text ends at offset at: sign - takes away all
// white space behind it; else, where trim is set, one line break goes.
func (l *lexer) after(at int, sign byte, trim bool) {
	end := at
	if sign == '-' {
		end = len(l.src) - len(strings.TrimLeftFunc(l.src[at:], isSpace))
	} else if trim && sign != '+' && strings.HasPrefix(l.src[at:], "\n") {
		end++
	}
	l.lineStart = l.src[end-1] == '\n'
	l.at = end
}

// comment skips a comment whose text starts at offset from.
func (l *lexer) comment(from int) error {
	n := strings.Index(l.src[from:], "#}")
	if n < 0 {
		return errors.New("this comment has no end: #} is missing")
	}
	l.after(from+n+2, signBefore(l.src[from:from+n]), true)
	return nil
}

func signBefore(text string) byte {
	if n := len(text); n > 0 && (text[n-1] == '-' || text[n-1] == '+') {
		return text[n-1]
	}
	return 0
}

// rawBegin reads the rest of {% raw %} and says whether it is one. It takes no
// line break away.
func (l *lexer) rawBegin(from int) (int, bool) {
	rest := l.src[from:]
	word, ok := strings.CutPrefix(strings.TrimLeftFunc(rest, isSpace), "raw")
	if !ok {
		return 0, false
	}
	word = strings.TrimLeftFunc(word, isSpace)
	if end, ok := strings.CutPrefix(word, "-%}"); ok {
		return len(l.src) - len(strings.TrimLeftFunc(end, isSpace)), true
	}
	end, ok := strings.CutPrefix(word, "%}")
	return len(l.src) - len(end), ok
}

// raw takes the text from offset from to {% endraw %} as it is.
func (l *lexer) raw(from int) error {
	for at := from; ; at += 2 {
		n := strings.Index(l.src[at:], "{%")
		if n < 0 {
			return errors.New("this raw block has no end: {% endraw %} is missing")
		}
		at += n
		rest := l.src[at+2:]
		var sign byte
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, rest = rest[0], rest[1:]
		}
		rest, ok := strings.CutPrefix(strings.TrimLeftFunc(rest, isSpace), "endraw")
		if !ok {
			continue
		}
		rest = strings.TrimLeftFunc(rest, isSpace)
		var end byte
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			end, rest = rest[0], rest[1:]
		}
		if !strings.HasPrefix(rest, "%}") {
			continue
		}
		l.lineStart = false // the opening tag ends its line, whatever it took away
		if text := l.before(l.src[from:at], sign, true); text != "" {
			l.add(kindData, text, from)
		}
		l.after(len(l.src)-len(rest)+2, end, true)
		return nil
	}
}

// inside cuts the inside of a tag into tokens, up to its end.
func (l *lexer) inside(from int, end kind) error {
	begin := l.at
	var open []byte // brackets
	for at := from; ; {
		rest := l.src[at:]
		if rest == "" {
			l.at = begin
			return fmt.Errorf("this tag has no end: %s is missing", end)
		}
		if len(open) == 0 {
			if sign, n := closing(rest, end); n > 0 {
				l.add(end, string(end), at)
				l.after(at+n, sign, end == kindTagEnd)
				return nil
			}
		}
		if trimmed := strings.TrimLeftFunc(rest, isSpace); len(trimmed) < len(rest) {
			at += len(rest) - len(trimmed)
			continue
		}
		l.at = at // where an error lies
		tok, n, err := l.token(rest)
		if err != nil {
			return err
		}
		switch tok.kind {
		case "(", "[", "{":
			open = append(open, rest[0])
		case ")", "]", "}":
			if len(open) == 0 || closes[open[len(open)-1]] != rest[0] {
				return fmt.Errorf("%q closes nothing that is open", rest[0])
			}
			open = open[:len(open)-1]
		}
		tok.at = at
		l.tokens = append(l.tokens, tok)
		at += n
	}
}

var closes = map[byte]byte{'(': ')', '[': ']', '{': '}'}

// closing says how many bytes of rest close a tag, and with which sign.
func closing(rest string, end kind) (byte, int) {
	if strings.HasPrefix(rest, string(end)) {
		return 0, 2
	}
	sign := rest[0]
	if sign == '-' || sign == '+' && end == kindTagEnd {
		if strings.HasPrefix(rest[1:], string(end)) {
			return sign, 3
		}
	}
	return 0, 0
}

// isSpace is white space as Python counts it.
func isSpace(r rune) bool { return unicode.IsSpace(r) || '\x1c' <= r && r <= '\x1f' }
