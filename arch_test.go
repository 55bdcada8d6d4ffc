package gorun_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gorun-dev/gorun/"

// mayImport is the import diagram of docs/architecture.md: what the packages
// below a top-level folder may import, beside their own folder.
var mayImport = map[string][]string{
	"runtime":  {},
	"comm":     {"runtime"},
	"ddp":      {"runtime", "comm"},
	"zero":     {"runtime", "comm"},
	"kernels":  {"runtime"},
	"models":   {"runtime", "kernels"},
	"launcher": {"runtime", "comm", "ddp", "zero", "kernels", "models"},
	"examples": {"runtime", "comm", "ddp", "zero", "kernels", "models"},
}

// topLevel is all that may lie in the root beside the folders above.
var topLevel = []string{
	".ci", ".git", ".gitignore", "README.md", "LICENSE", "arch_test.go", "configs", "docs", "go.mod", "go.sum",
	"runs", "gorun", "train.yaml", ".bench", // ignored by git: what the README's commands leave behind
}

func TestImportsPointDownwards(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Name,Imports", "./...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	seen := 0
	for {
		var p struct {
			ImportPath, Name string
			Imports          []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		from, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok {
			continue // the root, which holds this test alone
		}
		seen++
		if p.Name == "runtime" {
			t.Errorf("%s is called runtime, as the standard library's package is", from)
		}
		top, _, _ := strings.Cut(from, "/")
		allowed, known := mayImport[top]
		if !known {
			t.Errorf("%s lies in a folder that the import diagram does not know", from)
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			dir, _, _ := strings.Cut(to, "/")
			if dir != top && !slices.Contains(allowed, dir) {
				t.Errorf("%s imports %s: %s may import %v only", from, to, top, allowed)
			}
		}
	}
	if seen < 5 {
		t.Errorf("go list named only %d packages", seen)
	}
}

func TestTheRootHoldsWhatTheArchitectureNames(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := mayImport[e.Name()]; !ok && !slices.Contains(topLevel, e.Name()) {
			t.Errorf("%s does not belong in the root", e.Name())
		}
	}
}
