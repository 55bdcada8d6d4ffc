package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/runtime/mapped"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// Tensors reads a checkpoint's tensors, any elements of them, whoever wrote them. A
// file is opened when something of it is wanted, and mapped: of its data no more is
// read from disk than what is wanted. For one goroutine.
type Tensors struct {
	dir   string
	index Index
	open  map[string]*safetensors.Reader
}

// Tensors opens the index. One that leaves elements out, has some twice or places
// them in a file that is none of the checkpoint's is refused, naming tensor and
// file. What the files hold is looked at when it is read. Checksums are not looked at:
// that is Verify's.
func (c *Checkpoint) Tensors() (*Tensors, error) {
	t := &Tensors{dir: c.Dir, open: map[string]*safetensors.Reader{}}
	if err := t.load(c.Files); err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint %s: %w", c.Dir, err), t.Close())
	}
	return t, nil
}

func (t *Tensors) load(files []Entry) error {
	if slices.ContainsFunc(files, func(e Entry) bool { return e.Name == IndexName }) {
		text, err := os.ReadFile(filepath.Join(t.dir, IndexName))
		if err != nil {
			return err
		}
		if t.index, err = parseIndex(text, files); err != nil {
			return fmt.Errorf("%s: %w", IndexName, err)
		}
		return nil
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name, ".safetensors") {
			continue
		}
		r, err := t.file(f.Name)
		if err != nil {
			return err
		}
		for _, name := range r.Names() {
			info, _ := r.Info(name) // it is one of its names
			whole := Tensor{Shape: info.Shape}
			n, _ := whole.Numel() // safetensors has refused shapes that are none
			if err := t.index.Add(name, info.Type, info.Shape, Piece{f.Name, name, 0, n}); err != nil {
				return err
			}
		}
	}
	return t.index.check(files)
}

// Names are those of the tensors that are no rank's own, in order.
func (t *Tensors) Names() []string { return slices.Sorted(maps.Keys(t.index.Tensors)) }

// Find describes a tensor that is no rank's own.
func (t *Tensors) Find(name string) (Tensor, bool) {
	x, ok := t.index.Tensors[name]
	return x, ok
}

// Private describes the tensors that rank alone had.
func (t *Tensors) Private(rank int) map[string]Tensor { return t.index.Private[rank] }

// Read hands f the bytes of elements [from, to) of a tensor, in order, a piece after
// another: b begins at element at. b is a view of a mapped file, read only, not
// aligned, and for f's goroutine until f returns: where the file is shortened
// meanwhile, that is an error which names it.
func (t *Tensors) Read(name string, from, to int, f func(at int, b []byte) error) error {
	x, ok := t.index.Tensors[name]
	if !ok {
		return fmt.Errorf("checkpoint %s: no tensor %q", t.dir, name)
	}
	return t.read(name, x, from, to, f)
}

// ReadPrivate is Read for a tensor of one rank, all of it.
func (t *Tensors) ReadPrivate(rank int, name string, f func(at int, b []byte) error) error {
	x, ok := t.index.Private[rank][name]
	if !ok {
		return fmt.Errorf("checkpoint %s: rank %d has no tensor %q of its own", t.dir, rank, name)
	}
	n, _ := x.Numel()
	return t.read(name, x, 0, n, f)
}

func (t *Tensors) read(name string, x Tensor, from, to int, f func(at int, b []byte) error) error {
	if n, _ := x.Numel(); from < 0 || to < from || to > n {
		return fmt.Errorf("checkpoint %s: elements %d to %d of tensor %q, which has %d", t.dir, from, to, name, n)
	}
	for _, p := range x.Pieces {
		lo, hi := max(from, p.From), min(to, p.To)
		if lo >= hi {
			continue
		}
		b, size, err := t.piece(x, p)
		if err != nil {
			return fmt.Errorf("checkpoint %s: tensor %q, elements %d to %d: %w", t.dir, name, p.From, p.To, err)
		}
		if err := t.show(p.File, lo, b[(lo-p.From)*size:(hi-p.From)*size], f); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tensors) show(file string, at int, b []byte, f func(at int, b []byte) error) (err error) {
	defer mapped.Shortened(filepath.Join(t.dir, file), debug.SetPanicOnFault(true), &err)
	return f(at, b)
}

// piece is a piece's bytes, and the size of an element.
func (t *Tensors) piece(x Tensor, p Piece) (b []byte, size int, err error) {
	r, err := t.file(p.File)
	if err != nil {
		return nil, 0, err
	}
	info, b, err := r.Tensor(p.Name)
	if err != nil {
		return nil, 0, err
	}
	n, _ := Tensor{Shape: info.Shape}.Numel()
	if info.Type != x.Type || n != p.To-p.From {
		return nil, 0, fmt.Errorf("%s holds %q as %s%v, the index says %d elements of %s", p.File, p.Name, info.Type, info.Shape, p.To-p.From, x.Type)
	}
	return b, info.DType.Size(), nil
}

func (t *Tensors) file(name string) (*safetensors.Reader, error) {
	if r := t.open[name]; r != nil {
		return r, nil
	}
	r, err := safetensors.Open(filepath.Join(t.dir, name))
	if err != nil {
		return nil, err
	}
	t.open[name] = r
	return r, nil
}

// Close unmaps the files.
func (t *Tensors) Close() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(t.open)) {
		errs = append(errs, t.open[name].Close())
	}
	clear(t.open)
	return errors.Join(errs...)
}
