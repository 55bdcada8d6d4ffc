package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// expression matches s from i on, and calls next with each end, the preferred one
// first, until next is content.
type expression func(s []rune, i int, next func(end int) bool) bool

// compiler turns a pattern into an expression that backtracks, as the engines for
// which the patterns are written do. It knows what the patterns need.
type compiler struct {
	pattern []rune
	fold    bool
}

func compile(pattern string) expression {
	c := &compiler{pattern: []rune(pattern)}
	e := c.alternatives()
	if len(c.pattern) > 0 {
		panic("left over: " + string(c.pattern))
	}
	return e
}

func (c *compiler) take(prefix string) bool {
	p := []rune(prefix)
	if len(c.pattern) < len(p) || string(c.pattern[:len(p)]) != prefix {
		return false
	}
	c.pattern = c.pattern[len(p):]
	return true
}

func (c *compiler) alternatives() expression {
	all := []expression{c.sequence()}
	for c.take("|") {
		all = append(all, c.sequence())
	}
	return func(s []rune, i int, next func(int) bool) bool {
		return slices.ContainsFunc(all, func(e expression) bool { return e(s, i, next) })
	}
}

func (c *compiler) sequence() expression {
	e := func(_ []rune, i int, next func(int) bool) bool { return next(i) }
	for len(c.pattern) > 0 && c.pattern[0] != '|' && c.pattern[0] != ')' {
		before, item := e, c.repeated()
		e = func(s []rune, i int, next func(int) bool) bool {
			return before(s, i, func(j int) bool { return item(s, j, next) })
		}
	}
	return e
}

func (c *compiler) repeated() expression {
	item := c.item()
	least, most := 1, 1
	switch {
	case c.take("?"):
		least = 0
	case c.take("+"):
		most = 1 << 30
	case c.take("*"):
		least, most = 0, 1<<30
	case c.take("{1,3}"):
		most = 3
	default:
		return item
	}
	var more func(n int, s []rune, i int, next func(int) bool) bool
	more = func(n int, s []rune, i int, next func(int) bool) bool {
		if n < most && item(s, i, func(j int) bool { return more(n+1, s, j, next) }) {
			return true
		}
		return n >= least && next(i)
	}
	return func(s []rune, i int, next func(int) bool) bool { return more(0, s, i, next) }
}

func (c *compiler) item() expression {
	switch {
	case c.take("(?i:"):
		c.fold = true
		e := c.alternatives()
		c.fold = false
		c.take(")")
		return e
	case c.take(`(?!\S)`):
		return func(s []rune, i int, next func(int) bool) bool {
			return (i == len(s) || unicode.IsSpace(s[i])) && next(i)
		}
	case c.take("[^"):
		var not []func(rune) bool
		for !c.take("]") {
			not = append(not, c.set())
		}
		return one(func(r rune) bool {
			return !slices.ContainsFunc(not, func(f func(rune) bool) bool { return f(r) })
		})
	case c.take("["):
		var sets []func(rune) bool
		for !c.take("]") {
			sets = append(sets, c.set())
		}
		return one(func(r rune) bool {
			return slices.ContainsFunc(sets, func(f func(rune) bool) bool { return f(r) })
		})
	}
	return one(c.set())
}

func (c *compiler) set() func(rune) bool {
	switch {
	case c.take(`\p{L}`):
		return func(r rune) bool { return unicode.In(r, unicode.L, letters16) }
	case c.take(`\p{N}`):
		return func(r rune) bool { return unicode.In(r, unicode.N, numbers16) }
	case c.take(`\s`):
		return unicode.IsSpace
	case c.take(`\r`):
		return func(r rune) bool { return r == '\r' }
	case c.take(`\n`):
		return func(r rune) bool { return r == '\n' }
	}
	want, fold := c.pattern[0], c.fold
	c.pattern = c.pattern[1:]
	return func(r rune) bool {
		if fold {
			for f := unicode.SimpleFold(want); f != want; f = unicode.SimpleFold(f) {
				if r == f {
					return true
				}
			}
		}
		return r == want
	}
}

func one(is func(rune) bool) expression {
	return func(s []rune, i int, next func(int) bool) bool {
		return i < len(s) && is(s[i]) && next(i+1)
	}
}

// randomText has few sorts of characters, so that they often meet.
func randomText(random *rand.Rand) string {
	sorts := [][]rune{
		[]rune("'stmdrevlSTMDREVL\u017f "), []rune(" \n\r\t\u00a0\u0085\u2028\u3000"), []rune("aZéя你한\u1c89\U0002ebf0"),
		[]rune("019½٣Ⅷ\U0001e5f1"), []rune("!.(_\u0301\u200d\ufeff😀\x00"), []rune(" "), []rune("\n"),
	}
	var text strings.Builder
	for range 1 + random.IntN(24) {
		if random.IntN(20) == 0 {
			text.WriteRune(rune(random.IntN(unicode.MaxRune + 1))) // surrogates become U+FFFD
			continue
		}
		sort := sorts[random.IntN(len(sorts))]
		text.WriteRune(sort[random.IntN(len(sort))])
	}
	return text.String()
}

func TestScannersMatchTheirPatterns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, pattern := range []string{gpt2Pattern, qwen2Pattern, llama3Pattern} {
		scan, reference := patternScanner(pattern), compile(pattern)
		for range 10000 {
			text := randomText(random)
			var want, got []string
			for s, i := []rune(text), 0; i < len(s); {
				reference(s, i, func(end int) bool {
					want = append(want, string(s[i:end]))
					i = end
					return true
				})
			}
			for at := 0; at < len(text); {
				end := scan(text, at)
				got = append(got, text[at:end])
				at = end
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s\n%+q:\ngot  %+q\nwant %+q", pattern, text, got, want)
			}
		}
	}
}

func TestClassesAreUnicode(t *testing.T) {
	c := unicodeClasses()
	for r := range rune(unicode.MaxRune + 1) {
		want := other
		switch {
		case r == '\r' || r == '\n':
			want = newline
		case unicode.IsSpace(r):
			want = space
		case unicode.In(r, unicode.L, letters16):
			want = letter
		case unicode.In(r, unicode.N, numbers16):
			want = number
		}
		if got := c.of(r); utf8.ValidRune(r) && got != want {
			t.Fatalf("%U is of class %d, want %d", r, got, want)
		}
	}
	letters, numbers := 0, 0
	for r := range rune(unicode.MaxRune + 1) {
		if unicode.Version == "15.0.0" && unicode.In(r, letters16, numbers16) && unicode.In(r, unicode.L, unicode.N) {
			t.Errorf("%U is no addition to Unicode 15.0", r)
		}
		if unicode.Is(letters16, r) {
			letters++
		}
		if unicode.Is(numbers16, r) {
			numbers++
		}
	}
	// So many more than Unicode 15.0 has match \p{L} and \p{N} in Hugging Face's tokenizers 0.23.
	if letters != 4924 || numbers != 80 {
		t.Errorf("%d letters and %d numbers beyond Unicode 15.0", letters, numbers)
	}
}

func TestWordsOverCharacters(t *testing.T) {
	for _, c := range []struct {
		text       string
		runs, each string
	}{
		{"▁a▁b", "▁a|▁b", "▁a|▁b"},
		{"▁▁▁a▁▁", "▁▁▁a|▁▁", "▁|▁|▁a|▁|▁"},
		{"a▁▁b", "a|▁▁b", "a|▁|▁b"},
		{"ab", "ab", "ab"},
	} {
		for want, scan := range map[string]scanner{"runs " + c.runs: markedRun, "each " + c.each: markedWord} {
			var got []string
			for at := 0; at < len(c.text); {
				end := scan(c.text, at)
				got = append(got, c.text[at:end])
				at = end
			}
			if kind, want, _ := strings.Cut(want, " "); strings.Join(got, "|") != want {
				t.Errorf("%s: %q is %q, want %s", kind, c.text, got, want)
			}
		}
	}
}
