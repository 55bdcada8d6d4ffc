package safetensors

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Tensor is a tensor to write.
type Tensor struct {
	Name  string
	DType dtype.DType
	Shape []int // nil or empty: one element without dimensions
	// Data writes the tensor's bytes, little-endian and row-major, in as many
	// pieces as it likes. It is called once, when the file has come that far, so
	// that a large model need not be in memory at once.
	Data func(w io.Writer) error
}

// Bytes is a Tensor's Data for bytes that are in memory.
func Bytes(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// Sort puts tensors into the order in which Encode writes them: by type, the
// widest first (I64, F64, F32, I32, BF16, F16, U8), then by name. Whoever takes
// part in producing the data on another rank sorts likewise.
func Sort(tensors []Tensor) {
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		ka, _ := kindOf(a.DType)
		kb, _ := kindOf(b.DType)
		return cmp.Or(cmp.Compare(kb, ka), cmp.Compare(a.Name, b.Name))
	})
}

// Encode writes a file's bytes to w. The metadata may be nil; "format": "pt",
// without which other tools refuse a file, is added where it has no format. Data
// that is longer or shorter than its shape says is an error.
func Encode(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	tensors = slices.Clone(tensors)
	Sort(tensors)
	head, sizes, err := encodeHeader(tensors, metadata)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	b := bufio.NewWriterSize(w, 1<<20)
	if _, err := b.Write(head); err != nil {
		return fmt.Errorf("safetensors: writing the header: %w", err)
	}
	for i, t := range tensors {
		c := &counter{w: b, left: sizes[i]}
		if err := t.Data(c); err != nil {
			return fmt.Errorf("safetensors: writing tensor %q (%d bytes): %w", t.Name, sizes[i], err)
		}
		if c.left > 0 {
			return fmt.Errorf("safetensors: tensor %q of %s %v takes %d bytes, its data ended %d short",
				t.Name, t.DType, t.Shape, sizes[i], c.left)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

// counter passes on as many bytes as a tensor has, and no more.
type counter struct {
	w    io.Writer
	left int64
}

func (c *counter) Write(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		return 0, fmt.Errorf("%d bytes more than its type and shape take", int64(len(p))-c.left)
	}
	n, err := c.w.Write(p)
	c.left -= int64(n)
	return n, err
}

// encodeHeader returns length and header of sorted tensors, and the tensors' sizes.
func encodeHeader(tensors []Tensor, metadata map[string]string) (head []byte, sizes []int64, err error) {
	meta := map[string]string{"format": "pt"}
	maps.Copy(meta, metadata)
	for k, v := range meta {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, nil, fmt.Errorf("metadata %q: %q is not valid UTF-8", k, v)
		}
	}
	var b bytes.Buffer
	b.Write(make([]byte, 8)) // the length's place
	b.WriteString(`{"` + metadataKey + `":`)
	if err := writeJSON(&b, meta); err != nil { // keys sorted
		return nil, nil, err
	}
	seen := map[string]bool{metadataKey: true}
	var end int64
	for _, t := range tensors {
		rank, ok := kindOf(t.DType)
		switch {
		case !ok:
			return nil, nil, fmt.Errorf("tensor %q: type %s cannot be written", t.Name, t.DType)
		case seen[t.Name]:
			return nil, nil, fmt.Errorf("tensor name %q is given twice, or reserved", t.Name)
		case !utf8.ValidString(t.Name):
			return nil, nil, fmt.Errorf("tensor name %q is not valid UTF-8", t.Name)
		case t.Data == nil:
			return nil, nil, fmt.Errorf("tensor %q has no Data", t.Name)
		}
		seen[t.Name] = true
		size, err := kinds[rank].size(t.Shape)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if end+size < end {
			return nil, nil, fmt.Errorf("tensor %q: the file would overflow 64 bits", t.Name)
		}
		b.WriteByte(',')
		if err := writeJSON(&b, t.Name); err != nil {
			return nil, nil, err
		}
		b.WriteString(`:{"dtype":"` + kinds[rank].name + `","shape":[`)
		for i, d := range t.Shape {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.Itoa(d))
		}
		fmt.Fprintf(&b, `],"data_offsets":[%d,%d]}`, end, end+size)
		end += size
		sizes = append(sizes, size)
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 { // the data starts aligned
		b.WriteByte(' ')
	}
	n := b.Len() - 8
	if n > maxHeader {
		return nil, nil, fmt.Errorf("header of %d bytes, at most %d are allowed: write several files", n, maxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(n))
	return b.Bytes(), sizes, nil
}

// writeJSON appends v with <, > and & as they are, as other writers have them.
func writeJSON(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // Encode ends with a newline
	return nil
}

// WriteFile writes path, which must not exist, and syncs it to disk. The folder is
// the caller's to sync, and a file left by an error the caller's to remove.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := Encode(f, tensors, metadata); err != nil {
		return fmt.Errorf("%w (in %s)", err, path)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}
