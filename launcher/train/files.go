package train

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// The kinds of a checkpoint's files. Each rank writes one of each.
const (
	weightsKind   = "model"
	optimizerKind = "optimizer" // m.NAME and v.NAME, and what a rank has for itself
)

// fileName is that of a rank's file. One rank's holds whole tensors, under the names
// that other programs look for.
func fileName(kind string, rank, ranks int) string {
	if ranks == 1 {
		return kind + ".safetensors"
	}
	return fmt.Sprintf("%s-%05d-of-%05d.safetensors", kind, rank+1, ranks)
}

// file is the tensors of one kind, all of them, and what this rank has of each: a
// merged parameter's apart, under the names that Hugging Face gives them, so that a
// checkpoint does not say which products a model merges, nor how it was sharded.
type file struct {
	kind   string
	pieces []piece
}

// piece is what a rank has of a tensor of f32.
type piece struct {
	name  string
	shape []int
	has   elements // which of them it holds, and reads
	// writes are those that it writes: over all ranks each of the tensor's once.
	writes elements
	store         // of has; none where that is nothing
	copied []byte // a snapshot of writes, where one was taken
	own    bool   // the tensor is this rank's alone
}

// store is where a piece's values are.
type store interface {
	// read copies the values from the given one on to host memory, as they are behind
	// the work enqueued on the compute stream. They are there when that stream has
	// passed what is enqueued by then.
	read(ctx context.Context, from int, dst device.Buffer) error
	// write takes values from their bytes, from the given one on, and waits for it.
	write(ctx context.Context, from int, b []byte) error
}

// elements are those of a tensor or of a list of tensors from one to before another.
type elements struct{ from, to int }

func (e elements) numel() int { return e.to - e.from }

// within is those that are in part, counted from its beginning.
func (e elements) within(part elements) elements {
	from, to := max(e.from, part.from), min(e.to, part.to)
	if from >= to {
		return elements{}
	}
	return elements{from - part.from, to - part.from}
}

// private is a tensor of f32 that a rank has for itself, such as what compression has
// left of its gradients. A checkpoint keeps it for the same rank of as many under the
// same strategy. It is complete behind the work on the compute stream when a step has
// ended. A strategy that has such tensors adds them to job.private when it is made.
type private struct {
	name string // on all ranks alike
	tensor.Tensor
}

// add lists the parts of a quantity that is shaped like p, of which this rank has and
// writes the given elements; at is where those from one to before another are.
func (f *file) add(prefix string, p *param.Param, has, writes elements, at func(from, to int) store) {
	p.EachPart(func(part param.Part, from, to int) {
		whole := elements{from, to}
		r := piece{name: prefix + part.Name, shape: slices.Clone(p.Shape), has: has.within(whole), writes: writes.within(whole)}
		r.shape[0] = part.Rows
		if r.has.numel() > 0 {
			r.store = at(from+r.has.from, from+r.has.to)
		}
		f.pieces = append(f.pieces, r)
	})
}

// deal makes a rank write its share of tensors that all ranks have: equal numbers of
// elements, whatever tensors the cuts go through.
func (f *file) deal(rank, ranks int) {
	total := 0
	for _, r := range f.pieces {
		total += tensor.Numel(r.shape)
	}
	mine, at := elements{total * rank / ranks, total * (rank + 1) / ranks}, 0
	for i := range f.pieces {
		n := tensor.Numel(f.pieces[i].shape)
		f.pieces[i].writes = mine.within(elements{at, at + n})
		at += n
	}
}

// written are the pieces that this rank writes something of. Tensors without elements
// are rank 0's.
func (f file) written(rank int) (list []piece) {
	for _, r := range f.pieces {
		if r.writes.numel() > 0 || rank == 0 && tensor.Numel(r.shape) == 0 {
			list = append(list, r)
		}
	}
	return list
}

// bytes is the size of what this rank writes.
func (f file) bytes() (n int) {
	for _, r := range f.pieces {
		n += r.size()
	}
	return n
}

func (r piece) size() int { return r.writes.numel() * dtype.F32.Size() }

// tensor is what is written, as a file has it: a whole tensor under its own name, a
// piece under one that says which.
func (r piece) tensor(data func(w io.Writer) error) safetensors.Tensor {
	t := safetensors.Tensor{Name: r.name, DType: dtype.F32, Shape: r.shape, Data: data}
	switch n := r.writes.numel(); {
	case r.own:
		t.Name = "private." + r.name
	case n != tensor.Numel(r.shape):
		t.Name, t.Shape = fmt.Sprintf("%s[%d:%d]", r.name, r.writes.from, r.writes.to), []int{n}
	}
	return t
}

// contents is what a checkpoint consists of, and what this rank has of it. Steps may
// go on when it was read.
func (j *job) contents() []file {
	files := j.keeper.Contents()
	own := &files[len(files)-1]
	for _, p := range append(slices.Clip(j.private), j.arch.compression.private()...) {
		all := elements{0, p.Numel()}
		own.pieces = append(own.pieces, piece{name: p.name, shape: p.Shape, has: all, writes: all, store: inMemory{j, p.Reshape(p.Numel())}, own: true})
	}
	return files
}
