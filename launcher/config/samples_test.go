package config

import (
	"strings"
	"testing"
)

// What is for samples, and what is not, is refused where it would do nothing; all
// that is wrong is said.
func TestSamples(t *testing.T) {
	const length = "\ntrain: {max_steps: 1}\n"
	for src, want := range map[string][]string{
		"data: {train: x, format: chat, eval_split: 0.1, packing: false, weights: 2, fields: {messages: conversation}}": nil,
		"data: {train: [x, y], format: mixed, weights: [1, 0], tokenizer: t}\nmodel: {vocab: 300}":                      nil,
		"data: {train: x, truncation: drop}\nmodel: {path: m}":                                                          nil, // text with the model's tokenizer
		"data: {train: x, format: alpaca, template: none}\nsample: {every: 5}":                                          nil,
		"data: {train: x, tokenizer: bytes, max_bytes: 5}\nmodel: {path: m}":                                            nil,
		"data: {train: x, truncation: cut, weights: 1, bad_rows: skip, cache: c}":                                       {"data.truncation: \"cut\": this is for samples (rows, or text with a tokenizer)", "data.weights: [1]", "data.bad_rows: \"skip\"", "data.cache: \"c\""},
		"data: {train: x, train_on: all, template: t, fields: {text: y}}":                                               {"data.train_on: \"all\": this is for rows, and data.format is text", "data.template: \"t\"", "data.fields.text: \"y\""},
		"data: {train: x, format: tokens, tokenizer: t}\nmodel: {vocab: 9}":                                             {"data.tokenizer: \"t\": this is for text and rows"},
		"data: {train: x, format: mixed, fields: {prompt: p}}":                                                          {"data.fields.prompt: \"p\": rows of data.format mixed"},
		"data: {train: x, format: text_rows, train_on: last}":                                                           {"data.train_on: \"last\": all of a text is learned"},
		"data: {train: x, format: chat, max_bytes: 5, template: none}":                                                  {"data.max_bytes: 5: files of samples are read as a whole", "data.template: none: data.format chat cannot be read without one"},
		"data: {train: x, format: chat, weights: [1, 2]}":                                                               {"data.weights: has 2 numbers, and data.train 1 entries"},
		"data: {train: x, format: chat, weights: [0]}":                                                                  {"data.weights: leaves nothing to train on"},
		"data: {train: x, format: chat, tokenizer: t}":                                                                  {"model.vocab: must be given beside data.tokenizer"},
		"data: {train: x, format: chat}\nmodel: {vocab: 200}":                                                           {"model.vocab: 200 is too small: text has a token for each of the 256 bytes"},
		"data: {train: x, format: alpaca}\nmodel: {arch: gpt2}":                                                         {"data.packing: gpt2's learned positions", "packing: false"},
		"data: {train: x, format: chat, field_messages: y, cutoff_len: 5}":                                              {"data.field_messages: unknown key; did you mean data.fields.messages?", "did you mean data.seq_len?"},
		"data: {train: x, format: alpaca, packing: false}\nmodel: {arch: gpt2}":                                         nil,
	} {
		_, err := parse("t.yaml", []byte(src+length), nil, noEnv)
		if want == nil {
			if err != nil {
				t.Errorf("%s: %v", src, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: accepted", src)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error\n%v\nlacks %q", src, err, w)
			}
		}
	}
}
