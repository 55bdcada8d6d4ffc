package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// vars are the variables of context.json.
func vars(t testing.TB) map[string]Value {
	t.Helper()
	text, err := os.ReadFile("testdata/context.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParseJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]Value{}
	for key, v := range v.(*Dict).All() {
		vars[key.(string)] = v
	}
	return vars
}

// constructs are the parts of constructs.txt.
func constructs(t testing.TB) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/constructs.txt")
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	name := ""
	for line := range strings.SplitAfterSeq(string(text), "\n") {
		bare := strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(bare, "-- ") && strings.HasSuffix(bare, " --") {
			name = bare[3 : len(bare)-3]
			continue
		}
		if name != "" {
			parts[name] += line
		}
	}
	return parts
}

var options = Options{Now: func() time.Time { return time.Date(2024, 7, 3, 9, 5, 6, 0, time.UTC) }}

func render(source string, vars map[string]Value) (Output, error) {
	tmpl, err := Parse(source)
	if err != nil {
		return Output{}, err
	}
	return tmpl.Render(vars, options)
}

// Every construct gives the very text that the reference implementation gives,
// and where that fails, so does this.
func TestRendersAsTheReferenceDoes(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]struct {
		Text      *string
		Error     string
		Generated [][2]int
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	parts := constructs(t)
	if len(parts) != len(golden) {
		t.Fatalf("%d constructs and %d results: run golden.py", len(parts), len(golden))
	}
	vars := vars(t)
	for name, source := range parts {
		t.Run(name, func(t *testing.T) {
			want, ok := golden[name]
			if !ok {
				t.Fatal("golden.json lacks it: run golden.py")
			}
			got, err := render(source, vars)
			if want.Text == nil {
				var placed *Error
				if !errors.As(err, &placed) || placed.Line < 1 || placed.Col < 1 {
					t.Fatalf("want an error with a place (there: %s), got %q and error %v", want.Error, got.Text, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Text != *want.Text {
				t.Fatalf("got  %q\nwant %q", got.Text, *want.Text)
			}
			if len(got.Generated) != len(want.Generated) {
				t.Fatalf("generated %v, want %v", got.Generated, want.Generated)
			}
			for i, span := range got.Generated {
				if [2]int{span.Start, span.End} != want.Generated[i] {
					t.Errorf("generated %v, want %v", got.Generated, want.Generated)
				}
			}
		})
	}
}
