package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/publish"
	"github.com/gorun-dev/gorun/runtime/safetensors"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// DefaultShardBytes is the size from which weights are divided over several files.
const DefaultShardBytes = 5_000_000_000

// Output is a model folder to write, which from_pretrained and vLLM load as it is.
type Output struct {
	// Dir is where it goes. It appears there complete or not at all.
	Dir string
	// Replace allows that a folder is there already, which goes then; see Vacant.
	Replace bool
	// Source is the folder that the model came from: its config.json is kept, and its
	// small files (tokenizer, chat template, generation settings, licence) are copied.
	Source string
	// Files are further files by their names, and stand for those of Source. Without a
	// Source there must be a config.json, as NewConfig makes it.
	Files map[string][]byte
	// DType is the type of the weights: F32, BF16 or F16. Default: what config.json says,
	// else F32.
	DType dtype.DType
	// ShardBytes bounds a file of weights; default DefaultShardBytes. A tensor that is
	// larger has a file of its own.
	ShardBytes int64
}

// Values gives elements [from, from+len(values)) of a parameter in f32, in the model's
// layout.
type Values func(p *param.Param, from int, values []float32) error

// Write writes the model that config.json describes. Its weights are asked for a piece
// at a time, so that a large model need not be in memory. The head of a tied model is left
// out, as it is the embedding.
func (o Output) Write(values Values) (err error) {
	if err := Vacant(o.Dir, o.Replace); err != nil {
		return err
	}
	tmp, err := publish.Temp(o.Dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("writing the model folder %s: %w", o.Dir, err), os.RemoveAll(tmp))
		}
	}()
	if err := o.copyFiles(tmp); err != nil {
		return err
	}
	f := &Folder{Dir: tmp}
	if err := f.configure(); err != nil {
		return err
	}
	dt, err := o.settle(tmp)
	if err != nil {
		return err
	}
	spec, err := f.family.describe(dt)
	if err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	if err := writeShards(tmp, shards(tensors(f.family, spec, dt, values), cmp.Or(o.ShardBytes, DefaultShardBytes))); err != nil {
		return err
	}
	return publish.Folder(tmp, o.Dir)
}

// smallFile bounds what is copied from the source: tokenizers are the largest.
const smallFile = 64 << 20

// copyFiles writes everything but weights.
func (o Output) copyFiles(dir string) error {
	files := maps.Clone(o.Files)
	if files == nil {
		files = map[string][]byte{}
	}
	if o.Source != "" {
		list, err := os.ReadDir(o.Source)
		if err != nil {
			return err
		}
		for _, e := range list {
			name := e.Name()
			path := filepath.Join(o.Source, name)
			info, err := os.Stat(path) // the Hub's cache holds links
			if err != nil {
				return err
			}
			if _, given := files[name]; given || !info.Mode().IsRegular() || info.Size() > smallFile || holdsWeights(name) {
				continue
			}
			if files[name], err = os.ReadFile(path); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := publish.File(filepath.Join(dir, name), files[name]); err != nil {
			return err
		}
	}
	return nil
}

// holdsWeights reports whether a file is of weights or points to them, or is hidden.
func holdsWeights(name string) bool {
	switch filepath.Ext(name) {
	case ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".ot":
		return true
	}
	return strings.HasSuffix(name, ".index.json") || strings.HasPrefix(name, ".")
}

// typeNames are the types of weights as config.json spells them.
var typeNames = map[dtype.DType]string{dtype.F32: "float32", dtype.BF16: "bfloat16", dtype.F16: "float16"}

// settle decides on the weights' type and makes config.json say it. A file that does
// already stays as it is.
func (o Output) settle(dir string) (dtype.DType, error) {
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return dtype.Invalid, err
	}
	var values map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // 8.0 stays 8.0: transformers tells it from 8
	if err := d.Decode(&values); err != nil {
		return dtype.Invalid, fmt.Errorf("config.json: %w", err)
	}
	key := "torch_dtype" // newer files say dtype
	if _, newer := values["dtype"]; newer {
		key = "dtype"
	}
	dt := o.DType
	said, _ := values[key].(string)
	if dt == dtype.Invalid {
		dt = dtype.F32
		for t, name := range typeNames {
			if name == said {
				dt = t
			}
		}
	}
	name, ok := typeNames[dt]
	if !ok {
		return dt, fmt.Errorf("weights of type %s: want %s, %s or %s", dt, dtype.F32, dtype.BF16, dtype.F16)
	}
	if name == said {
		return dt, nil
	}
	values[key] = name
	text, err = json.MarshalIndent(values, "", "  ")
	if err != nil {
		return dt, err
	}
	if err := os.Remove(path); err != nil {
		return dt, err
	}
	return dt, publish.File(path, append(text, '\n'))
}

// tensors are the model's as a file has them.
func tensors(family family, spec *decoder.Spec, dt dtype.DType, values Values) (list []safetensors.Tensor) {
	for _, p := range spec.Params() {
		p.EachPart(func(part param.Part, from, to int) {
			names, transposed := family.stored(part.Name, len(p.Shape))
			shape := append([]int{part.Rows}, p.Shape[1:]...)
			t := safetensors.Tensor{Name: names[0], DType: dt, Shape: shape}
			if transposed {
				t.Shape = []int{shape[1], shape[0]}
				t.Data = func(w io.Writer) error { return writeTurned(w, dt, p, from, shape[0], shape[1], values) }
			} else {
				t.Data = func(w io.Writer) error { return writePieces(w, dt, p, from, to, values) }
			}
			list = append(list, t)
		})
	}
	return list
}

// writePieces writes elements [from, to) of p as dt.
func writePieces(w io.Writer, dt dtype.DType, p *param.Param, from, to int, values Values) error {
	const piece = 1 << 20
	wide, raw := make([]float32, min(piece, to-from)), make([]byte, min(piece, to-from)*dt.Size())
	for at := from; at < to; at += piece {
		n := min(piece, to-at)
		if err := values(p, at, wide[:n]); err != nil {
			return err
		}
		vec.Narrow(dt, raw[:n*dt.Size()], wide[:n])
		if _, err := w.Write(raw[:n*dt.Size()]); err != nil {
			return err
		}
	}
	return nil
}

// writeTurned writes the matrix [rows,cols] that begins at element from of p as [cols,rows].
func writeTurned(w io.Writer, dt dtype.DType, p *param.Param, from, rows, cols int, values Values) error {
	wide, turned := make([]float32, rows*cols), make([]float32, rows*cols)
	if err := values(p, from, wide); err != nil {
		return err
	}
	transpose(turned, wide, cols, rows)
	raw := make([]byte, len(turned)*dt.Size())
	vec.Narrow(dt, raw, turned)
	_, err := w.Write(raw)
	return err
}

// shards divides tensors, in their order, over files of at most so many bytes.
func shards(list []safetensors.Tensor, most int64) (files [][]safetensors.Tensor) {
	var size int64
	for _, t := range list {
		n := tensorBytes(t)
		if len(files) == 0 || size+n > most {
			files, size = append(files, nil), 0
		}
		last := len(files) - 1
		files[last], size = append(files[last], t), size+n
	}
	return files
}

func tensorBytes(t safetensors.Tensor) int64 {
	n := int64(t.DType.Size())
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// writeShards writes model.safetensors, or several files and their index.
func writeShards(dir string, files [][]safetensors.Tensor) error {
	if len(files) == 1 {
		return safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), files[0], nil)
	}
	var total int64
	where := map[string]string{}
	for i, list := range files {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(files))
		if err := safetensors.WriteFile(filepath.Join(dir, name), list, nil); err != nil {
			return err
		}
		for _, t := range list {
			where[t.Name] = name
			total += tensorBytes(t)
		}
	}
	index, err := json.MarshalIndent(map[string]any{"metadata": map[string]int64{"total_size": total}, "weight_map": where}, "", "  ")
	if err != nil {
		return err
	}
	return publish.File(filepath.Join(dir, "model.safetensors.index.json"), append(index, '\n'))
}
