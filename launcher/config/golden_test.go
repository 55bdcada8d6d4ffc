package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write docs/config.md and configs/train.schema.json anew")

// What is made from the structs is up to date in the files that people read.
func TestGeneratedFiles(t *testing.T) {
	for path, want := range map[string][]byte{
		"docs/config.md":            []byte(Markdown()),
		"configs/train.schema.json": Schema(),
	} {
		path = filepath.Join("..", "..", path)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date; run: go test ./launcher/config -update", path)
		}
	}
}
