package tokenizer

import (
	"strings"
	"testing"
)

// withAdded gives a file these added tokens, with the ids behind its vocabulary.
func withAdded(f object, tokens ...object) object {
	n := len(f["model"].(object)["vocab"].(map[string]int))
	added := []any{}
	for i, token := range tokens {
		token["id"] = n + i
		added = append(added, token)
	}
	f["added_tokens"], f["post_processor"] = added, nil
	return f
}

// plainFile splits nothing and has no merges, so that what is found is seen.
func plainFile(tokens ...object) object {
	f := byteFile(gpt2Pattern)
	f["pre_tokenizer"] = object{"type": "ByteLevel", "use_regex": false, "add_prefix_space": false}
	return withAdded(f, tokens...)
}

// The ids are those that Hugging Face's tokenizers 0.23 give.
func TestAddedTokens(t *testing.T) {
	lstrip := object{"content": "[l]", "lstrip": true, "normalized": false}
	rstrip := object{"content": "[r]", "rstrip": true, "normalized": false}
	both := object{"content": "[b]", "lstrip": true, "rstrip": true, "normalized": false}
	cat := object{"content": "cat", "single_word": true, "normalized": false}
	accent := object{"content": "e\u0301", "normalized": true}
	raw := object{"content": "e\u0301", "normalized": false}
	short, long := object{"content": "<a>", "normalized": false}, object{"content": "<a>b", "normalized": false}
	for _, c := range []struct {
		tokens     []object
		text, want string // bytes that are no token stand for themselves
	}{
		{[]object{lstrip}, "x [l] y", "x|[l]| y"},
		{[]object{lstrip}, " \n\u00a0[l][l]\t [l]", "[l]|[l]|[l]"},
		{[]object{rstrip}, "x [r] \n\u2003y", "x |[r]|y"},
		{[]object{rstrip, lstrip}, "[r] [l]", "[r]|[l]"},
		{[]object{both}, "a [b]  [b] c", "a|[b]|[b]|c"},
		{[]object{cat}, "cat", "cat"},
		{[]object{cat}, "a cat, cats", "a |cat|, cats"},
		{[]object{cat}, "concat cat_ 1cat écat", "concat cat_ 1cat écat"},
		{[]object{cat}, "catcat", "catcat"},
		{[]object{cat}, "\U0002ebf0cat \U0001e5d0cat", "\U0002ebf0cat \U0001e5d0cat"}, // letters of Unicode 15.1 and 16
		{[]object{cat}, "cat\u0301", "cat\u0301"},                                     // a mark goes on with the word
		{[]object{accent}, "été", "e\u0301|t|e\u0301"},
		{[]object{accent}, "e\u0301te\u0301", "e\u0301|t|e\u0301"},
		{[]object{raw}, "été e\u0301", "été |e\u0301"},
		{[]object{short, long}, "<a>b<a>c<a<a>", "<a>b|<a>|c<a|<a>"},
		{[]object{long, short}, "<a>b<a>", "<a>b|<a>"},
		{[]object{{"content": "\ufb01x", "normalized": false}}, "\ufb01\ufb01x", "\ufb01|\ufb01x"},
	} {
		tok := open(t, plainFile(c.tokens...))
		var got []string
		rest := ""
		for _, id := range tok.Encode(c.text) {
			if id < 256 {
				rest += tok.text[id]
				continue
			}
			got = append(got, rest, tok.tokens[id])
			rest = ""
		}
		got = append(got, rest)
		if got := strings.Trim(strings.ReplaceAll(strings.Join(got, "|"), "||", "|"), "|"); got != c.want {
			t.Errorf("%q with %v: got %q, want %q", c.text, c.tokens, got, c.want)
		}
	}
}

// Of what stands before words, spaces go before each stretch or the first one.
func TestSpacesBeforeStretches(t *testing.T) {
	metaspace := func(scheme string, split bool) func(object) {
		return func(f object) {
			f["normalizer"] = nil
			f["pre_tokenizer"] = object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
		}
	}
	const text = "a<t>a  a<t> a"
	for _, c := range []struct {
		change func(object)
		want   string
	}{
		{func(object) {}, "▁a <t> ▁a ▁▁ a <t> ▁▁ a"}, // prepended whatever is there
		{metaspace("always", false), "▁a <t> ▁a ▁▁ a <t> ▁a"},
		{metaspace("first", false), "▁a <t> a ▁▁ a <t> ▁a"},
		{metaspace("never", false), "a <t> a ▁▁ a <t> ▁a"},
		{metaspace("first", true), "▁a <t> a ▁ ▁a <t> ▁a"},
		{func(f object) {
			f["normalizer"] = object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}
		}, "a <t> a ▁▁ a <t> ▁a"},
	} {
		merges := []string{"▁ ▁", "▁ a"}
		f := withAdded(charFile(merges...), object{"content": "<t>", "normalized": false})
		c.change(f)
		tok := open(t, f)
		if got := tok.names(tok.Encode(text)); got != c.want {
			t.Errorf("%v and %v: got %q, want %q", f["normalizer"], f["pre_tokenizer"], got, c.want)
		}
	}
	f := withAdded(charFile(), object{"content": "<t>", "normalized": true})
	metaspace("first", false)(f)
	tok := open(t, f)
	if got, want := tok.names(tok.Encode("<t>a")), "<t> a"; got != want {
		t.Errorf("behind a token of the normalised text: got %q, want %q", got, want)
	}
	f = plainFile(object{"content": "<t>", "normalized": false})
	f["pre_tokenizer"] = object{"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}
	tok = open(t, f)
	if got, want := tok.names(tok.Encode("a<t>b<t> c")), "Ġ a <t> Ġ b <t> Ġ c"; got != want {
		t.Errorf("ByteLevel: got %q, want %q", got, want)
	}
}
