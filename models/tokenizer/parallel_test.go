package tokenizer

import (
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// cutTokenizers are of each kind that EncodeParallel may cut texts of.
func cutTokenizers(t *testing.T) map[string]*BPE {
	bytes := func(pattern string) object { return byteFile(pattern, append(someMerges("Ġ"), "Ċ Ċ")...) }
	prefixed := withAdded(bytes(gpt2Pattern), object{"content": "[r]", "normalized": true})
	prefixed["pre_tokenizer"] = object{"type": "ByteLevel", "add_prefix_space": true}
	metaspace := charFile(someMerges("▁")...)
	metaspace["normalizer"] = nil
	metaspace["pre_tokenizer"] = object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}
	strip := withAdded(bytes(qwen2Pattern), object{"content": "[l]", "lstrip": true, "normalized": false},
		object{"content": "[r]", "rstrip": true, "normalized": true}, object{"content": "12", "single_word": true})
	all := map[string]*BPE{}
	for name, f := range map[string]object{
		"gpt2": bytes(gpt2Pattern), "qwen2": bytes(qwen2Pattern), "llama3": bytes(llama3Pattern), "prefixed": prefixed,
		"llama2": charFile(someMerges("▁")...), "metaspace": metaspace, "strip": strip,
	} {
		all[name] = open(t, f)
		if !all[name].cuttable {
			t.Errorf("%s is not cut", name)
		}
	}
	return all
}

func TestCutsMakeNoDifference(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "abc", "b", "é", "e\u0301", "\u0301", "你", " ", "  ", "\n", "\n\n", "\r\n", "1", "12", "'s", "!", "<|end|>", "<s>", "[l]", "[r]", "▁", "\u3000", "\xff"}
	for name, tok := range cutTokenizers(t) {
		cuts := 0
		for range 500 {
			var text string
			for range 1 + random.IntN(60) {
				text += parts[random.IntN(len(parts))]
			}
			want := tok.Encode(text)
			var got []int32
			for rest, first := text, true; rest != ""; first = false {
				cut := tok.nextCut(rest, 1)
				got = append(got, tok.encode(rest[:cut], first, false)...)
				if rest = rest[cut:]; rest != "" {
					cuts++
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %+q: got %q, want %q", name, text, tok.names(got), tok.names(want))
			}
		}
		if cuts < 100 {
			t.Errorf("%s: only %d cuts", name, cuts)
		}
	}
}

// Tokens that could reach over a cut forbid them, and so does a vocabulary in which
// the whole text is one word.
func TestSomeTextsAreInOnePiece(t *testing.T) {
	whole := byteFile(gpt2Pattern)
	whole["pre_tokenizer"] = object{"type": "ByteLevel", "use_regex": false}
	for name, f := range map[string]object{
		"space":      withAdded(byteFile(qwen2Pattern), object{"content": "two words"}),
		"mark":       withAdded(charFile(), object{"content": "word", "normalized": true}), // a space goes before it
		"lstrip":     withAdded(byteFile(qwen2Pattern), object{"content": "word", "lstrip": true}),
		"rstrip":     withAdded(byteFile(qwen2Pattern), object{"content": "word", "rstrip": true}),
		"merge":      charFile("a ▁"),
		"no pattern": whole,
	} {
		tok := open(t, f)
		if tok.cuttable {
			t.Errorf("%s: texts are cut", name)
		}
		text := strings.Repeat("a two words word \n", 50000)
		if got := tok.EncodeParallel(text, 4); !slices.Equal(got, tok.Encode(text)) {
			t.Errorf("%s: other ids", name)
		}
	}
}

func longText() string {
	var text strings.Builder
	random := rand.New(rand.NewPCG(3, 4))
	for text.Len() < 4*chunkSize {
		text.WriteString([]string{"abc", "heo", " ", " a", "\n", "你好", "<|end|>", "12"}[random.IntN(8)])
	}
	return text.String()
}

func TestParallelGivesTheSameIDs(t *testing.T) {
	all := cutTokenizers(t)
	for _, name := range []string{"gpt2", "llama2", "metaspace"} {
		tok := all[name]
		text := longText()
		want := tok.Encode(text)
		for _, workers := range []int{0, 3} {
			if got := tok.EncodeParallel(text, workers); !slices.Equal(got, want) {
				t.Errorf("%s, %d workers: other ids than in one piece", name, workers)
			}
		}
		var got []int32
		calls := 0
		err := tok.EncodeReader(iotest.HalfReader(strings.NewReader(text)), 1, func(ids []int32) error {
			got = append(got, ids...)
			calls++
			return nil
		})
		if err != nil || !slices.Equal(got, want) || calls < 3 {
			t.Errorf("%s: from a reader other ids than in one piece, in %d calls, %v", name, calls, err)
		}
	}
	tok := open(t, byteFile(qwen2Pattern))
	if got := tok.EncodeParallel("", 2); len(got) != 0 {
		t.Errorf("no text gives %v", got)
	}
	if err := tok.EncodeReader(strings.NewReader(""), 2, func([]int32) error { return errors.New("called") }); err != nil {
		t.Error(err)
	}
}

// Without a place to cut, the reader's text is held until its end.
func TestReaderWithoutCuts(t *testing.T) {
	tok := open(t, byteFile(qwen2Pattern))
	text := strings.Repeat("1", 3*chunkSize)
	var got []int32
	if err := tok.EncodeReader(strings.NewReader(text), 1, func(ids []int32) error { got = append(got, ids...); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, tok.Encode(text)) {
		t.Error("other ids than in one piece")
	}
}

func TestReaderErrors(t *testing.T) {
	tok := open(t, byteFile(qwen2Pattern))
	broken := errors.New("broken")
	text := strings.Repeat("some words ", chunkSize)
	none := func([]int32) error { return nil }
	if err := tok.EncodeReader(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)), 2, none); !errors.Is(err, broken) {
		t.Errorf("a broken reader gives %v", err)
	}
	if err := tok.EncodeReader(strings.NewReader(text), 2, func([]int32) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a broken receiver gives %v", err)
	}
}
