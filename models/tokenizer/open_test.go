package tokenizer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
)

// clone is a copy of a file that shares nothing with it.
func clone(t *testing.T, f object) object {
	t.Helper()
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return parse(string(text)).(object)
}

// set changes one value in a file, by the keys that lead there.
func set(value any, keys ...string) func(object) {
	return func(f object) {
		for _, key := range keys[:len(keys)-1] {
			f = f[key].(object)
		}
		f[keys[len(keys)-1]] = value
	}
}

// What the package would not do as the file says is refused, by name.
func TestWhatIsRefused(t *testing.T) {
	chars, bytes := charFile("a b"), byteFile(qwen2Pattern, "a b")
	split := func(change func(object)) func(object) {
		return func(f object) { change(f["pre_tokenizer"].(object)["pretokenizers"].([]any)[0].(object)) }
	}
	level := func(change func(object)) func(object) {
		return func(f object) { change(f["pre_tokenizer"].(object)["pretokenizers"].([]any)[1].(object)) }
	}
	sequence := func(section, list string, steps ...string) func(object) {
		return set(parse(`{"type": "Sequence", "`+list+`": [`+strings.Join(steps, ",")+`]}`), section)
	}
	drop := func(key string, token string) func(object) {
		return func(f object) { delete(f["model"].(object)[key].(object), token) }
	}
	template := func(text string) func(object) { return set(parse(text), "post_processor") }
	added := func(token object) func(object) { return set([]any{token}, "added_tokens") }
	const replace = `{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}`
	const prepend = `{"type": "Prepend", "prepend": "\u2581"}`
	for _, c := range []struct {
		want   string
		file   object
		change func(object)
	}{
		{"magic", chars, set(1, "magic")},
		{"no model", chars, set(nil, "model")},
		{`"Unigram"`, chars, set("Unigram", "model", "type")},
		{"dropout of 0.1", chars, set(0.1, "model", "dropout")},
		{`suffix "</w>"`, chars, set("</w>", "model", "end_of_word_suffix")},
		{`prefix "##"`, chars, set("##", "model", "continuing_subword_prefix")},
		{"max_input_chars", chars, set(100, "model", "max_input_chars")},
		{"no vocabulary", chars, set(object{}, "model", "vocab")},
		{"has id -1", chars, set(-1, "model", "vocab", "q")},
		{"has id 16777216", chars, set(1<<24, "model", "vocab", "q")},
		{"id 5 belongs", chars, set(5, "model", "vocab", "q")},
		{"lacks the token <0xFF>", chars, drop("vocab", "<0xFF>")},
		{"lacks the token Ġ of byte 0x20", bytes, drop("vocab", "Ġ")},
		{"lacks the token Ā of byte 0x00", bytes, func(f object) {
			drop("vocab", "Ā")(f)
			f["model"].(object)["unk_token"] = "a"
		}},
		{"merge 0", chars, set([]string{"q r"}, "model", "merges")},
		{"merge 1", chars, set([]string{"a b", "a b"}, "model", "merges")},
		{"not a pair", chars, set([]string{"a b c"}, "model", "merges")},
		{"not a pair", chars, set([]string{"ab"}, "model", "merges")},
		{"not a pair", chars, set([][]string{{"a", "b", "c"}}, "model", "merges")},
		{"not a pair", chars, set([]int{1}, "model", "merges")},

		{"of an unknown type", bytes, set(object{"type": "NFKC"}, "normalizer")},
		{"no object with a type", bytes, set([]any{}, "normalizer")},
		{"unknown options", bytes, set(object{"type": "NFC", "strip": true}, "normalizer")},
		{"only U+2581", chars, sequence("normalizer", "normalizers", strings.ReplaceAll(prepend, "2581", "2582"), replace)},
		{"only spaces", chars, sequence("normalizer", "normalizers", prepend, strings.ReplaceAll(replace, `" "`, `"x"`))},
		{"in this order", chars, sequence("normalizer", "normalizers", replace, prepend)},
		{`unknown key "extra"`, chars, set(object{"type": "Sequence", "normalizers": []any{}, "extra": 1}, "normalizer")},
		{"normalizers", chars, set(object{"type": "Sequence"}, "normalizer")},
		{"no byte_fallback", bytes, sequence("normalizer", "normalizers", prepend, replace)},

		{"no byte_fallback", chars, set(false, "model", "byte_fallback")},
		{"text outside the vocabulary would be lost", bytes, set(nil, "pre_tokenizer")},
		{"text outside the vocabulary would be lost", bytes, sequence("pre_tokenizer", "pretokenizers", `{"type": "Split", "pattern": {"String": " "}}`)},
		{"of an unknown type", bytes, split(set("Digits", "type"))},
		{`none of those known`, bytes, split(set(`\w+|.`, "pattern", "Regex"))},
		{"want a Regex", bytes, split(set(object{"String": " "}, "pattern"))},
		{"want a Regex", bytes, split(set("Removed", "behavior"))},
		{"want a Regex", bytes, split(set(true, "invert"))},
		{"limit", bytes, split(set(1, "limit"))},
		{"use_regex false", bytes, level(set(true, "use_regex"))},
		{"add_prefix_space", bytes, level(set(true, "add_prefix_space"))},
		{"trim", bytes, level(set(true, "trim"))},
		{"stands beside a model with byte_fallback", chars, set(object{"type": "ByteLevel"}, "pre_tokenizer")},
		{"where the model has byte_fallback", chars, func(f object) { f["pre_tokenizer"] = bytes["pre_tokenizer"] }},
		{"not supported behind", chars, sequence("pre_tokenizer", "pretokenizers", `{"type": "Metaspace", "replacement": "\u2581"}`, `{"type": "Metaspace", "replacement": "\u2581"}`)},
		{"with U+2581", chars, set(object{"type": "Metaspace", "replacement": "_"}, "pre_tokenizer")},
		{"prepend_scheme", chars, set(object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "last"}, "pre_tokenizer")},
		{"prepend_scheme", chars, set(object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "add_prefix_space": false}, "pre_tokenizer")},

		{"of an unknown type", chars, template(`{"type": "RobertaProcessing"}`)},
		{"does not say what the token <s> is", chars, template(`{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}`)},
		{`lacks the token "<q>"`, chars, template(`{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "q"}}], "special_tokens": {"q": {"id": "q", "ids": [1], "tokens": ["<q>"]}}}`)},
		{"the text 0 times", chars, template(`{"type": "TemplateProcessing", "single": []}`)},
		{"neither a special token nor the text", chars, template(`{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]}`)},
		{"second of its type", chars, sequence("post_processor", "processors", `{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}`, `{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}`)},
		{"mode", chars, template(`{"type": "ByteLevel", "mode": 1}`)},

		{"decoder", chars, set(nil, "decoder")},
		{"decoder", bytes, set(nil, "decoder")},
		{"as step 1", chars, set(object{"type": "ByteLevel"}, "decoder")},
		{"as step 4", chars, sequence("decoder", "decoders", append(charDecoder[:3:3], `{"type": "Strip", "content": " ", "start": 2, "stop": 0}`)...)},
		{"as step 5", chars, sequence("decoder", "decoders", append(charDecoder[:4:4], `{"type": "Fuse"}`)...)},
		{"want ByteLevel", bytes, func(f object) { f["decoder"] = chars["decoder"] }},

		{"ids 1 and 7", chars, added(object{"id": 7, "content": "<s>"})},
		{"score", chars, added(object{"id": 1, "content": "<s>", "score": 1})},
	} {
		f := clone(t, c.file)
		c.change(f)
		if _, err := Open(folder(t, object{"tokenizer.json": f})); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
	}
	for name, files := range map[string]object{
		"unexpected EOF":                       {"tokenizer.json": "{"},
		"cannot unmarshal":                     {"tokenizer.json": "[]"},
		"invalid character":                    {"tokenizer.json": chars, "tokenizer_config.json": "x"},
		"merges.txt":                           {"vocab.json": object{"a": 1}},
		"merges.txt:2":                         {"vocab.json": object{"a": 1}, "merges.txt": "#version: 0.2\na\n"},
		"not \"Llama":                          {"vocab.json": object{"a": 1}, "merges.txt": "", "tokenizer_config.json": object{"tokenizer_class": "LlamaTokenizer"}},
		"added_tokens_decoder":                 {"vocab.json": object{"a": 1}, "merges.txt": "", "added_tokens.json": object{"x": 2}},
		"byte 0x01":                            {"vocab.json": object{"a": 1}, "merges.txt": ""},
		`lacks the token "<q>"`:                {"tokenizer.json": chars, "tokenizer_config.json": object{"eos_token": "<q>"}},
		"no token 9999":                        {"tokenizer.json": chars, "generation_config.json": object{"eos_token_id": []int{2, 9999}}},
		"eos_token_id":                         {"tokenizer.json": chars, "generation_config.json": object{"eos_token_id": "</s>"}},
		"id 1 in tokenizer_config.json, and 0": {"tokenizer.json": chars, "tokenizer_config.json": object{"added_tokens_decoder": object{"1": object{"content": "<unk>"}}}},
		"which token that is":                  {"tokenizer.json": chars, "tokenizer_config.json": object{"tokenizer_class": "LlamaTokenizer", "add_eos_token": true}},
	} {
		if _, err := Open(folder(t, files)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error with %q, got %v", name, err)
		}
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "vocab.json") {
		t.Errorf("an empty folder gives %v", err)
	}
}

// Other ways to write the same.
func TestFormsOfFiles(t *testing.T) {
	for name, change := range map[string]func(object){
		"merges as pairs":   set([][]string{{"a", "b"}}, "model", "merges"),
		"no type":           func(f object) { delete(f["model"].(object), "type") },
		"a batch's padding": set(object{"strategy": "BatchLongest"}, "padding"),
		"nested sequences": func(f object) {
			f["pre_tokenizer"] = object{"type": "Sequence", "pretokenizers": []any{f["pre_tokenizer"]}}
		},
		"a sequence of one":   set(object{"type": "Sequence", "normalizers": []any{object{"type": "NFC"}}}, "normalizer"),
		"unknown tokens":      set("<|end|>", "model", "unk_token"),
		"no dropout":          set(0, "model", "dropout"),
		"an empty prefix":     set("", "model", "continuing_subword_prefix"),
		"offsets are ours":    set(object{"type": "ByteLevel", "trim_offsets": true}, "post_processor"),
		"an empty sequence":   set(object{"type": "Sequence", "processors": []any{}}, "post_processor"),
		"defaults of GPT-2's": set(object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}, "pre_tokenizer"),
	} {
		f := clone(t, byteFile(qwen2Pattern, "a b"))
		change(f)
		tok, err := Open(folder(t, object{"tokenizer.json": f}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := tok.names(tok.Encode("abab é ")); got != "ab ab Ġ Ã © Ġ" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// vocab.json and merges.txt describe what a tokenizer.json describes.
func TestVocabAndMerges(t *testing.T) {
	merges := someMerges("Ġ")
	f := byteFile(gpt2Pattern, merges...)
	vocab := maps.Clone(f["model"].(object)["vocab"].(map[string]int))
	vocab["<|endoftext|>"] = len(vocab)
	files := object{"vocab.json": vocab, "merges.txt": "#version: 0.2\n" + strings.Join(merges, "\n") + "\n"}
	text := "abc  heo\ne\u0301 12<|endoftext|>x"
	for class, want := range map[string]string{
		"":               "abc Ġ Ġheo Ċ e Ì ģ Ġ 1 2 <|endoftext|> x",
		"GPT2Tokenizer":  "abc Ġ Ġheo Ċ e Ì ģ Ġ 1 2 <|endoftext|> x",
		"Qwen2Tokenizer": "abc Ġ Ġheo Ċ Ã © Ġ 1 2 <|endoftext|> x",
	} {
		with := maps.Clone(files)
		if class != "" {
			with["tokenizer_config.json"] = object{"tokenizer_class": class, "eos_token": "<|endoftext|>", "added_tokens_decoder": object{
				"272": object{"content": "<|endoftext|>", "special": true, "__type": "AddedToken"}}}
		}
		tok, err := Open(folder(t, with))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.names(tok.Encode(text)); got != want {
			t.Errorf("%q: got %q, want %q", class, got, want)
		}
		if eos, ok := tok.EOS(); !ok || tok.tokens[eos] != "<|endoftext|>" || !tok.Special(eos) {
			t.Errorf("%q: a text ends with %d, %t", class, eos, ok)
		}
	}
	files["tokenizer_config.json"] = object{"add_prefix_space": true}
	tok, err := Open(folder(t, files))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.names(tok.Encode("heo")); got != "Ġheo" {
		t.Errorf("with add_prefix_space: got %q", got)
	}
}

func TestWhatBeginsAndEndsTexts(t *testing.T) {
	f := charFile()
	for _, c := range []struct {
		name          string
		files         object
		before, after []int32
		bos, eos      int32
		ends          []int32
	}{
		{"template", object{}, []int32{1}, nil, 1, -1, nil},
		{"names", object{"tokenizer_config.json": object{"bos_token": object{"content": "<unk>"}, "eos_token": "</s>"}}, []int32{1}, nil, 0, 2, []int32{2}},
		{"one id", object{"generation_config.json": object{"eos_token_id": 2}}, []int32{1}, nil, 1, 2, []int32{2}},
		{"null", object{"generation_config.json": object{"eos_token_id": nil}}, []int32{1}, nil, 1, -1, nil},
		{"the model's", object{"config.json": object{"eos_token_id": 2}}, []int32{1}, nil, 1, 2, []int32{2}},
		{"several", object{"tokenizer_config.json": object{"eos_token": "<unk>"}, "generation_config.json": object{"eos_token_id": []int{2, 1}}, "config.json": object{"eos_token_id": 0}},
			[]int32{1}, nil, 1, 0, []int32{2, 1, 0}},
		{"Llama's flags", object{"tokenizer_config.json": object{"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false, "add_eos_token": true, "eos_token": "</s>"}},
			nil, []int32{2}, -1, 2, []int32{2}},
		{"others have no flags", object{"tokenizer_config.json": object{"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": false, "add_eos_token": true, "eos_token": "</s>"}},
			[]int32{1}, nil, 1, 2, []int32{2}},
	} {
		c.files["tokenizer.json"] = f
		tok, err := Open(folder(t, c.files))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		before, after := tok.Template()
		if !slices.Equal(before, c.before) || !slices.Equal(after, c.after) || tok.bos != c.bos || tok.eos != c.eos || !slices.Equal(tok.EOSIDs(), c.ends) {
			t.Errorf("%s: %v and %v around a text, from %d to %d or %v", c.name, before, after, tok.bos, tok.eos, tok.EOSIDs())
		}
		if _, ok := tok.BOS(); ok != (c.bos >= 0) {
			t.Errorf("%s: there is a beginning: %t", c.name, ok)
		}
		if _, ok := tok.EOS(); ok != (c.eos >= 0) {
			t.Errorf("%s: there is an end: %t", c.name, ok)
		}
	}
}

// tokenizer_config.json may have more added tokens than tokenizer.json, and is right
// where they differ.
func TestAddedTokensOfTheConfiguration(t *testing.T) {
	f := byteFile(qwen2Pattern)
	tok, err := Open(folder(t, object{"tokenizer.json": f, "tokenizer_config.json": object{"added_tokens_decoder": object{
		"256": object{"content": "<|end|>", "special": false, "rstrip": true},
		"300": object{"content": "<new>", "special": true},
	}}}))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tok.Encode("<|end|> <new>"), []int32{256, 300}; !slices.Equal(got, want) || tok.Special(256) || !tok.Special(300) || tok.VocabSize() != 301 {
		t.Errorf("got %v of %d, want %v", got, tok.VocabSize(), want)
	}
	if _, ok := tok.Token(280); ok {
		t.Error("there is no token between them")
	}
}
