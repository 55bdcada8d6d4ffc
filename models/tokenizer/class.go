package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

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
