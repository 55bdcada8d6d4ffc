package chat

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// folder writes files into a new folder.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model [1]*")
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOpenFindsTheTemplate(t *testing.T) {
	const (
		plain = `{"messages": [{"role": "user", "content": "x"}]}`
		tools = `{"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]}`
		named = `{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R{% include 'x' %}"}]}`
	)
	for _, c := range []struct {
		name, conversation string
		files              map[string]string
		o                  Options
		want               string
	}{
		{"text", plain, map[string]string{"tokenizer_config.json": `{"chat_template": "C{{ messages[0].content }}"}`}, Options{}, "Cx"},
		{"file wins", plain, map[string]string{"tokenizer_config.json": `{"chat_template": "C"}`, "chat_template.jinja": "J\r\n"}, Options{}, "J"},
		{"file with named ones", tools, map[string]string{"chat_template.jinja": "J", "additional_chat_templates/tool_use.jinja": "T"}, Options{}, "T"},
		{"named ones, no tools", plain, map[string]string{"chat_template.jinja": "J", "additional_chat_templates/tool_use.jinja": "T"}, Options{}, "J"},
		{"object", plain, map[string]string{"chat_template.json": `{"chat_template": "O"}`}, Options{}, "O"},
		{"object comes last", plain, map[string]string{"tokenizer_config.json": `{"chat_template": "C"}`, "chat_template.json": `{"chat_template": "O"}`}, Options{}, "C"},
		{"list", plain, map[string]string{"tokenizer_config.json": named}, Options{}, "D"},
		{"list, tools", tools, map[string]string{"tokenizer_config.json": named}, Options{}, "T"},
		{"list, no tool of tools", `{"messages": [{"role": "user"}], "tools": []}`, map[string]string{"tokenizer_config.json": named}, Options{}, "T"},
		{"list, chosen", tools, map[string]string{"tokenizer_config.json": named}, Options{Name: "default"}, "D"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tmpl, err := Open(folder(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Render(conversation(t, c.conversation), c.o)
			if err != nil || got != c.want {
				t.Errorf("got %q and error %v, want %q", got, err, c.want)
			}
		})
	}
	tmpl, err := Open(folder(t, map[string]string{"tokenizer_config.json": named}))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(tmpl.Names(), " "); got != "default rag tool_use" {
		t.Errorf("names: %s", got)
	}
	for name, want := range map[string]string{
		"other": "tokenizer_config.json: there is no template other, but default, rag, tool_use",
		"rag":   "tokenizer_config.json, template rag: line 1, column 5: unsupported in chat templates here: tag include",
	} {
		if _, err := tmpl.Render(conversation(t, plain), Options{Name: name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

func TestOpenReadsSpecialTokens(t *testing.T) {
	const show = `{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token is defined }}|{{ image_token }}|{{ additional_special_tokens }}`
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"texts and objects", map[string]string{"tokenizer_config.json": `{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": null,
			"extra_special_tokens": {"image_token": "<img>"}, "additional_special_tokens": ["<a>", {"content": "<b>"}], "added_tokens_decoder": {}}`,
			"special_tokens_map.json": `{"bos_token": "<old>"}`}, "<s>|</s>||False|<img>|['<a>', '<b>']"},
		{"old form", map[string]string{"tokenizer_config.json": `{"bos_token": "<s>", "eos_token": "</s>", "extra_special_tokens": ["<x>"]}`,
			"special_tokens_map.json": `{"bos_token": "<old>"}`}, "<old>|</s>||False||"},
		{"none", nil, "|||False||"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{"chat_template.jinja": show}
			for name, text := range c.files {
				files[name] = text
			}
			tmpl, err := Open(folder(t, files))
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Render(conversation(t, `{"messages": [{"role": "user"}]}`), Options{})
			if err != nil || got != c.want {
				t.Errorf("got %q and error %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"no template", map[string]string{"tokenizer_config.json": `{"chat_template": null}`}, "there is no chat template"},
		{"no folder", nil, "there is no chat template"},
		{"bad JSON", map[string]string{"tokenizer_config.json": `{`}, "tokenizer_config.json: unexpected end"},
		{"bad kind", map[string]string{"tokenizer_config.json": `{"chat_template": 5}`}, "tokenizer_config.json: chat_template is neither a text nor a list"},
		{"entry without name", map[string]string{"tokenizer_config.json": `{"chat_template": [{"template": "x"}]}`}, "entry 0 lacks its name"},
		{"bad token", map[string]string{"tokenizer_config.json": `{"bos_token": 5, "chat_template": ""}`}, "tokenizer_config.json: bos_token: a token is a text or an object with a content, not 5"},
		{"bad template", map[string]string{"chat_template.jinja": "\n {% include 'x' %}"}, "chat_template.jinja: line 2, column 5: unsupported in chat templates here: tag include"},
		{"bad object", map[string]string{"chat_template.json": `[]`}, "chat_template.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(folder(t, c.files))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if lacks := strings.HasPrefix(c.name, "no "); lacks != errors.Is(err, ErrNoTemplate) {
				t.Errorf("%v: ErrNoTemplate: %v", err, !lacks)
			}
		})
	}
}
