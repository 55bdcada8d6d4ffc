package config

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// Tags that nothing else would check.
func TestTags(t *testing.T) {
	c := new(Config)
	setDefaults(c)
	for _, f := range leaves {
		if f.doc == "" || !strings.HasSuffix(f.doc, ".") {
			t.Errorf("%s: doc %q is not a sentence", f.path, f.doc)
		}
		if strings.ToLower(f.key) != f.key || f.key == "" {
			t.Errorf("key %q", f.path)
		}
		if f.def != "" {
			if value, wrong := f.check(f.in(c)); wrong != "" {
				t.Errorf("default of %s: %s %s", f.path, value, wrong)
			}
		}
	}
	for other, path := range synonyms {
		if lookup(path) == nil {
			t.Errorf("synonym %s leads to %q, which is no key", other, path)
		}
	}
}

// Help, docs and schema hold every key.
func TestEveryKeyIsDocumented(t *testing.T) {
	help, docs := Help(), Markdown()
	var schema map[string]any
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	for _, f := range leaves {
		if !strings.Contains(help, "  "+f.path+"  ") {
			t.Errorf("Help misses %s", f.path)
		}
		if !strings.Contains(docs, "| `"+f.path+"` |") {
			t.Errorf("Markdown misses %s", f.path)
		}
		at := schema
		for key := range strings.SplitSeq(f.path, ".") {
			at, _ = at["properties"].(map[string]any)[key].(map[string]any)
		}
		if at["description"] == nil {
			t.Errorf("Schema misses %s", f.path)
		}
	}
}

func TestInterval(t *testing.T) {
	for _, c := range []struct {
		text string
		x    float64
		want bool
	}{
		{"[0,1)", 0, true}, {"[0,1)", 1, false}, {"(0,1]", 0, false}, {"(0,1]", 1, true},
		{"(0,)", 1e300, true}, {"(0,)", 0, false}, {"[,2]", -1e9, true}, {"[,2]", 3, false},
		{"(,)", math.NaN(), false},
	} {
		if got := parseInterval(c.text).holds(c.x); got != c.want {
			t.Errorf("%v in %s: %v", c.x, c.text, got)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]Bytes{
		"0": 0, "12": 12, "12B": 12, "3KB": 3000, "3 KiB": 3072, "64MB": 64e6, "64MiB": 64 << 20,
		"0.5GiB": 1 << 29, "2TB": 2e12, "1TiB": 1 << 40,
	} {
		if got, ok := parseBytes(s); !ok || got != want {
			t.Errorf("%s: got %d, %v, want %d", s, got, ok, want)
		}
	}
	for _, s := range []string{"", "B", "1.5", "1mb", "1e400MB", "99999999TiB", "nanMB", "1 2"} {
		if n, ok := parseBytes(s); ok {
			t.Errorf("%q gives %d", s, n)
		}
	}
}

func TestExpand(t *testing.T) {
	env := envOf(map[string]string{"A": "x", "EMPTY": ""})
	for s, want := range map[string]string{
		"": "", "a$b$": "a$b$", "${A}": "x", "-${A}${A}-": "-xx-", "${EMPTY}|": "|",
		"${EMPTY:-d}": "d", "${A:-d}": "x", "${NO:-}": "", "${NO:-a b:-c}": "a b:-c", "$${A}": "${A}", "${A}$${A}${A}": "x${A}x",
	} {
		if got, err := expand(s, env); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", s, got, err, want)
		}
		if got, err := expand(escape(s), env); err != nil || got != s {
			t.Errorf("escaped %q: got %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"${NO}", "${", "${}", "${1a}", "${a b}", "x${A"} {
		if got, err := expand(s, env); err == nil {
			t.Errorf("%q gives %q", s, got)
		}
	}
}

// GOROOT comes from the go command where the environment lacks it, and the
// error says so where there is no go command either.
func TestGorootWithoutGo(t *testing.T) {
	t.Setenv("GOROOT", "")
	if v, ok, err := processEnv("GOROOT"); !ok || err != nil || v == "" {
		t.Errorf("got %q, %v, %v", v, ok, err)
	}
	t.Setenv("PATH", t.TempDir())
	_, err := expand("${GOROOT}/src", processEnv)
	want := "environment variable GOROOT is not set, and there is no go command to ask for it; set GOROOT to the folder of a Go installation"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if v, err := expand("${GOROOT:-/go}/src", processEnv); v != "/go/src" || err != nil {
		t.Errorf("got %q, %v", v, err)
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"a", "", 1}} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("%s, %s: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
