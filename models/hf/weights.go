package hf

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/mapped"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// readable are the element types that weights may have in a file.
var readable = []dtype.DType{dtype.F32, dtype.F16, dtype.BF16}

// match finds every parameter's tensor and returns one error that names all that
// is missing, too much, or of another shape or type.
func (f *Folder) match() error {
	f.names = map[string]string{}
	var missing, wrong, extra []string
	known := map[string]bool{}
	for _, p := range f.Params() {
		for _, part := range p.Split() {
			names, transposed := f.family.stored(part.Name, len(p.Shape))
			i := slices.IndexFunc(names, func(name string) bool {
				_, ok := f.file.Info(name)
				return ok
			})
			if i < 0 {
				missing = append(missing, part.Name)
				continue
			}
			name := names[i]
			f.names[part.Name], known[name] = name, true
			shape := append([]int{part.Rows}, p.Shape[1:]...)
			if transposed {
				slices.Reverse(shape)
			}
			if info, _ := f.file.Info(name); !slices.Equal(info.Shape, shape) {
				wrong = append(wrong, fmt.Sprintf("%s has the shape %v, want %v", name, info.Shape, shape))
			} else if !slices.Contains(readable, info.DType) {
				wrong = append(wrong, fmt.Sprintf("%s is of type %s, want one of %v", name, info.Type, readable))
			}
		}
	}
	head, embedding := f.family.tied()
	for _, name := range f.file.Names() {
		switch {
		case known[name] || f.family.ignored(name):
		case name == head:
			if err := f.sameHead(head, embedding); err != nil {
				wrong = append(wrong, err.Error())
			}
		default:
			extra = append(extra, name)
		}
	}
	if len(missing)+len(wrong)+len(extra) == 0 {
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s: the weights do not fit config.json", f.Dir)
	for _, list := range []struct {
		what  string
		names []string
	}{{"missing", missing}, {"wrong", wrong}, {"unknown", extra}} {
		if n := len(list.names); n > 0 {
			fmt.Fprintf(&text, "\n%d %s: %s", n, list.what, strings.Join(list.names, "; "))
		}
	}
	return errors.New(text.String())
}

// sameHead checks that the head which a tied model's file holds is its
// embedding.
func (f *Folder) sameHead(head, embedding string) (err error) {
	name, ok := f.names[embedding]
	if !ok {
		return nil // named as missing
	}
	a, bytesA, err := f.file.Tensor(head)
	if err != nil {
		return err
	}
	b, bytesB, err := f.file.Tensor(name)
	if err != nil {
		return err
	}
	files := f.file.Path(head)
	if other := f.file.Path(name); other != files {
		files += " or " + other
	}
	defer mapped.Shortened(files, debug.SetPanicOnFault(true), &err)
	if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) || !bytes.Equal(bytesA, bytesB) {
		return fmt.Errorf("%s differs from %s, but config.json says tie_word_embeddings", head, name)
	}
	return nil
}

// view shows use a tensor of the files, which are mapped: where one is shortened
// meanwhile, reading it is an error that names it.
func (f *Folder) view(name string, use func(safetensors.Info, []byte) error) (err error) {
	info, raw, err := f.file.Raw(name)
	if err != nil {
		return err
	}
	defer mapped.Shortened(f.file.Path(name), debug.SetPanicOnFault(true), &err)
	return use(info, raw)
}

// Load calls set with the values of every parameter of a model that NewModel
// built, in f32 and in the model's layout. The slice is valid during the call
// only.
func (f *Folder) Load(params []*param.Param, set func(p *param.Param, values []float32) error) error {
	if err := f.Fits(params); err != nil {
		return err
	}
	var values []float32
	for i, p := range params {
		values = sized(values, p.Numel())
		if err := f.Read(f.Params()[i], values); err != nil {
			return err
		}
		if err := set(p, values); err != nil {
			return fmt.Errorf("%s: %s: %w", f.Dir, p.Name, err)
		}
	}
	return nil
}

// Fits is an error where params are not those of a model that NewModel built.
func (f *Folder) Fits(params []*param.Param) error {
	if len(params) != len(f.Params()) {
		return fmt.Errorf("%s: loading %d parameters, the folder has %d", f.Dir, len(params), len(f.Params()))
	}
	for i, p := range params {
		if own := f.Params()[i]; p.Name != own.Name || !slices.Equal(p.Shape, own.Shape) {
			return fmt.Errorf("%s: parameter %d is %s %v, the folder has %s %v", f.Dir, i, p.Name, p.Shape, own.Name, own.Shape)
		}
	}
	return nil
}

// Read gives the values of one of Params, in f32 and in the model's layout.
func (f *Folder) Read(p *param.Param, values []float32) error { return f.ReadRange(p, 0, values) }

// ReadRange gives len(values) elements of one of Params, from the given one on, as Read
// does. It reads no others from the files, but for those in the rows where a range of a
// tensor that lies there transposed begins and ends.
func (f *Folder) ReadRange(p *param.Param, first int, values []float32) (err error) {
	p.EachPart(func(part param.Part, from, to int) {
		lo, hi := max(first, from), min(first+len(values), to)
		if lo >= hi || err != nil {
			return
		}
		_, transposed := f.family.stored(part.Name, len(p.Shape))
		err = f.view(f.names[part.Name], func(info safetensors.Info, raw []byte) error {
			out, size := values[lo-first:hi-first], info.DType.Size()
			if !transposed {
				vec.Widen(info.DType, out, raw[(lo-from)*size:(hi-from)*size])
				return nil
			}
			// The file has a row for each column: of each, a piece.
			cols := p.Shape[1]
			top, bottom := (lo-from)/cols, (hi-from+cols-1)/cols
			rows := bottom - top
			stored, turned := make([]float32, rows*cols), make([]float32, rows*cols)
			for c := range cols {
				at := c*part.Rows + top
				vec.Widen(info.DType, stored[c*rows:(c+1)*rows], raw[at*size:(at+rows)*size])
			}
			transpose(turned, stored, rows, cols)
			copy(out, turned[lo-from-top*cols:])
			return nil
		})
	})
	return err
}

// Fingerprint tells folders of other weights apart, by the beginning of each tensor:
// training changes all of them. The names of the files, and how the tensors are divided
// over them, are no part of it.
func (f *Folder) Fingerprint() (uint64, error) {
	h := fnv.New64a()
	for _, name := range slices.Sorted(slices.Values(f.file.Names())) {
		err := f.view(name, func(info safetensors.Info, raw []byte) error {
			fmt.Fprintf(h, "%q %v %v ", name, info.DType, info.Shape)
			h.Write(raw[:min(len(raw), 4096)])
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return h.Sum64(), nil
}

func sized(s []float32, n int) []float32 { return slices.Grow(s[:0], n)[:n] }

// transpose writes out[rows,cols] from in[cols,rows].
func transpose(out, in []float32, rows, cols int) {
	for r := range rows {
		for c := range cols {
			out[r*cols+c] = in[c*rows+r]
		}
	}
}
