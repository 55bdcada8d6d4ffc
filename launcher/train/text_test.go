package train

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// qwen is a folder with Qwen2.5's tokenizer and template.
func qwen(t *testing.T) string {
	t.Helper()
	packed, err := os.Open(testenv.Data(t, "tok/qwen2.5_tokenizer.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile(testenv.Data(t, "tok/qwen2.5_tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"tokenizer.json": text, "tokenizer_config.json": settings} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// read opens data of the given settings and returns each sequence's tokens and, of
// its targets, those that are learned; each as text.
func read(t *testing.T, sets ...string) (set *data.Set, tokens [][]int32, learned []string) {
	t.Helper()
	cfg := parse(t, append([]string{"data.cache=" + t.TempDir(), "data.packing=false", "model.vocab=152000", "data.seq_len=512", "eval.every=0"}, sets...)...)
	l, err := openLanguage(cfg)
	if err != nil {
		t.Fatal(err)
	}
	set, err = openData(t.Context(), &architecture{cfg: cfg, name: "llama", vocab: cfg.Model.Vocab}, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range set.Train.Len() {
		n := set.Train.SeqLen()
		ids, targets := make([]int32, n), make([]int32, n)
		if _, err := set.Train.Read(i, ids, targets); err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, ids)
		said := slices.DeleteFunc(targets, func(id int32) bool { return id == data.Ignore })
		if bpe, ok := l.Tokenizer.(*tokenizer.BPE); ok {
			learned = append(learned, bpe.DecodeSpecial(said))
		} else {
			learned = append(learned, l.Decode(said))
		}
	}
	return set, tokens, learned
}

func writeRows(t *testing.T, rows ...any) string {
	t.Helper()
	var b strings.Builder
	for _, r := range rows {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// Of Qwen's conversations the content and <|im_end|> are learned, and not the line
// feed behind it; the tokens are those of Hugging Face's tokenizer.
func TestQwenConversations(t *testing.T) {
	dir := qwen(t)
	text, err := os.ReadFile(testenv.Data(t, "vec/chat_render_vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Template, Case string
		Messages       []struct {
			Role, Content string
			ToolCalls     json.RawMessage `json:"tool_calls"`
		}
		IDs []int32
	}
	var raw []map[string]json.RawMessage
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	var rows []any
	var chosen []int
	for i, v := range vectors {
		if v.Template == "qwen2.5" && v.Case != "user_only" {
			rows = append(rows, map[string]json.RawMessage{"messages": raw[i]["messages"], "tools": raw[i]["tools"]})
			chosen = append(chosen, i)
		}
	}
	if len(rows) != 3 {
		t.Fatalf("%d conversations to check", len(rows))
	}
	_, tokens, learned := read(t, "data.format=chat", "data.tokenizer="+dir, "data.train="+writeRows(t, rows...))
	for at, i := range chosen {
		v := vectors[i]
		if n := len(v.IDs) - 1; !slices.Equal(tokens[at][:n], v.IDs[:n]) {
			t.Errorf("%s: the tokens are %v, want %v", v.Case, tokens[at][:n], v.IDs[:n])
		}
		var want strings.Builder
		for _, m := range v.Messages {
			if m.Role == "assistant" && m.ToolCalls == nil {
				want.WriteString(m.Content + "<|im_end|>")
			}
		}
		if v.Case != "tool_call" && learned[at] != want.String() {
			t.Errorf("%s: learned is %q, want %q", v.Case, learned[at], want.String())
		}
		if v.Case == "tool_call" && (!strings.HasPrefix(learned[at], "<tool_call>\n{") || !strings.HasSuffix(learned[at], "<|im_end|>")) {
			t.Errorf("%s: learned is %q", v.Case, learned[at])
		}
	}
}

// A template with marks says itself what is learned: TRL's for training has the line
// feeds before the answer and behind its end among it, the same tokens as without.
func TestMarkedTemplate(t *testing.T) {
	dir := qwen(t)
	row := writeRows(t, map[string]any{"messages": []map[string]string{
		{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "\n\nYes"}, {"role": "user", "content": "So?"}, {"role": "assistant", "content": "No"},
	}})
	_, plain, learned := read(t, "data.format=chat", "data.tokenizer="+dir, "data.train="+row)
	_, marked, also := read(t, "data.format=chat", "data.tokenizer="+dir, "data.train="+row, "data.template="+testenv.Data(t, "tok/trl_qwen2_5_training.jinja"))
	if !slices.Equal(plain[0], marked[0]) {
		t.Errorf("the tokens are %v, and by the marked template %v", plain[0], marked[0])
	}
	// The line feeds at the answer's beginning are one token with that before them.
	if want := "\n\n\nYes<|im_end|>No<|im_end|>"; learned[0] != want {
		t.Errorf("learned is %q, want %q", learned[0], want)
	}
	if want := "\n\n\nYes<|im_end|>\n\nNo<|im_end|>\n"; also[0] != want {
		t.Errorf("by the marked template %q is learned, want %q", also[0], want)
	}
}

// A template that begins a conversation with the token of all beginnings has it
// once; plain text gets it.
func TestOneBeginning(t *testing.T) {
	dir := filepath.Dir(testenv.Data(t, "stories260K/tokenizer.json"))
	count := func(ids []int32, id int32) (n int) {
		for _, x := range ids {
			if x == id {
				n++
			}
		}
		return n
	}
	chat := filepath.Join(t.TempDir(), "chat.jinja")
	if err := os.WriteFile(chat, []byte("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, tokens, learned := read(t, "data.format=chat", "data.tokenizer="+dir, "data.template="+chat, "data.train="+writeRows(t, map[string]any{"messages": []map[string]string{
		{"role": "user", "content": "Tell a story"}, {"role": "assistant", "content": "Once upon a time"},
	}}))
	if tokens[0][0] != 1 || count(tokens[0], 1) != 1 || learned[0] != "Once upon a time </s>" {
		t.Errorf("%d beginnings in %v; learned is %q", count(tokens[0], 1), tokens[0][:40], learned[0])
	}
	_, tokens, learned = read(t, "data.format=prompt_completion", "data.tokenizer="+dir, "data.train="+writeRows(t,
		map[string]string{"prompt": "Once upon", "completion": " a time"}, map[string]string{"prompt": "<s>Once upon", "completion": " a time"}))
	for i := range tokens {
		if tokens[i][0] != 1 || count(tokens[i], 1) != 1 || !strings.HasSuffix(learned[i], " a time</s>") && !strings.HasSuffix(learned[i], "a time</s>") {
			t.Errorf("%d beginnings in %v; learned is %q", count(tokens[i], 1), tokens[i][:20], learned[i])
		}
	}
}

// Data that people have made is read by naming its fields.
func TestRealRows(t *testing.T) {
	set, _, learned := read(t, "data.format=prompt_completion", "data.tokenizer="+qwen(t), "data.train="+testenv.Data(t, "sft/gsm8k_test.jsonl"),
		"data.seq_len=600", "data.fields.prompt=question", "data.fields.completion=answer")
	if i := set.Train.Info(); i.Samples != 1319 || i.NoTarget+i.Dropped+i.Skipped+i.CutDocuments != 0 {
		t.Errorf("gsm8k: %+v", i)
	}
	if want := "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 duck eggs a day.\nShe makes 9 * 2 = $<<9*2=18>>18 every day at the farmer’s market.\n#### 18"; !strings.HasPrefix(learned[0], want) {
		t.Errorf("gsm8k: learned is %q", learned[0])
	}
	for _, file := range []string{"sft/self_instruct_seed_tasks.jsonl", "sft/self_instruct_user_oriented.jsonl"} {
		set, _, learned := read(t, "data.format=alpaca", "data.train="+testenv.Data(t, file), "data.seq_len=20000", "data.bad_rows=skip",
			"data.fields.input=instances.0.input", "data.fields.output=instances.0.output")
		i := set.Train.Info()
		if i.Samples+i.Skipped != map[bool]int{true: 175, false: 252}[strings.Contains(file, "seed")] || i.Samples < 170 {
			t.Errorf("%s: %+v", file, i)
		}
		if learned[0] == "" {
			t.Errorf("%s: nothing is learned of the first", file)
		}
	}
	set, _, _ = read(t, "data.format=mixed", "data.train="+testenv.Data(t, "sft/mlx_wikisql_valid.jsonl"), "data.eval_split=0.1")
	if set.Train.Len() != 90 || set.Eval.Len() != 10 {
		t.Errorf("wikisql: %d and %d", set.Train.Len(), set.Eval.Len())
	}
}

// Text becomes tokens by the model's tokenizer where it has one: a large one, too,
// which is encoded in parts.
func TestTextByTokenizer(t *testing.T) {
	dir := filepath.Dir(testenv.Data(t, "stories260K/tokenizer.json"))
	for file, length := range map[string]string{"text/tinystories_sample.txt": "data.seq_len=4000", "text/tinyshakespeare.txt": "data.seq_len=1200000"} {
		path := testenv.Data(t, file)
		set, tokens, learned := read(t, "data.format=text", "data.tokenizer="+dir, "data.train="+path, length)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(learned, ""); strings.TrimLeft(got, " ") != string(text)+"</s>" {
			t.Errorf("%s: learned is %.200q…, want the file", file, got)
		}
		if tokens[0][0] != 1 || set.Train.Info().Samples != 1 {
			t.Errorf("%s: the first token is %d; %+v", file, tokens[0][0], set.Train.Info())
		}
		// In shorter sequences each of its tokens is learned once, too.
		short, _, _ := read(t, "data.format=text", "data.tokenizer="+dir, "data.train="+path, "data.seq_len=64")
		if a, b := set.Train.Info().Targets, short.Train.Info().Targets; a != b || short.Train.Len() < 20 {
			t.Errorf("%s: %d targets in one sequence, and %d in %d", file, a, b, short.Train.Len())
		}
	}
}
