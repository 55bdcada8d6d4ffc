package chat

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/models/chat/jinja"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// shipped is testdata/shipped.json: shipped.py says what it holds.
type shipped struct {
	Wheel     string
	SHA256    string
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

// wheel gets the templates that trl ships from PyPI, once, by name. They are not
// ours to keep.
var wheel = sync.OnceValues(func() (map[string]string, error) {
	s, err := readShipped()
	if err != nil {
		return nil, err
	}
	version := strings.Split(s.Wheel, "-")[1]
	dir, err := os.MkdirTemp("", "gorun-chat-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	pip := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", dir, "trl=="+version)
	if out, err := pip.CombinedOutput(); err != nil {
		return nil, errors.Join(errors.New("pip download: "+string(bytes.TrimSpace(out))), err, ctx.Err())
	}
	packed, err := os.ReadFile(filepath.Join(dir, s.Wheel))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(packed); hex.EncodeToString(sum[:]) != s.SHA256 {
		return nil, errors.New("this wheel is another than shipped.json is of")
	}
	archive, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
	if err != nil {
		return nil, err
	}
	templates := map[string]string{}
	for _, file := range archive.File {
		name, ok := strings.CutPrefix(file.Name, "trl/chat_templates/")
		if !ok || !strings.HasSuffix(name, ".jinja") {
			continue
		}
		r, err := file.Open()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		templates[name] = string(text)
	}
	return templates, nil
})

func shippedTemplates(t testing.TB) map[string]string {
	t.Helper()
	templates, err := wheel()
	if err != nil {
		testenv.Skip(t, "pypi", err.Error())
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
