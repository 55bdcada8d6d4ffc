package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

func TestBytesAreTheirOwnIds(t *testing.T) {
	text := "héllo\n\xff"
	ids := Bytes{}.Encode(text)
	if len(ids) != len(text) || ids[1] != 0xc3 {
		t.Errorf("Encode(%q) = %v", text, ids)
	}
	if got := (Bytes{}).Decode(append([]int32{0}, append(ids, 0, 256, -1)...)); got != text {
		t.Errorf("Decode gave %q, want %q", got, text)
	}
}

// small is a tokenizer.json with the merges given, and their parts and results
// as vocabulary.
func small(merges ...string) map[string]any {
	vocab := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2}
	add := func(token string) {
		if _, ok := vocab[token]; !ok {
			vocab[token] = len(vocab)
		}
	}
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b))
	}
	for _, c := range "▁abcdeho" {
		add(string(c))
	}
	for _, m := range merges {
		left, right, _ := strings.Cut(m, " ")
		add(left + right)
	}
	var normalizer, decoder any
	json.Unmarshal([]byte(wantNormalizer), &normalizer)
	json.Unmarshal([]byte(wantDecoder), &decoder)
	added := []any{}
	for id, token := range []string{"<unk>", "<s>", "</s>"} {
		added = append(added, map[string]any{"id": id, "content": token, "special": true})
	}
	return map[string]any{
		"added_tokens": added, "normalizer": normalizer, "pre_tokenizer": nil, "decoder": decoder,
		"post_processor": map[string]any{"type": "TemplateProcessing", "single": []any{
			map[string]any{"SpecialToken": map[string]any{"id": "<s>"}}, map[string]any{"Sequence": map[string]any{"id": "A"}}}},
		"model": map[string]any{"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": merges},
	}
}

func open(t *testing.T, f map[string]any) (Tokenizer, error) {
	t.Helper()
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return Open(dir)
}

func TestMergesGoByRankThenFromTheLeft(t *testing.T) {
	tok, err := open(t, small("a b", "b c", "a a", "ab c", "▁ a"))
	if err != nil {
		t.Fatal(err)
	}
	names := tok.(*bpe).tokens
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
		var got []string
		for _, id := range tok.Encode(text) {
			got = append(got, names[id])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("Encode(%q) = %q, want %q", text, got, want)
		}
	}
	if id, ok := tok.BOS(); !ok || id != 1 {
		t.Errorf("BOS is %d, %t", id, ok)
	}
	if _, ok := tok.EOS(); ok {
		t.Error("there is an end of text, and nothing names it")
	}
}

func TestDecodeGivesTheTextBack(t *testing.T) {
	tok, err := open(t, small("a b", "▁ a", "h e"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"abc", " abc", "he ab  e\n", "é€😀", "▁"} {
		want := strings.ReplaceAll(text, space, " ")
		if got := tok.Decode(tok.Encode(text)); got != want {
			t.Errorf("%q came back as %q", text, got)
		}
	}
	e := tok.Encode("é") // its bytes, cut
	if got := tok.Decode(e[:2]); got != "\ufffd" {
		t.Errorf("half a character decodes to %q", got)
	}
	if got := tok.Decode([]int32{1, 9999, -1, 2}); got != "" {
		t.Errorf("special and unknown ids decode to %q", got)
	}
}

// naive merges the pair of lowest rank, the leftmost first, until there is none.
func (t *bpe) naive(text string) []int32 {
	var ids []int32
	for _, s := range t.symbols(space + strings.ReplaceAll(text, " ", space)) {
		ids = append(ids, s.id)
	}
	for {
		best, at := merge{rank: 1 << 30}, -1
		for i := 0; i+1 < len(ids); i++ {
			if m, ok := t.merges[[2]int32{ids[i], ids[i+1]}]; ok && m.rank < best.rank {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = best.id
		ids = slices.Delete(ids, at+1, at+2)
	}
}

func TestQueueAgreesWithPlainMerging(t *testing.T) {
	tok, err := open(t, small("a b", "b c", "a a", "ab c", "▁ a", "c c", "bc c", "aa a", "ab ab", "c ▁", "aaa ▁", "▁a bc"))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		text := make([]byte, 1+random.IntN(40))
		for i := range text {
			text[i] = "abc "[random.IntN(4)]
		}
		if got, want := tok.Encode(string(text)), tok.(*bpe).naive(string(text)); !slices.Equal(got, want) {
			t.Fatalf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestOtherKindsAreRefused(t *testing.T) {
	model := func(key string, value any) func(map[string]any) {
		return func(f map[string]any) { f["model"].(map[string]any)[key] = value }
	}
	for want, change := range map[string]func(map[string]any){
		"byte-level BPE": func(f map[string]any) { f["pre_tokenizer"] = map[string]any{"type": "ByteLevel"} },
		`"Unigram"`:      model("type", "Unigram"),
		"byte_fallback":  model("byte_fallback", false),
		"ignore_merges":  model("ignore_merges", true),
		"dropout":        model("dropout", 0.1),
		"normalizer":     func(f map[string]any) { f["normalizer"] = map[string]any{"type": "NFC"} },
		"decoder":        func(f map[string]any) { delete(f, "decoder") },
		"merge 0":        model("merges", []string{"q r"}),
		"not a pair":     model("merges", []string{"a b c"}),
		"lstrip": func(f map[string]any) {
			f["added_tokens"] = []any{map[string]any{"id": 1, "content": "<s>", "lstrip": true}}
		},
		"ids 1 and 7": func(f map[string]any) {
			f["added_tokens"] = []any{map[string]any{"id": 7, "content": "<s>"}}
		},
		"<0xFF>": func(f map[string]any) {
			vocab := maps.Clone(f["model"].(map[string]any)["vocab"].(map[string]int))
			delete(vocab, "<0xFF>")
			model("vocab", vocab)(f)
		},
	} {
		f := small("a b")
		change(f)
		if _, err := open(t, f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("an empty folder was opened")
	}
}

func TestMergesMayBeLists(t *testing.T) {
	f := small("a b")
	f["model"].(map[string]any)["merges"] = [][]string{{"a", "b"}}
	tok, err := open(t, f)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("ab"); len(got) != 2 {
		t.Errorf("ab is %v", got)
	}
}

// The model wrote the story token by token; decoding gives the text's bytes, and
// encoding these the same tokens, for the model learned from encoded text.
func TestStories(t *testing.T) {
	dir := filepath.Dir(testenv.Data(t, "stories260K/tokenizer.json"))
	tok, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		IDs []int32 `json:"ids"`
	}
	if err := readJSON(filepath.Join(dir, "greedy_expected.json"), &golden); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "expected_stdout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Decode(golden.IDs); got != string(text) {
		t.Errorf("decoded %q, want %q", got, text)
	}
	bos, _ := tok.BOS()
	if got := append([]int32{bos}, tok.Encode(tok.Decode(golden.IDs))...); !slices.Equal(got, golden.IDs) {
		t.Errorf("encoded %v, want %v", got, golden.IDs)
	}
	if eos, ok := tok.EOS(); tok.VocabSize() != 512 || bos != 1 || !ok || eos != 2 {
		t.Errorf("vocabulary %d, from %d to %d", tok.VocabSize(), bos, eos)
	}
}
