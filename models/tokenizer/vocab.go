package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

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
