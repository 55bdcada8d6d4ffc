package tokenizer

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// scanner gives the end of the word that begins at at, an index into text.
// It looks at nothing before at.
type scanner func(text string, at int) (end int)

// The patterns that tokenizer.json names, as the files write them. Go's regexp
// knows no look-ahead, so each has a scanner; another pattern is refused.
const (
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// patternScanner is the scanner of a pattern, or nil.
func patternScanner(pattern string) scanner {
	c := unicodeClasses()
	switch pattern {
	case gpt2Pattern:
		return c.gpt2
	case qwen2Pattern:
		return func(text string, at int) int { return c.llama3(text, at, 1) }
	case llama3Pattern:
		return func(text string, at int) int { return c.llama3(text, at, 3) }
	}
	return nil
}

// gpt2 is gpt2Pattern.
func (c *classes) gpt2(text string, at int) int {
	if text[at] == '\'' {
		if end := contraction(text, at+1, false); end > 0 {
			return end
		}
	}
	k, n := c.at(text, at)
	next := at + n
	if text[at] == ' ' && next < len(text) {
		if after, n := c.at(text, next); !after.blank() {
			return c.run(text, next+n, after)
		}
	}
	if k.blank() {
		return c.blanks(text, at, false)
	}
	return c.run(text, next, k)
}

// llama3 is llama3Pattern, or qwen2Pattern where numbers have one digit.
func (c *classes) llama3(text string, at, digits int) int {
	if text[at] == '\'' {
		if end := contraction(text, at+1, true); end > 0 {
			return end
		}
	}
	k, n := c.at(text, at)
	next := at + n
	switch k {
	case letter:
		return c.run(text, next, letter)
	case number:
		for ; digits > 1 && next < len(text); digits-- {
			k, n := c.at(text, next)
			if k != number {
				break
			}
			next += n
		}
		return next
	case space, other:
		if next == len(text) {
			return next
		}
		after, n := c.at(text, next)
		if after == letter {
			return c.run(text, next+n, letter)
		}
		if k == other || text[at] == ' ' && after == other {
			next = c.run(text, next, other)
			for next < len(text) && (text[next] == '\n' || text[next] == '\r') {
				next++
			}
			return next
		}
	}
	return c.blanks(text, at, true)
}

// run is the end of the characters of class k from at on.
func (c *classes) run(text string, at int, k class) int {
	for at < len(text) {
		is, n := c.at(text, at)
		if is != k {
			break
		}
		at += n
	}
	return at
}

// blanks takes white space, of which there is some at at: \s*[\r\n]+ where lines
// is set, else all of it at the end of the text, else all but the last character,
// which goes with the word that follows, else that one.
func (c *classes) blanks(text string, at int, lines bool) int {
	end, last, line := at, at, 0
	for end < len(text) {
		k, n := c.at(text, end)
		if !k.blank() {
			break
		}
		last = end
		end += n
		if k == newline {
			line = end
		}
	}
	switch {
	case lines && line > 0:
		return line
	case end == len(text) || last == at:
		return end
	}
	return last
}

// contraction is the end of what may follow an apostrophe in English, or 0.
// Where letters are folded, the long s is one as well.
func contraction(text string, at int, fold bool) int {
	lower := func(i int) byte {
		if i >= len(text) {
			return 0
		}
		if b := text[i]; fold && 'A' <= b && b <= 'Z' {
			return b + 'a' - 'A'
		}
		return text[i]
	}
	switch first, second := lower(at), lower(at+1); {
	case first == 's' || first == 't' || first == 'm' || first == 'd':
		return at + 1
	case second == 'e' && (first == 'r' || first == 'v') || second == 'l' && first == 'l':
		return at + 2
	case fold && strings.HasPrefix(text[min(at, len(text)):], "\u017f"):
		return at + len("\u017f")
	}
	return 0
}

// spaceMark is how tokenizers over characters write a space.
const spaceMark = "\u2581"

// markedWord is a scanner for text with spaces as spaceMark: each begins a word.
func markedWord(text string, at int) int {
	if i := strings.Index(text[at+1:], spaceMark); i >= 0 {
		return at + 1 + i
	}
	return len(text)
}

// markedRun is markedWord, but several in a row begin one word.
func markedRun(text string, at int) int {
	for strings.HasPrefix(text[at:], spaceMark) {
		at += len(spaceMark)
	}
	if i := strings.Index(text[at:], spaceMark); i >= 0 {
		return at + i
	}
	return len(text)
}

// whole is the scanner of tokenizers that do not split.
func whole(text string, _ int) int { return len(text) }

// class is what the patterns of tokenizers tell apart.
type class uint8

const (
	other   class = iota // none of the following, and bytes that are not UTF-8
	letter               // \p{L}
	number               // \p{N}
	space                // \s without the next
	newline              // \r and \n
)

// blank is \s.
func (c class) blank() bool { return c >= space }

// classEnd is behind the last letter or number.
const classEnd = 0x323b0

// classes has the class of every character below classEnd. The characters from
// there on are other.
type classes [classEnd]class

// unicodeClasses is made once, by the first tokenizer that needs it.
var unicodeClasses = sync.OnceValue(func() *classes {
	c := new(classes)
	for _, t := range []struct {
		table *unicode.RangeTable
		class class
	}{{unicode.L, letter}, {unicode.N, number}, {letters16, letter}, {numbers16, number}, {unicode.White_Space, space}} {
		for _, r := range t.table.R16 {
			c.fill(rune(r.Lo), rune(r.Hi), rune(r.Stride), t.class)
		}
		for _, r := range t.table.R32 {
			c.fill(rune(r.Lo), rune(r.Hi), rune(r.Stride), t.class)
		}
	}
	c['\r'], c['\n'] = newline, newline
	return c
})

func (c *classes) fill(lo, hi, stride rune, k class) {
	for r := lo; r <= hi && r < classEnd; r += stride {
		c[r] = k
	}
}

// at is the class of the character of text that begins at i, and its length.
func (c *classes) at(text string, i int) (class, int) {
	if b := text[i]; b < utf8.RuneSelf {
		return c[b], 1
	}
	r, n := utf8.DecodeRuneInString(text[i:])
	return c.of(r), n
}

func (c *classes) of(r rune) class {
	if r < classEnd {
		return c[r]
	}
	return other
}

// The letters and numbers that Unicode 15.1 and 16 added to those of 15.0, which
// Go's tables hold up to Go 1.26. Hugging Face's tokenizers know them.
var (
	letters16 = &unicode.RangeTable{
		R16: []unicode.Range16{{0x1c89, 0x1c8a, 1}, {0xa7cb, 0xa7cd, 1}, {0xa7da, 0xa7dc, 1}},
		R32: []unicode.Range32{
			{0x105c0, 0x105f3, 1}, {0x10d4a, 0x10d65, 1}, {0x10d6f, 0x10d85, 1}, {0x10ec2, 0x10ec4, 1},
			{0x11380, 0x11389, 1}, {0x1138b, 0x1138b, 1}, {0x1138e, 0x1138e, 1}, {0x11390, 0x113b5, 1},
			{0x113b7, 0x113b7, 1}, {0x113d1, 0x113d1, 1}, {0x113d3, 0x113d3, 1}, {0x11bc0, 0x11be0, 1},
			{0x13460, 0x143fa, 1}, {0x16100, 0x1611d, 1}, {0x16d40, 0x16d6c, 1}, {0x18cff, 0x18cff, 1},
			{0x1e5d0, 0x1e5ed, 1}, {0x1e5f0, 0x1e5f0, 1}, {0x2ebf0, 0x2ee5d, 1},
		},
	}
	numbers16 = &unicode.RangeTable{
		R32: []unicode.Range32{
			{0x10d40, 0x10d49, 1}, {0x116d0, 0x116e3, 1}, {0x11bf0, 0x11bf9, 1}, {0x16130, 0x16139, 1},
			{0x16d70, 0x16d79, 1}, {0x1ccf0, 0x1ccf9, 1}, {0x1e5f1, 0x1e5fa, 1},
		},
	}
)
