package tokenizer

import (
	"encoding/json"
	"strings"
)

// EndOfText is the token that BytesFiles gives the zero byte, which no text has.
const EndOfText = "<|endoftext|>"

// BytesFiles are the files of a Hugging Face folder whose tokenizer is Bytes: ids are
// bytes. A zero byte cannot be written as text there, only as EndOfText.
func BytesFiles() (map[string][]byte, error) {
	vocab := map[string]int{EndOfText: 0}
	for b := 1; b < 256; b++ {
		vocab[string(byteChars[b])] = b
	}
	end := map[string]any{"id": 0, "content": EndOfText, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	settings := map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": EndOfText, "eos_token": EndOfText, "clean_up_tokenization_spaces": false,
	}
	files := map[string][]byte{}
	for name, content := range map[string]any{
		"tokenizer.json": map[string]any{
			"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": []any{end}, "normalizer": nil,
			"pre_tokenizer": byteLevel, "post_processor": nil, "decoder": byteLevel,
			"model": map[string]any{
				"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
				"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []string{},
			},
		},
		"tokenizer_config.json": settings,
	} {
		var text strings.Builder
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(content); err != nil {
			return nil, err
		}
		files[name] = []byte(text.String())
	}
	return files, nil
}
