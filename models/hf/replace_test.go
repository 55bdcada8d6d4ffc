package hf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A path that leads to anything but a model or adapters is refused.
func TestVacant(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, path := range []string{"model/config.json", "model/model.safetensors", "adapters/adapter_config.json", "job/config.json", "job/checkpoints/x", "other/notes", "file"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir("empty", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("model", "link"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir  string
		keep bool
		want string
	}{
		{dir: "new"},
		{dir: "new", keep: true},
		{dir: "model"},
		{dir: "adapters"},
		{dir: "empty"},
		{dir: "model", keep: true, want: "exists already"},
		{dir: "empty", keep: true, want: "exists already"},
		{dir: "file", keep: true, want: "exists already"},
		{dir: "file", want: "is no folder"},
		{dir: "link", want: "is no folder"},
		{dir: "job", want: "holds the folder checkpoints"},
		{dir: ".", want: "holds the folder"},
		{dir: "/", want: "holds the folder"},
		{dir: "other", want: "neither config.json nor adapter_config.json"},
	} {
		err := Vacant(c.dir, !c.keep)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
