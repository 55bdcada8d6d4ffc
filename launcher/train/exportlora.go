package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gorun-dev/gorun/models/hf"
	"github.com/gorun-dev/gorun/models/lora"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/publish"
)

// adapters writes a folder of adapters, with the files that say how a model with them
// converses.
func (x exporting) adapters(e Export) (err error) {
	tmp, err := publish.Temp(e.Output)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("writing the adapters %s: %w", e.Output, err), os.RemoveAll(tmp))
		}
	}()
	if err := x.saveAdapters(tmp); err != nil {
		return err
	}
	for name, text := range x.converses {
		if err := publish.File(filepath.Join(tmp, name), text); err != nil {
			return err
		}
	}
	return publish.Folder(tmp, e.Output)
}

func (x exporting) saveAdapters(dir string) error {
	base := lora.Base{Transposed: x.a.name == "gpt2"}
	if x.a.weights != nil {
		base.Path = x.a.weights.Dir
	}
	return x.a.adapters.Save(dir, base, x.a.adapters.Tensors(func(factor string) func(io.Writer) error {
		return func(w io.Writer) error {
			f, ok := x.t.Find(factor)
			if !ok {
				return fmt.Errorf("%s: no tensor %s", x.c.Dir, factor)
			}
			n, _ := f.Numel()
			return x.t.Read(factor, 0, n, func(_ int, b []byte) error {
				_, err := w.Write(b)
				return err
			})
		}
	}))
}

// merged writes the whole model with the adapters added to its weights.
func (x exporting) merged(e Export) (err error) {
	if x.a.weights == nil {
		return errors.New("the adapters are for weights that the seed made: there is no folder to merge them into")
	}
	tmp, err := os.MkdirTemp("", "gorun-adapters-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if err := x.saveAdapters(tmp); err != nil {
		return err
	}
	f, err := lora.Open(tmp)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return x.model(e, adding(x.a.weights, f))
}

// adding reads a model's parameters with what adapters add to them.
func adding(model *hf.Folder, f *lora.Folder) func(p *param.Param, values []float32) error {
	return func(p *param.Param, values []float32) error {
		if err := model.Read(p, values); err != nil {
			return err
		}
		return f.Merged(func(*param.Param, []float32) error { return nil })(p, values)
	}
}

// Merge writes a model's folder with the adapters of another added to its weights, and
// converses as the adapters' folder says, where it does.
type Merge struct {
	Model, Adapters string // folders: the model's, and the adapters' in PEFT's format
	Output          string
	Replace         bool
	DType           dtype.DType // as Export's
}

// Run writes the folder. The end of ctx is as for Export.
func (m Merge) Run(ctx context.Context) (err error) {
	if err := hf.Vacant(m.Output, m.Replace); err != nil {
		return err // before anything is read
	}
	if err := replacesNone(m.Output, m.Model, m.Adapters); err != nil {
		return err
	}
	model, err := hf.Open(m.Model, dtype.F32)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	f, err := lora.Open(m.Adapters)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	spec, err := model.Describe()
	if err != nil {
		return err
	}
	if err := f.Fits(spec); err != nil {
		return err
	}
	x := exporting{ctx: ctx, a: &architecture{weights: model}, converses: map[string][]byte{}}
	for _, name := range []string{templateFile, generationFile} {
		text, err := os.ReadFile(filepath.Join(m.Adapters, name))
		if err == nil {
			x.converses[name] = text
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return x.model(Export{Output: m.Output, Replace: m.Replace, DType: m.DType}, adding(model, f))
}
