package tokenizer

import "strings"

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
