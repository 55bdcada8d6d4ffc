package train

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// file is one of a checkpoint's files and the tensors that it holds: a merged
// parameter's apart, under the names that Hugging Face gives them, so that a
// checkpoint does not say which products a model merges.
type file struct {
	name    string
	tensors []entry
}

// entry is a tensor of f32, its name in the file, and where the job has it.
type entry struct {
	name  string
	shape []int
	store
}

// store is where a tensor's values are.
type store interface {
	// upload takes the values from their bytes.
	upload(ctx context.Context, b []byte) error
	// download writes the values' bytes to w on rank 0, behind the work enqueued on
	// the compute stream.
	download(ctx context.Context, w io.Writer) error
}

// add lists the parts of a quantity that is shaped like p; at is where its elements
// [from, to) are.
func (f *file) add(prefix string, p *param.Param, at func(from, to int) store) {
	p.EachPart(func(part param.Part, from, to int) {
		shape := slices.Clone(p.Shape)
		shape[0] = part.Rows
		f.tensors = append(f.tensors, entry{prefix + part.Name, shape, at(from, to)})
	})
}

// list is the tensors as a file has them.
func (f file) list() (out []safetensors.Tensor) {
	for _, e := range f.tensors {
		out = append(out, safetensors.Tensor{Name: e.name, DType: dtype.F32, Shape: e.shape, Data: func(w io.Writer) error {
			return e.download(context.Background(), w)
		}})
	}
	return out
}

// write encodes the tensors. It gets all of them, though w fails: other ranks may
// send them.
func (f file) write(w io.Writer) error {
	lasting := &lastingWriter{w: w}
	err := safetensors.Encode(lasting, f.list(), nil)
	if lasting.err != nil {
		return lasting.err
	}
	return err
}

// contribute gets all tensors as write does, and writes none.
func (f file) contribute() error {
	list := f.list()
	safetensors.Sort(list)
	for _, t := range list {
		if err := t.Data(io.Discard); err != nil {
			return fmt.Errorf("%s: %s: %w", f.name, t.Name, err)
		}
	}
	return nil
}

// lastingWriter goes on without w once it has failed, and keeps the error.
type lastingWriter struct {
	w   io.Writer
	err error
}

func (l *lastingWriter) Write(p []byte) (int, error) {
	if l.err == nil {
		_, l.err = l.w.Write(p)
	}
	return len(p), nil
}

// read gives the tensors their bytes. The file must hold these tensors and no
// others.
func (f file) read(c *checkpoint.Checkpoint) error {
	path, err := c.Path(f.name)
	if err != nil {
		return err
	}
	r, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := f.unknown(r.Names()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, e := range f.tensors {
		info, b, err := r.Tensor(e.name)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if info.DType != dtype.F32 || !slices.Equal(info.Shape, e.shape) {
			return fmt.Errorf("%s: %s is %s%v, the model has %s%v", path, e.name, info.DType, info.Shape, dtype.F32, e.shape)
		}
		if err := e.upload(context.Background(), b); err != nil {
			return fmt.Errorf("%s: %s: %w", path, e.name, err)
		}
	}
	return nil
}

// unknown is an error where names has one that is not of f's tensors.
func (f file) unknown(names []string) error {
	known := map[string]bool{}
	for _, t := range f.tensors {
		known[t.name] = true
	}
	for _, name := range names {
		if !known[name] {
			return fmt.Errorf("%s is no tensor of this model's checkpoints: it was written for another model, or by another version of gorun", name)
		}
	}
	return nil
}
