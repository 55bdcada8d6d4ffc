package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models/chat"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// writeFolder puts files into a folder.
func writeFolder(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// reference reads a file of reference data, unpacked.
func reference(t *testing.T, rel string) []byte {
	t.Helper()
	b, err := os.ReadFile(testenv.Data(t, rel))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(rel, ".gz") {
		return b
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if b, err = io.ReadAll(z); err != nil {
		t.Fatal(err)
	}
	return b
}

// tokenizerFolders are the files of tokenizers: that of bytes as an export has it, and
// published ones. Those with a chat template are given conversations too.
var tokenizerFolders = []struct {
	name  string
	chats bool
	files func(t *testing.T) map[string][]byte
}{
	{"bytes", true, func(t *testing.T) map[string][]byte {
		files, err := tokenizer.BytesFiles()
		if err != nil {
			t.Fatal(err)
		}
		files["chat_template.jinja"] = []byte("{% for m in messages %}{% if m['role'] == 'assistant' %}A:{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}" +
			"{% else %}{{ m['role'] }}:{{ m['content'] }};\n{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}")
		return files
	}},
	{"qwen2.5", true, func(t *testing.T) map[string][]byte {
		return map[string][]byte{
			"tokenizer.json":        reference(t, "tok/qwen2.5_tokenizer.json.gz"),
			"tokenizer_config.json": reference(t, "tok/qwen2.5_tokenizer_config.json"),
		}
	}},
	{"gpt2", false, func(t *testing.T) map[string][]byte {
		return map[string][]byte{
			"vocab.json":            reference(t, "tok/gpt2_vocab.json"),
			"merges.txt":            reference(t, "tok/gpt2_merges.txt"),
			"tokenizer_config.json": []byte(`{"tokenizer_class": "GPT2Tokenizer"}`),
		}
	}},
	{"stories260K", false, func(t *testing.T) map[string][]byte {
		return map[string][]byte{
			"tokenizer.json":        reference(t, "stories260K/tokenizer.json"),
			"tokenizer_config.json": reference(t, "stories260K/tokenizer_config.json"),
		}
	}},
}

// conversations are a line each, as gorun tokenize --chat reads them.
const conversations = `{"messages": [{"role": "user", "content": "Who are you?"}]}
{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 2+2? "}, {"role": "assistant", "content": "4."}]}
{"messages": [{"role": "user", "content": "Zürich\n\n東京 🙂"}, {"role": "assistant", "content": "été"}, {"role": "user", "content": "<b>&'\"</b>"}]}
`

// calls are conversations with tools, for templates that know them.
const calls = `{"messages": [{"role": "user", "content": "Weather in Bern?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Bern", "days": 2, "exact": true}}}]}, {"role": "tool", "content": "{\"sky\": \"blü\"}"}], "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells <it>.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]}
`

// randomTexts are of characters that every version of Unicode of the last ten years
// has, most of them in runs of a kind; special tokens stand in some.
func randomTexts(n int) (texts []string) {
	kinds := [][2]rune{
		{'a', 'z'}, {'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {' ', ' '}, {' ', '/'}, {'\t', '\r'}, {1, 0x1f}, {0xa0, 0xff}, {0x100, 0x17f}, {0x300, 0x36f}, {0x391, 0x3a1},
		{0x410, 0x44f}, {0x5d0, 0x5ea}, {0x627, 0x63a}, {0x905, 0x939}, {0xe01, 0xe2e}, {0x2000, 0x200f}, {0x2028, 0x2029}, {0x2160, 0x216f}, {0x3041, 0x3093},
		{0x4e00, 0x9fa5}, {0xac00, 0xd7a3}, {0xe000, 0xe010}, {0xff01, 0xff5e}, {0x1d400, 0x1d4ff}, {0x1f300, 0x1f5ff}, {0x1f600, 0x1f64f},
	}
	words := []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "'s", "'LL", "  ", "\r\n", "\n\n\n", "</s>", "don't"}
	random := rand.New(rand.NewPCG(3, 4))
	for range n {
		var b strings.Builder
		for range 1 + random.IntN(12) {
			if random.IntN(6) == 0 {
				b.WriteString(words[random.IntN(len(words))])
				continue
			}
			kind := kinds[random.IntN(len(kinds))]
			for range 1 + random.IntN(5) {
				b.WriteRune(kind[0] + rune(random.IntN(int(kind[1]-kind[0]+1))))
			}
		}
		texts = append(texts, b.String())
	}
	return texts
}

// tokenized is what gorun tokenize makes of lines, each a JSON value.
func tokenized[T any](t *testing.T, how tokenizing, lines []string) (values []T) {
	t.Helper()
	for _, line := range lines {
		out, err := how.line([]byte(line))
		var v T
		if err == nil {
			err = json.Unmarshal(out, &v)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		values = append(values, v)
	}
	return values
}

func jsonLines[T any](t *testing.T, values []T) (lines []string) {
	t.Helper()
	for _, v := range values {
		line, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	return lines
}

// AutoTokenizer and gorun tokenize make the same ids, texts and conversations of a
// folder.
func TestAutoTokenizerAgrees(t *testing.T) {
	python := testenv.Python(t, "transformers", "tokenizers")
	type question struct {
		Texts []string          `json:"texts"`
		Chats []json.RawMessage `json:"chats"`
	}
	texts, dir := randomTexts(400), t.TempDir()
	questions := map[string]question{}
	for _, f := range tokenizerFolders {
		t.Run("files of "+f.name, func(t *testing.T) { // which are missing in places
			q := question{Texts: texts, Chats: []json.RawMessage{}}
			writeFolder(t, filepath.Join(dir, f.name), f.files(t))
			if f.chats {
				for line := range strings.Lines(conversations + calls) {
					q.Chats = append(q.Chats, json.RawMessage(line))
				}
			}
			questions[filepath.Join(dir, f.name)] = q
		})
	}
	asked, err := json.Marshal(questions)
	if err != nil {
		t.Fatal(err)
	}
	var answers map[string]struct {
		IDs, Encoded      [][]int32
		Decoded, Rendered []string
	}
	if err := json.Unmarshal(testenv.RunPython(t, python, bytes.NewReader(asked), filepath.Join("testdata", "autotokenizer.py")), &answers); err != nil {
		t.Fatal(err)
	}
	for folder, q := range questions {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			want := answers[folder]
			tok, err := tokenizer.Open(folder)
			if err != nil {
				t.Fatal(err)
			}
			how := tokenizing{json: true, tok: tok}
			agree(t, "ids", texts, tokenized[[]int32](t, how, jsonLines(t, texts)), want.IDs, slices.Equal)
			how.decode = true
			agree(t, "text", texts, tokenized[string](t, how, jsonLines(t, want.IDs)), want.Decoded, equal)
			if len(q.Chats) == 0 {
				return
			}
			template, err := chat.Open(folder)
			if err != nil {
				t.Fatal(err)
			}
			n, lines := len(q.Chats), slices.Collect(strings.Lines(conversations+calls))
			for i, prompt := range []bool{false, true} {
				how := tokenizing{json: true, tok: tok, chat: true, template: template, prompt: prompt}
				agree(t, "ids of a chat", lines, tokenized[[]int32](t, how, lines), want.Encoded[i*n:(i+1)*n], slices.Equal)
				how.text = true
				agree(t, "text of a chat", lines, tokenized[string](t, how, lines), want.Rendered[i*n:(i+1)*n], equal)
			}
		})
	}
}

func equal(a, b string) bool { return a == b }

// agree compares what is made of each of inputs, and shows the first that differs.
func agree[T any](t *testing.T, what string, inputs []string, got, want []T, same func(a, b T) bool) {
	t.Helper()
	if len(got) != len(inputs) || len(want) != len(inputs) {
		t.Errorf("%s: %d, and %d in transformers, of %d inputs", what, len(got), len(want), len(inputs))
		return
	}
	different := 0
	for i := range inputs {
		if same(got[i], want[i]) {
			continue
		}
		if different++; different == 1 {
			t.Errorf("%s of %+q:\n%v\nin transformers\n%v", what, inputs[i], got[i], want[i])
		}
	}
	if different > 1 {
		t.Errorf("%s: %d of %d differ", what, different, len(inputs))
	}
}
