// Package mnist reads images of the MNIST family as data to train classifiers on:
// MNIST's handwritten digits, Fashion-MNIST's clothes, and what else comes as its four
// files.
package mnist

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gorun-dev/gorun/models/data"
)

// The size of an image, and the number of classes.
const (
	Side    = 28
	Pixels  = Side * Side
	Classes = 10
)

// Images are the images of one part, with a label each. They do not change. As a
// data.Dataset an image is a sequence of its pixels, row by row, each a token of 0 to
// 255; its label is the target of the last pixel, and no other pixel has one. So a
// loss "per target" is one per image.
type Images struct {
	pixels, labels []byte
	info           data.Info
}

var _ data.Dataset = (*Images)(nil)

// Open reads a folder with the four files train-images-idx3-ubyte,
// train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each
// packed by gzip, with .gz behind its name, or not.
func Open(dir string) (train, test *Images, err error) {
	if train, err = open(dir, "train"); err != nil {
		return nil, nil, err
	}
	test, err = open(dir, "t10k")
	return train, test, err
}

// Check returns an error where a file of the folder is missing.
func Check(dir string) error {
	for _, part := range []string{"train", "t10k"} {
		for _, path := range []string{imagesOf(dir, part), labelsOf(dir, part)} {
			_, plain := os.Stat(path)
			_, packed := os.Stat(path + ".gz")
			if plain != nil && packed != nil {
				return missing(path)
			}
		}
	}
	return nil
}

func imagesOf(dir, part string) string { return filepath.Join(dir, part+"-images-idx3-ubyte") }
func labelsOf(dir, part string) string { return filepath.Join(dir, part+"-labels-idx1-ubyte") }

func missing(path string) error {
	return fmt.Errorf("neither %s nor %s.gz is there; configs/mnist-mlp.yaml says where to get the four files", path, filepath.Base(path))
}

func open(dir, part string) (*Images, error) {
	pixels, err := read(imagesOf(dir, part), Side, Side)
	if err != nil {
		return nil, err
	}
	labels, err := read(labelsOf(dir, part))
	if err != nil {
		return nil, err
	}
	n := len(labels)
	if len(pixels) != n*Pixels || n == 0 {
		return nil, fmt.Errorf("%s: %d images and %d labels of the %s files: want as many, and at least one", dir, len(pixels)/Pixels, n, part)
	}
	for i, l := range labels {
		if l >= Classes {
			return nil, fmt.Errorf("%s: label %d of the %s files is %d: want below %d", dir, i, part, l, Classes)
		}
	}
	sum := sha256.New()
	sum.Write(pixels)
	sum.Write(labels)
	return &Images{pixels, labels, data.Info{
		Files: 2, Bytes: int64(len(pixels) + n), Tokens: int64(len(pixels)), Sequences: n, Targets: int64(n), Fingerprint: binary.BigEndian.Uint64(sum.Sum(nil)),
	}}, nil
}

// read is the elements of an idx file of bytes whose dimensions behind the first are
// shape. The file may be packed.
func read(path string, shape ...int) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		b, err = unpack(path + ".gz")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, missing(path)
		}
	}
	if err != nil {
		return nil, err
	}
	const bytesOf = 8 // the code of the element type
	dims := 1 + len(shape)
	if len(b) < 4*(1+dims) || !bytes.Equal(b[:4], []byte{0, 0, bytesOf, byte(dims)}) {
		return nil, fmt.Errorf("%s is no idx file of bytes with %d dimensions", path, dims)
	}
	dim := func(i int) int { return int(binary.BigEndian.Uint32(b[4+4*i:])) }
	size := dim(0)
	for i, want := range shape {
		if got := dim(1 + i); got != want {
			return nil, fmt.Errorf("%s: dimension %d is %d, want %d", path, 1+i, got, want)
		}
		size *= want
	}
	if b = b[4*(1+dims):]; len(b) != size {
		return nil, fmt.Errorf("%s holds %d bytes behind its header, which tells of %d", path, len(b), size)
	}
	return b, nil
}

func unpack(path string) (b []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	z, err := gzip.NewReader(f)
	if err == nil {
		b, err = io.ReadAll(z)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// Len is the number of images.
func (x *Images) Len() int { return len(x.labels) }

// SeqLen is Pixels.
func (x *Images) SeqLen() int { return Pixels }

// Info counts a pixel as a token and an image as a sequence.
func (x *Images) Info() data.Info { return x.info }

// Image is image i and its label, [Pixels], row by row. The slice is the memory of x.
func (x *Images) Image(i int) (pixels []byte, label int) {
	return x.pixels[i*Pixels : (i+1)*Pixels : (i+1)*Pixels], int(x.labels[i])
}

// Read is of data.Dataset.
func (x *Images) Read(i int, tokens, targets []int32) (int, error) {
	pixels, label := x.Image(i)
	for j, v := range pixels {
		tokens[j], targets[j] = int32(v), data.Ignore
	}
	targets[Pixels-1] = int32(label)
	return 1, nil
}
