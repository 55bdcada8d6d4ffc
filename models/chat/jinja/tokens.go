package jinja

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// operators, the longer ones first.
var operators = []kind{
	"//", "**", "==", "!=", ">=", "<=",
	"+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",",
}

// token reads one token from the front of rest, which is not blank, and says how
// many bytes it has.
func (l *lexer) token(rest string) (token, int, error) {
	c := rest[0]
	switch {
	case '0' <= c && c <= '9':
		return l.number(rest)
	case c == '\'' || c == '"':
		return stringToken(rest)
	}
	if n := nameLength(rest); n > 0 {
		return token{kind: kindName, text: rest[:n]}, n, nil
	}
	for _, op := range operators {
		if strings.HasPrefix(rest, string(op)) {
			return token{kind: op, text: string(op)}, len(op), nil
		}
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return token{}, 0, fmt.Errorf("unexpected character %q", r)
}

func nameLength(s string) int {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r) && !unicode.IsMark(r)) {
			return i
		}
	}
	return len(s)
}

// number reads a decimal integer or float. Behind a dot there is an index alone,
// as in x.0.1.
func (l *lexer) number(rest string) (token, int, error) {
	n := digits(rest)
	float := false
	if last := len(l.tokens) - 1; l.tokens[last].kind != "." {
		if frac := digits(after(rest, n, ".")); frac > 0 {
			n += 1 + frac
			float = true
		}
		if exp := exponent(rest[n:]); exp > 0 {
			n += exp
			float = true
		}
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	if float {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return token{}, 0, fmt.Errorf("the number %s is out of range", text)
		}
		return token{kind: kindFloat, text: rest[:n], value: x}, n, nil
	}
	if len(text) > 1 && text[0] == '0' && strings.Trim(text, "0") != "" || nameLength(rest[n:]) > 0 {
		return token{}, 0, fmt.Errorf("%w: number %q: write integers in decimal", ErrUnsupported, rest[:n+nameLength(rest[n:])])
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return token{}, 0, fmt.Errorf("%w: integer %s of more than 64 bits", ErrUnsupported, text)
	}
	return token{kind: kindInteger, text: rest[:n], value: i}, n, nil
}

// after is what follows mark in s from offset n, empty where mark is not there.
func after(s string, n int, mark string) string {
	rest, ok := strings.CutPrefix(s[n:], mark)
	if !ok {
		return ""
	}
	return rest
}

// digits counts the digits in front of s, with single underscores between them.
func digits(s string) int {
	n := 0
	for n < len(s) && (isDigit(s[n]) || s[n] == '_' && n > 0 && s[n-1] != '_' && n+1 < len(s) && isDigit(s[n+1])) {
		n++
	}
	return n
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func exponent(s string) int {
	if s == "" || s[0] != 'e' && s[0] != 'E' {
		return 0
	}
	n := 1
	if n < len(s) && (s[n] == '+' || s[n] == '-') {
		n++
	}
	d := digits(s[n:])
	if d == 0 {
		return 0
	}
	return n + d
}

// stringToken reads a string literal with Python's escapes.
func stringToken(rest string) (token, int, error) {
	end := 1
	for end < len(rest) && rest[end] != rest[0] {
		if rest[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(rest) {
		return token{}, 0, errors.New("this string has no end")
	}
	value, err := unescape(rest[1:end])
	return token{kind: kindString, text: rest[:end+1], value: value}, end + 1, err
}

var simpleEscapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': "\"",
	'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

var hexEscapes = map[byte]int{'x': 2, 'u': 4, 'U': 8}

// unescape replaces the escapes of a string literal. An unknown one stays, as in
// Python.
func unescape(s string) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "\\")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		c := rest[0] // there: a backslash does not end a literal
		s = rest[1:]
		if text, ok := simpleEscapes[c]; ok {
			b.WriteString(text)
			continue
		}
		base, size := 16, hexEscapes[c]
		switch {
		case '0' <= c && c <= '7':
			base, s = 8, rest
			for size < 3 && size < len(s) && '0' <= s[size] && s[size] <= '7' {
				size++
			}
		case c == 'N':
			return "", fmt.Errorf(`%w: \N{name} in a string`, ErrUnsupported)
		case size == 0:
			b.WriteString("\\")
			s = rest
			continue
		}
		if size > len(s) {
			return "", fmt.Errorf(`\%c needs %d digits`, c, size)
		}
		code, err := strconv.ParseUint(s[:size], base, 32)
		if err != nil {
			return "", fmt.Errorf(`\%c needs %d digits, not %q`, c, size, s[:size])
		}
		if !utf8.ValidRune(rune(code)) {
			return "", fmt.Errorf("U+%04X is no character", code)
		}
		b.WriteRune(rune(code))
		s = s[size:]
	}
}
