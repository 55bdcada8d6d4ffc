package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models/chat/jinja"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// shipped is testdata/shipped.json: shipped.py says what it holds.
type shipped struct {
	Wheel     string
	Templates map[string]struct {
		Renders, Refused int
		SHA256           string
	}
}

func readShipped() (s shipped, err error) {
	text, err := os.ReadFile("testdata/shipped.json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

// shippedTemplates are those of the wheel that shipped.json is of, by file. They are not
// ours to keep.
func shippedTemplates(t testing.TB) (templates map[string]string) {
	t.Helper()
	s, err := readShipped()
	if err != nil {
		t.Fatal(err)
	}
	python := testenv.Python(t, "trl")
	const read = `
import importlib.metadata, importlib.util, json, pathlib
print(importlib.metadata.version("trl"))
folder = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0], "chat_templates")
print(json.dumps({f.name: f.read_text("utf-8") for f in folder.glob("*.jinja")}))
`
	version, files, _ := strings.Cut(string(testenv.RunPython(t, python, nil, "-c", read)), "\n")
	if want := strings.Split(s.Wheel, "-")[1]; version != want {
		testenv.Skip(t, "pypi", fmt.Sprintf("%s has trl %s, want %s (unset GORUN_PYTHON)", python, version, want))
	}
	if err := json.Unmarshal([]byte(files), &templates); err != nil {
		t.Fatal(err)
	}
	return templates
}

// The templates of a dozen families of models, as trl ships them, give the very
// texts and places that the reference implementation gives, and refuse what they
// refuse there.
func TestShippedTemplates(t *testing.T) {
	want, err := readShipped()
	if err != nil {
		t.Fatal(err)
	}
	templates := shippedTemplates(t)
	if len(templates) != len(want.Templates) {
		t.Errorf("%d templates, want %d", len(templates), len(want.Templates))
	}
	var cases map[string]json.RawMessage
	if err := json.Unmarshal(readFile(t, "testdata/conversations.json"), &cases); err != nil {
		t.Fatal(err)
	}
	delete(cases, "number as content") // refused before a template sees it
	for name, source := range templates {
		t.Run(name, func(t *testing.T) {
			tmpl, err := New(source, map[string]string{"bos_token": "<s>", "eos_token": "</s>"})
			if err != nil {
				t.Fatal(err)
			}
			h, renders, refused := sha256.New(), 0, 0
			for _, conversation := range slices.Sorted(maps.Keys(cases)) {
				for _, prompt := range []bool{false, true} {
					line := []any{conversation, prompt}
					c, o, err := readCase(cases[conversation])
					if err != nil {
						t.Fatal(err)
					}
					o.AddGenerationPrompt = prompt
					out, err := tmpl.render(c, o)
					renders++
					if err != nil {
						refused++
					} else {
						spans := [][2]int{}
						for _, span := range out.Generated {
							spans = append(spans, [2]int{span.Start, span.End})
						}
						line = append(line, out.Text, spans)
					}
					fmt.Fprintln(h, python(t, line))
				}
			}
			w := want.Templates[name]
			if got := hex.EncodeToString(h.Sum(nil)); renders != w.Renders || refused != w.Refused || got != w.SHA256 {
				t.Errorf("%d renders, %d refused, digest %s\nwant %d, %d, %s\n(shipped.py --show %s shows what they should be)",
					renders, refused, got, w.Renders, w.Refused, w.SHA256, name)
			}
		})
	}
}

// python is v as Python's json.dumps writes it.
func python(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jinja.ParseJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := jinja.Parse("{{ v | tojson }}")
	if err != nil {
		t.Fatal(err)
	}
	out, err := tmpl.Render(map[string]jinja.Value{"v": value}, jinja.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return out.Text
}
