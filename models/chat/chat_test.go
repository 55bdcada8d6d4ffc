package chat

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/models/chat/jinja"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

func clock() time.Time { return time.Date(2024, 7, 3, 9, 5, 6, 0, time.UTC) }

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// template makes a template of a file of testdata.
func template(t testing.TB, file string) *Template {
	t.Helper()
	tmpl, err := New(string(readFile(t, filepath.Join("testdata", file))), map[string]string{"bos_token": "<s>", "eos_token": "</s>"})
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func conversation(t testing.TB, text string) Conversation {
	t.Helper()
	c, err := ParseConversation([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Templates with the constructs of known ones give the very text, and the very
// places of the assistant's, that the reference implementation gives.
func TestRendersAsTheReferenceDoes(t *testing.T) {
	var golden map[string]map[string]struct {
		Text      *string
		Error     string
		Generated [][2]int
	}
	if err := json.Unmarshal(readFile(t, "testdata/golden.json"), &golden); err != nil {
		t.Fatal(err)
	}
	var cases map[string]json.RawMessage
	if err := json.Unmarshal(readFile(t, "testdata/conversations.json"), &cases); err != nil {
		t.Fatal(err)
	}
	for file, results := range golden {
		tmpl := template(t, file)
		for name, text := range cases {
			t.Run(file+"/"+name, func(t *testing.T) {
				want, ok := results[name]
				if !ok {
					t.Fatal("golden.json lacks it: run golden.py")
				}
				c, o, err := readCase(text)
				if err != nil {
					if name != "number as content" {
						t.Fatal(err)
					}
					return // data that is refused before a template sees it
				}
				got, err := tmpl.Render(c, o)
				if want.Text == nil {
					if err == nil {
						t.Fatalf("want an error (there: %s), got %q", want.Error, got)
					}
					raised := strings.HasPrefix(want.Error, "TemplateError: ")
					if words := strings.TrimPrefix(want.Error, "TemplateError: "); raised &&
						(!errors.Is(err, jinja.ErrRaised) || !strings.HasSuffix(err.Error(), words)) {
						t.Fatalf("got %v, want the template's own words: %s", err, words)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got != *want.Text {
					t.Fatalf("got  %q\nwant %q", got, *want.Text)
				}
				if file != "marked.jinja" {
					return
				}
				parts, err := tmpl.RenderParts(c, o)
				if err != nil {
					t.Fatal(err)
				}
				if parts.Text != got || len(parts.Assistant) != len(want.Generated) {
					t.Fatalf("got %+v, want %q %v", parts, got, want.Generated)
				}
				for i, span := range parts.Assistant {
					if want.Generated[i] != [2]int{span.Start, span.End} {
						t.Errorf("got %v, want %v", parts.Assistant, want.Generated)
					}
				}
			})
		}
	}
}

func readCase(text []byte) (Conversation, Options, error) {
	v, err := jinja.ParseJSON(text)
	if err != nil {
		return Conversation{}, Options{}, err
	}
	o := Options{Now: clock, Vars: map[string]jinja.Value{}}
	object := v.(*jinja.Dict)
	if prompt, _ := object.Get("add_generation_prompt"); prompt == true {
		o.AddGenerationPrompt = true
	}
	if vars, ok := object.Get("vars"); ok {
		for name, v := range vars.(*jinja.Dict).All() {
			o.Vars[name.(string)] = v
		}
	}
	c, err := ParseConversation(text)
	return c, o, err
}

// The templates that reference renders were made from give those renders, and with
// the tokenizer of Qwen2.5 their ids.
func TestKnownTemplates(t *testing.T) {
	llama3 := string(readFile(t, testenv.Data(t, "tok/trl_llama3.jinja")))
	dirs := map[string]string{
		"llama3": folder(t, map[string]string{
			"tokenizer_config.json": `{"bos_token": "<|begin_of_text|>"}`,
			"chat_template.jinja":   llama3,
		}),
		"qwen2.5": folder(t, map[string]string{
			"tokenizer_config.json": string(readFile(t, testenv.Data(t, "tok/qwen2.5_tokenizer_config.json"))),
			"tokenizer.json":        unzipped(t, testenv.Data(t, "tok/qwen2.5_tokenizer.json.gz")),
		}),
	}
	qwen, err := tokenizer.Open(dirs["qwen2.5"])
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Template, Case, Text string
		Messages, Tools      json.RawMessage
		Prompt               bool `json:"add_generation_prompt"`
		IDs                  []int32
	}
	if err := json.Unmarshal(readFile(t, testenv.Data(t, "vec/chat_render_vectors.json")), &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors {
		t.Run(v.Template+"/"+v.Case, func(t *testing.T) {
			dir, ok := dirs[v.Template]
			if !ok { // the data has no such template
				dir = folder(t, map[string]string{
					"tokenizer_config.json": `{"bos_token": {"content": "<|begin_of_text|>"}}`,
					"chat_template.jinja":   shippedTemplates(t)[strings.Replace(v.Template, ".", "_", 1)+".jinja"],
				})
			}
			tmpl, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			c := conversation(t, `{"messages": `+string(v.Messages)+`, "tools": `+string(v.Tools)+`}`)
			got, err := tmpl.Render(c, Options{AddGenerationPrompt: v.Prompt})
			if err != nil || got != v.Text {
				t.Errorf("got  %q and error %v\nwant %q", got, err, v.Text)
			}
			if ids := qwen.Encode(got); v.Template == "qwen2.5" && !slices.Equal(ids, v.IDs) {
				t.Errorf("got  %v\nwant %v", ids, v.IDs)
			}
		})
	}
}

func unzipped(t testing.TB, path string) string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(readFile(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
