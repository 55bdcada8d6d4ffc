package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Open reads the tokenizer of a Hugging Face folder: tokenizer.json or, where there
// is none, vocab.json and merges.txt, as GPT-2 has; tokenizer_config.json for the
// names of tokens, and generation_config.json (else config.json) for the ids that
// end a text. What it does not support is an error that names it.
func Open(dir string) (*BPE, error) {
	var c config
	if err := readOptional(filepath.Join(dir, "tokenizer_config.json"), &c); err != nil {
		return nil, err
	}
	path, s, err := readSpec(dir, &c)
	if err != nil {
		return nil, err
	}
	if err := c.extend(s); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	t, err := s.build()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := t.mark(dir, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return t, nil
}

// readSpec reads the tokenizer's own file and says which it is.
func readSpec(dir string, c *config) (string, *spec, error) {
	path := filepath.Join(dir, "tokenizer.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, none := os.Stat(filepath.Join(dir, "vocab.json")); none != nil {
			return "", nil, fmt.Errorf("%w; vocab.json and merges.txt, which would do as well, are not there either", err)
		}
		s, err := readVocabAndMerges(dir, c)
		return dir, s, err
	}
	if err != nil {
		return "", nil, err
	}
	var f file
	if err := strict(path, text, &f); err != nil {
		return "", nil, err
	}
	s, err := f.spec()
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	return path, s, nil
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

// readOptional is readJSON for a file that may be absent.
func readOptional(path string, into any) error {
	if err := readJSON(path, into); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// config is tokenizer_config.json, as far as it matters here.
type config struct {
	Class       string              `json:"tokenizer_class"`
	BOS         named               `json:"bos_token"`
	EOS         named               `json:"eos_token"`
	AddBOS      *bool               `json:"add_bos_token"`
	AddEOS      *bool               `json:"add_eos_token"`
	PrefixSpace bool                `json:"add_prefix_space"`
	Added       map[int32]fileToken `json:"added_tokens_decoder"`
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

// extend adds what the configuration says beyond tokenizer.json: it may have more
// added tokens, and is right about those that both have. Llama's class says by
// flags what the template adds; the others have no such flags.
func (c *config) extend(s *spec) error {
	for id, a := range c.Added {
		i := slices.IndexFunc(s.added, func(b addedToken) bool { return b.content == a.Content })
		switch {
		case i < 0:
			s.added = append(s.added, a.token(id))
		case s.added[i].id != id:
			return fmt.Errorf("the added token %q has id %d in tokenizer_config.json, and %d in tokenizer.json", a.Content, id, s.added[i].id)
		default:
			s.added[i] = a.token(id)
		}
	}
	slices.SortFunc(s.added, func(a, b addedToken) int { return int(a.id) - int(b.id) })
	if !strings.HasPrefix(c.Class, "Llama") && !strings.HasPrefix(c.Class, "CodeLlama") {
		return nil
	}
	for _, flag := range []struct {
		set   *bool
		key   string
		token named
		to    *[]string
	}{{c.AddBOS, "add_bos_token", c.BOS, &s.before}, {c.AddEOS, "add_eos_token", c.EOS, &s.after}} {
		switch {
		case flag.set == nil:
		case !*flag.set:
			*flag.to = nil
		case flag.token == "":
			return fmt.Errorf("tokenizer_config.json says %s, but not which token that is", flag.key)
		default:
			*flag.to = []string{string(flag.token)}
		}
	}
	return nil
}

// endIDs is eos_token_id, written as 2, as [2, 3] or as null.
type endIDs []int32

func (e *endIDs) UnmarshalJSON(text []byte) error {
	var one *int32
	if json.Unmarshal(text, &one) == nil {
		if one != nil {
			*e = endIDs{*one}
		}
		return nil
	}
	return json.Unmarshal(text, (*[]int32)(e))
}

// mark finds the tokens that begin and end a text.
func (t *BPE) mark(dir string, c *config) error {
	bos := string(c.BOS)
	if bos == "" && len(t.before) > 0 {
		bos = t.tokens[t.before[0]]
	}
	for _, m := range []struct {
		name string
		id   *int32
	}{{bos, &t.bos}, {string(c.EOS), &t.eos}} {
		if m.name == "" {
			continue
		}
		ids, err := t.named([]string{m.name})
		if err != nil {
			return err
		}
		*m.id = ids[0]
	}
	for _, name := range []string{"generation_config.json", "config.json"} {
		var err error
		if t.ends, err = t.EndsOf(filepath.Join(dir, name)); err != nil {
			return err
		}
		if len(t.ends) > 0 {
			break
		}
	}
	if t.eos < 0 && len(t.ends) > 0 {
		t.eos = t.ends[0]
	}
	if t.eos >= 0 && !slices.Contains(t.ends, t.eos) {
		t.ends = append(t.ends, t.eos)
	}
	return nil
}

// EndsOf are the tokens at which generation ends by a generation_config.json or
// config.json, none where the file does not exist. One that is not of the vocabulary
// is an error.
func (t *BPE) EndsOf(path string) ([]int32, error) {
	var g struct {
		EOS endIDs `json:"eos_token_id"`
	}
	if err := readOptional(path, &g); err != nil {
		return nil, err
	}
	for _, id := range g.EOS {
		if _, ok := t.Token(id); !ok {
			return nil, fmt.Errorf("%s: the tokenizer has no token %d, which is to end a text", filepath.Base(path), id)
		}
	}
	return g.EOS, nil
}

// readVocabAndMerges reads vocab.json and merges.txt. How a text is split they do
// not say: tokenizer_config.json does by its class, GPT-2's where it names none.
func readVocabAndMerges(dir string, c *config) (*spec, error) {
	s := &spec{byteLevel: true, form: form{scan: patternScanner(gpt2Pattern)}}
	switch strings.TrimSuffix(c.Class, "Fast") {
	case "", "GPT2Tokenizer":
	case "Qwen2Tokenizer":
		s.form = form{nfc: true, scan: patternScanner(qwen2Pattern)}
	default:
		return nil, fmt.Errorf("%s: without tokenizer.json, tokenizer_class must be GPT2Tokenizer or Qwen2Tokenizer, not %q", dir, c.Class)
	}
	if c.PrefixSpace {
		s.form.prefix = prefixEach
	}
	if err := readJSON(filepath.Join(dir, "vocab.json"), &s.vocab); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "merges.txt")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if number == 1 && strings.HasPrefix(line, "#version") {
			continue
		}
		var p pieces
		if err := p.parse(strings.TrimRight(line, "\r\n")); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		s.merges = append(s.merges, p)
	}
	// GPT-2 has one token that is no text, and no file to say so.
	const end = "<|endoftext|>"
	if id, ok := s.vocab[end]; ok && len(c.Added) == 0 {
		s.added = []addedToken{{id: id, content: end, special: true}}
		if c.Class == "" && c.BOS == "" && c.EOS == "" {
			c.BOS, c.EOS = end, end
		}
	}
	// What is added later stands in a file of its own, without its properties.
	var later map[string]int32
	if err := readOptional(filepath.Join(dir, "added_tokens.json"), &later); err != nil {
		return nil, err
	}
	for token, id := range later {
		if a, ok := c.Added[id]; !ok || a.Content != token {
			return nil, fmt.Errorf("%s: added_tokens.json has %q with id %d, the added_tokens_decoder of tokenizer_config.json lacks it", dir, token, id)
		}
	}
	return s, nil
}
