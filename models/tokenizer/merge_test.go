package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// naive merges pieces as the definition says: the pair of lowest rank, the leftmost
// first, until there is none.
func naive(pieces []string, merges []string) []string {
	for {
		at, best := -1, len(merges)
		for i := range pieces[:max(len(pieces)-1, 0)] {
			if rank := slices.Index(merges, pieces[i]+" "+pieces[i+1]); rank >= 0 && rank < best {
				at, best = i, rank
			}
		}
		if at < 0 {
			return pieces
		}
		pieces[at] += pieces[at+1]
		pieces = slices.Delete(pieces, at+1, at+2)
	}
}

func TestMergesGoByRankThenFromTheLeft(t *testing.T) {
	tok := open(t, charFile("a b", "b c", "a a", "ab c", "▁ a"))
	for text, want := range map[string]string{
		"abc":    "▁ abc",
		"bc":     "▁ bc",
		"aaa":    "▁ aa a", // "a a" ranks before "▁ a"
		"aab":    "▁a ab",
		"a a":    "▁a ▁a",
		"a<s>bc": "▁a <s> ▁ bc",
		"eé":     "▁ e <0xC3> <0xA9>",
		"":       "",
	} {
		if got := tok.names(tok.Encode(text)); got != want {
			t.Errorf("Encode(%q) = %q, want %q", text, got, want)
		}
	}
}

// With the merge over the beginning of a word the whole text is one word; without
// it, words are merged one by one, and that must make no difference.
func TestEncodeAgreesWithPlainMerging(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		merges []string
		file   func(merges []string) object
		mark   string
		before string
	}{
		"words":      {someMerges("▁"), func(m []string) object { return charFile(m...) }, "▁", "▁"},
		"whole text": {append(someMerges("▁"), "c ▁", "c▁ a"), func(m []string) object { return charFile(m...) }, "▁", "▁"},
		"bytes": {someMerges("Ġ"), func(m []string) object {
			f := byteFile(gpt2Pattern, m...)
			f["pre_tokenizer"] = object{"type": "ByteLevel", "use_regex": false, "add_prefix_space": false}
			return f
		}, "Ġ", ""},
	} {
		tok := open(t, c.file(c.merges))
		for range 2000 {
			text := make([]byte, 1+random.IntN(40))
			for i := range text {
				text[i] = "abcheo  "[random.IntN(8)]
			}
			pieces := strings.Split(c.before+strings.ReplaceAll(string(text), " ", c.mark), "")
			want := strings.Join(naive(pieces, c.merges), " ")
			if got := tok.names(tok.Encode(string(text))); got != want {
				t.Fatalf("%s: %q: got %q, want %q", name, text, got, want)
			}
		}
	}
}

func TestQueueAgreesWithLookingAtAllPairs(t *testing.T) {
	tok := open(t, byteFile(gpt2Pattern, someMerges("Ġ")...))
	random := rand.New(rand.NewPCG(3, 4))
	var scratch []merge
	for range 2000 {
		word := make([]int32, 2+random.IntN(longWord-1))
		for i := range word {
			word[i] = tok.bytes["abcheo "[random.IntN(7)]]
		}
		got := tok.merges.applyQueued(slices.Clone(word))
		if want := tok.merges.apply(slices.Clone(word), &scratch); !slices.Equal(got, want) {
			t.Fatalf("%q: got %q, want %q", tok.names(word), tok.names(got), tok.names(want))
		}
	}
}

// A word of a million letters would take days in quadratic time.
func TestLongWord(t *testing.T) {
	var merges []string
	a := "a"
	for range 10 {
		merges = append(merges, a+" "+a)
		a += a
	}
	for tok, n := range map[*BPE]int{open(t, byteFile(qwen2Pattern, merges...)): 1 << 10, open(t, charFile(merges...)): 1 << 6} {
		ids := tok.Encode(strings.Repeat("a", n<<10))
		if !tok.byteLevel {
			ids = ids[1:] // the space before the text
		}
		id, _ := tok.ID(a)
		if len(ids) != n || slices.ContainsFunc(ids, func(got int32) bool { return got != id }) {
			t.Errorf("%d tokens, want %d of 1024 letters each", len(ids), n)
		}
	}
}

func TestWordsThatAreTokensNeedNoMerges(t *testing.T) {
	for _, c := range []struct {
		file           object
		text           string
		merged, ignore string
	}{
		{byteFile(qwen2Pattern, "a b"), " abc1", "Ġ ab c 1", "Ġabc 1"},
		{byteFile(qwen2Pattern), "€", "â Ĥ ¬", "â Ĥ ¬"}, // no token is these bytes
		{charFile("a b"), "abc abc", "▁ ab c ▁ ab c", "▁abc ▁abc"},
	} {
		m := c.file["model"].(object)
		addTo(m["vocab"].(map[string]int), "Ġabc")
		addTo(m["vocab"].(map[string]int), "▁abc")
		addTo(m["vocab"].(map[string]int), "€")
		c.file["added_tokens"], c.file["post_processor"] = []any{}, nil
		for ignore, want := range map[bool]string{false: c.merged, true: c.ignore} {
			m["ignore_merges"] = ignore
			tok := open(t, c.file)
			if got := tok.names(tok.Encode(c.text)); got != want {
				t.Errorf("ignore_merges %t: %q is %q, want %q", ignore, c.text, got, want)
			}
		}
	}
}

// More words than the cache has slots, so that they push each other out.
func TestCacheGivesWhatMergingGives(t *testing.T) {
	tok := open(t, byteFile(gpt2Pattern, someMerges("Ġ")...))
	e := &encoder{BPE: tok}
	random := rand.New(rand.NewPCG(5, 6))
	var words []string
	for range 3 * cacheSlots {
		word := make([]byte, 1+random.IntN(maxCached+4))
		for i := range word {
			word[i] = "abcheo"[random.IntN(6)]
		}
		words = append(words, string(word))
	}
	for range 2 {
		for _, word := range words {
			e.ids = e.ids[:0]
			e.encodeWord(word)
			if want := e.mergeWord(word); !slices.Equal(e.ids, want) {
				t.Fatalf("%q: got %v, want %v", word, e.ids, want)
			}
			e.ids = e.ids[:0]
			if e.encodeWord(word); !slices.Equal(e.ids, e.mergeWord(word)) {
				t.Fatalf("%q: other ids the second time", word)
			}
		}
	}
}
