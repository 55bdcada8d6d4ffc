package train

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models/chat"
	"github.com/gorun-dev/gorun/models/tokenizer"
)

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The token that ends an answer comes first among those that end a text; the other
// settings stay, and a file that has it stays as it is.
func TestEndingWith(t *testing.T) {
	for _, c := range []struct{ before, after string }{
		{"", `{"eos_token_id": [7]}`},
		{`{"eos_token_id": 3, "top_p": 0.8}`, `{"eos_token_id": [7, 3], "top_p": 0.8}`},
		{`{"temperature": 1.0}`, `{"eos_token_id": [7], "temperature": 1.0}`},
		{`{"eos_token_id": [3, 4]}`, `{"eos_token_id": [7, 3, 4]}`},
		{`{"eos_token_id": [3, 7]}`, ""},
		{`{"eos_token_id": 7}`, ""},
	} {
		dir := t.TempDir()
		if c.before != "" {
			writeFiles(t, dir, map[string]string{generationFile: c.before})
		}
		text, err := endingWith(dir, 7)
		if err != nil {
			t.Fatal(err)
		}
		if c.after == "" {
			if text != nil {
				t.Errorf("%s becomes %s", c.before, text)
			}
			continue
		}
		numbers := func(text string) (v any) {
			d := json.NewDecoder(strings.NewReader(text))
			d.UseNumber()
			if err := d.Decode(&v); err != nil {
				t.Error(err)
			}
			return v
		}
		if !reflect.DeepEqual(numbers(string(text)), numbers(c.after)) {
			t.Errorf("%s becomes %s, want %s", c.before, text, c.after)
		}
	}
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{generationFile: "["})
	if _, err := endingWith(dir, 7); err == nil || !strings.Contains(err.Error(), generationFile) {
		t.Errorf("a damaged file: %v", err)
	}
}

// Qwen's base model ends texts with one token and its template answers with another.
func TestQwensAnswersEnd(t *testing.T) {
	dir := qwen(t)
	writeFiles(t, dir, map[string]string{generationFile: `{"eos_token_id": 151643}`})
	cfg := &config.Config{Data: config.Data{Format: "chat", Tokenizer: dir}}
	files, err := chatFiles(cfg, dir)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Ends []int `json:"eos_token_id"`
	}
	if err := json.Unmarshal(files[generationFile], &got); err != nil || !reflect.DeepEqual(got.Ends, []int{151645, 151643}) {
		t.Errorf("texts end with %v, %v", got.Ends, err)
	}
	if _, ok := files[templateFile]; ok {
		t.Error("the folder's own template was written again")
	}
}

// A model of bytes that has learned to converse says how in its folder, and trains on
// from there without being told.
func TestExportedModelConverses(t *testing.T) {
	parent := t.TempDir()
	const template = "{% for m in messages %}{% if m['role'] == 'assistant' %}A:{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}" +
		"{% else %}U:{{ m['content'] }};{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
	rows := strings.Repeat(`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`+"\n", 40)
	writeFiles(t, parent, map[string]string{"chat.jinja": template, "rows.jsonl": rows, "text": strings.Repeat("A line of text.\n", 200)})
	in := func(name string) string { return filepath.Join(parent, name) }
	bytes := []string{"checkpoint.export=true", "model.vocab=256", "eval.every=0", "train.max_steps=2", "data.seq_len=16"}
	mustTrain(t, 1, append(bytes, "output="+in("base"), "data.format=text", "data.train="+in("text"))...)

	chats := append(bytes, "data.format=chat", "data.train="+in("rows.jsonl"), "data.cache="+in("cache"))
	mustTrain(t, 1, append(chats, "output="+in("chat"), "model.path="+in("base/export"), "data.template="+in("chat.jinja"))...)
	tok, err := tokenizer.Open(in("chat/export"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := chat.Open(in("chat/export"))
	if err != nil {
		t.Fatal(err)
	}
	conversation, err := chat.ParseConversation([]byte(`{"messages": [{"role": "user", "content": "x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.Render(conversation, chat.Options{AddGenerationPrompt: true})
	if err != nil || text != "U:x;A:" || len(tok.Encode(text)) != len(text) {
		t.Errorf("a question is written %q, %v", text, err)
	}
	mustTrain(t, 1, append(chats, "output="+in("more"), "model.path="+in("chat/export"))...)
	// Adapters for the base carry the files to the model that they are merged into.
	mustTrain(t, 1, append(chats, "output="+in("lora"), "lora.r=2", "model.path="+in("base/export"), "data.template="+in("chat.jinja"))...)
	if err := (Merge{Model: in("base/export"), Adapters: in("lora/export"), Output: in("merged")}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"more/export", "merged"} {
		for _, name := range []string{templateFile, generationFile} {
			was, err1 := os.ReadFile(filepath.Join(in("chat/export"), name))
			is, err2 := os.ReadFile(filepath.Join(in(other), name))
			if err1 != nil || err2 != nil || string(was) != string(is) {
				t.Errorf("%s: %s is %q, was %q (%v, %v)", other, name, is, was, err2, err1)
			}
		}
	}
}
