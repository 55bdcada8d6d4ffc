package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// Open reads the tokenizer.json of a Hugging Face folder, and its
// tokenizer_config.json for the names of the tokens that begin and end a text.
// A tokenizer of another kind than the package's comment says is refused.
func Open(dir string) (Tokenizer, error) {
	path := filepath.Join(dir, "tokenizer.json")
	var f file
	if err := readJSON(path, &f); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t, err := f.build()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var c config
	if err := readJSON(filepath.Join(dir, "tokenizer_config.json"), &c); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := t.mark(f, c); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return t, nil
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// file is tokenizer.json, as far as it matters here.
type file struct {
	Added []struct {
		ID         int32  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    any `json:"normalizer"`
	PreTokenizer  any `json:"pre_tokenizer"`
	Decoder       any `json:"decoder"`
	PostProcessor struct {
		Type   string
		Single []map[string]struct{ ID string }
	} `json:"post_processor"`
	Model struct {
		Type                    string
		Dropout                 any
		UnkToken                any    `json:"unk_token"`
		ContinuingSubwordPrefix string `json:"continuing_subword_prefix"`
		EndOfWordSuffix         string `json:"end_of_word_suffix"`
		ByteFallback            bool   `json:"byte_fallback"`
		IgnoreMerges            bool   `json:"ignore_merges"`
		Vocab                   map[string]int32
		Merges                  []pieces
	}
}

// pieces is a merge, written as "a b" or as ["a", "b"].
type pieces [2]string

func (p *pieces) UnmarshalJSON(text []byte) error {
	var joined string
	if json.Unmarshal(text, &joined) != nil {
		var list []string
		if err := json.Unmarshal(text, &list); err != nil || len(list) != 2 {
			return fmt.Errorf("merge %s is not a pair", text)
		}
		*p = pieces(list)
		return nil
	}
	left, right, ok := strings.Cut(joined, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("merge %q is not a pair", joined)
	}
	*p = pieces{left, right}
	return nil
}

// The pipeline around the merges that this package has.
const (
	wantNormalizer = `{"type": "Sequence", "normalizers": [
		{"type": "Prepend", "prepend": "\u2581"},
		{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}`
	wantDecoder = `{"type": "Sequence", "decoders": [
		{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
		{"type": "ByteFallback"}, {"type": "Fuse"},
		{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}`
)

// check refuses what would be encoded in another way than the file says.
func (f *file) check() error {
	refuse := func(what string) error {
		return fmt.Errorf("%s; only BPE with byte_fallback and spaces as U+2581 is supported (as in Llama 2), byte-level BPE (GPT-2, Qwen, Llama 3) is not", what)
	}
	m := f.Model
	switch {
	case m.Type != "BPE":
		return refuse(fmt.Sprintf("the model is of type %q", m.Type))
	case f.PreTokenizer != nil:
		return refuse(fmt.Sprintf("there is a pre_tokenizer, %s", inJSON(f.PreTokenizer)))
	case !m.ByteFallback:
		return refuse("the model has no byte_fallback")
	case m.IgnoreMerges:
		return refuse("the model says ignore_merges")
	case m.Dropout != nil:
		return refuse("the model has a dropout")
	case m.ContinuingSubwordPrefix != "" || m.EndOfWordSuffix != "":
		return refuse("the model marks subwords by a prefix or suffix")
	case !sameJSON(f.Normalizer, wantNormalizer):
		return refuse("the normalizer is " + inJSON(f.Normalizer))
	case !sameJSON(f.Decoder, wantDecoder):
		return refuse("the decoder is " + inJSON(f.Decoder))
	}
	for _, a := range f.Added {
		if a.SingleWord || a.LStrip || a.RStrip || a.Normalized {
			return refuse(fmt.Sprintf("the added token %q asks for single_word, lstrip, rstrip or normalized", a.Content))
		}
	}
	return nil
}

func inJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

func sameJSON(got any, want string) bool {
	var w any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		panic("tokenizer: " + err.Error())
	}
	return reflect.DeepEqual(got, w)
}

// maxVocab bounds ids, for a damaged file must not ask for gigabytes.
const maxVocab = 1 << 24

func (f *file) build() (*bpe, error) {
	t := &bpe{ids: map[string]int32{}, byteOf: map[int32]byte{}, merges: map[[2]int32]merge{}, special: map[int32]bool{}, bos: -1, eos: -1}
	add := func(token string, id int32) error {
		if id < 0 || id >= maxVocab {
			return fmt.Errorf("token %q has id %d", token, id)
		}
		if old, ok := t.ids[token]; ok && old != id {
			return fmt.Errorf("token %q has the ids %d and %d", token, old, id)
		}
		if n := int(id) + 1 - len(t.tokens); n > 0 {
			t.tokens = append(t.tokens, make([]string, n)...)
		}
		if old := t.tokens[id]; old != "" && old != token {
			return fmt.Errorf("id %d belongs to the tokens %q and %q", id, old, token)
		}
		t.ids[token], t.tokens[id] = id, token
		return nil
	}
	for token, id := range f.Model.Vocab {
		if err := add(token, id); err != nil {
			return nil, err
		}
	}
	for _, a := range f.Added {
		if err := add(a.Content, a.ID); err != nil {
			return nil, err
		}
		if a.Content != "" {
			t.added = append(t.added, a.Content)
		}
		if a.Special {
			t.special[a.ID] = true
		}
	}
	slices.SortFunc(t.added, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for b := range t.bytes {
		name := fmt.Sprintf("<0x%02X>", b)
		id, ok := t.ids[name]
		if !ok {
			return nil, fmt.Errorf("byte_fallback without the token %s", name)
		}
		t.bytes[b], t.byteOf[id] = id, byte(b)
	}
	for rank, m := range f.Model.Merges {
		left, ok1 := t.ids[m[0]]
		right, ok2 := t.ids[m[1]]
		id, ok3 := t.ids[m[0]+m[1]]
		if !ok1 || !ok2 || !ok3 {
			return nil, fmt.Errorf("merge %d, %q and %q: the vocabulary lacks a part or the result", rank, m[0], m[1])
		}
		if first, twice := t.merges[[2]int32{left, right}]; twice {
			return nil, fmt.Errorf("merge %d, %q and %q, stands at %d already", rank, m[0], m[1], first.rank)
		}
		t.merges[[2]int32{left, right}] = merge{int32(rank), id}
	}
	return t, nil
}

// config is tokenizer_config.json, as far as it matters here.
type config struct {
	BOS named `json:"bos_token"`
	EOS named `json:"eos_token"`
}

// named is a token, written as "<s>" or as {"content": "<s>", ...}.
type named string

func (n *named) UnmarshalJSON(text []byte) error {
	var object struct{ Content string }
	if json.Unmarshal(text, (*string)(n)) == nil {
		return nil
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return err
	}
	*n = named(object.Content)
	return nil
}

// mark finds the tokens that begin and end a text. A template that begins a text
// with a special token says so where no configuration does.
func (t *bpe) mark(f file, c config) error {
	bos, eos := string(c.BOS), string(c.EOS)
	if single := f.PostProcessor.Single; bos == "" && len(single) > 0 {
		bos = single[0]["SpecialToken"].ID
	}
	for _, m := range []struct {
		name string
		id   *int32
	}{{bos, &t.bos}, {eos, &t.eos}} {
		if m.name == "" {
			continue
		}
		id, ok := t.ids[m.name]
		if !ok {
			return fmt.Errorf("the vocabulary lacks the token %q that begins or ends a text", m.name)
		}
		*m.id = id
	}
	return nil
}
