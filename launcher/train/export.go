package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models/hf"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/publish"
)

// Export is a checkpoint to be made into a folder that other programs load.
type Export struct {
	// From is a checkpoint, or a job's output folder, of whose checkpoints the newest
	// counts.
	From string
	// Model is the folder that the job began with, where it is no longer at its
	// model.path.
	Model string
	// Output is the folder to write. Replace allows that a model or adapters lie there.
	Output  string
	Replace bool
	// DType is the type of the weights: F32, BF16 or F16. Default: what the model's own
	// config.json says, else F32. Adapters are in F32.
	DType dtype.DType
	// Merge adds adapters to the weights that they are for. Without it, a checkpoint
	// of adapters becomes a folder of adapters, in PEFT's format.
	Merge bool

	written bool             // by this process, a moment ago: there is no need to read it all
	moved   checkpoint.Moved // told of the weights that are written
}

// Run writes the folder and says what it is of. The checkpoint is verified before. The
// end of ctx ends the writing: nothing of the folder is left then.
func (e Export) Run(ctx context.Context) (about string, err error) {
	if err := hf.Vacant(e.Output, e.Replace); err != nil {
		return "", err // before anything is read
	}
	c, err := e.open()
	if err != nil {
		return "", err
	}
	cfg, err := configOf(c)
	if err != nil {
		return "", err
	}
	if cfg.Model.Classifies() {
		return "", fmt.Errorf("%s is of a %s, of which there is no model folder: its weights are in the checkpoint, as safetensors", c.Dir, cfg.Model.Arch)
	}
	cfg.Model.Path = cmp.Or(e.Model, cfg.Model.Path)
	a, err := describeAs(cfg, dtype.F32)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && e.Model == "" {
			err = fmt.Errorf("%w; --model says where that folder is now", err)
		}
		return "", errors.Join(fmt.Errorf("%s: %w", c.Dir, err), a.close())
	}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := replacesNone(e.Output, a.cfg.Model.Path); err != nil {
		return "", err
	}
	if e.Merge && a.adapters == nil {
		return "", fmt.Errorf("%s holds a whole model, and there are no adapters to merge: leave --merge out", c.Dir)
	}
	var s state
	if err := c.Meta(&s); err != nil {
		return "", fmt.Errorf("%s: %w", c.Dir, err)
	}
	base, err := baseOf(&a.architecture)
	if err != nil {
		return "", err
	}
	if line := s.otherBase(base); line != "" {
		return "", fmt.Errorf("%s: %s: these are other weights; --model says where the right ones are", c.Dir, line)
	}
	t, err := c.Tensors()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	x := exporting{ctx: ctx, a: &a.architecture, c: c, t: t}
	source := ""
	if a.weights != nil {
		source = a.weights.Dir
	}
	if x.converses, err = chatFiles(cfg, source); err != nil {
		return "", err
	}
	kind := "the model"
	switch {
	case a.adapters == nil:
		err = x.model(e, x.whole)
	case e.Merge:
		kind = "the model, its adapters merged,"
		err = x.merged(e)
	default:
		kind = "the adapters"
		err = x.adapters(e)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s of step %d, from %s", kind, c.Step, c.Dir), nil
}

// replacesNone makes sure that a folder does not take the place of what it is made of.
func replacesNone(output string, sources ...string) error {
	for _, s := range sources {
		if sameFolder(output, s) {
			return fmt.Errorf("%s is what the new folder is made of, and is not replaced by it: name another", output)
		}
	}
	return nil
}

// export makes a folder of the job's last checkpoint, where the job has come to its
// end. What a job that was killed has left of its own is removed.
func (j *job) export(ctx context.Context, moved checkpoint.Moved, last string) error {
	if c := j.cfg.Checkpoint; !c.Export || !c.Final || j.early != "" {
		return nil
	}
	if err := publish.Clear(j.path("export")); err != nil {
		return err
	}
	_, err := Export{From: last, Output: j.path("export"), Replace: true, written: true, moved: moved}.Run(ctx)
	if errors.Is(err, hf.ErrShape) {
		j.say("no model folder is made: %v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("the checkpoint of step %d is complete, but no model folder could be made of it (gorun export %s --output DIR does it again): %w", j.done, last, err)
	}
	return nil
}

// open finds the checkpoint and reads all of it.
func (e Export) open() (*checkpoint.Checkpoint, error) {
	if exists(filepath.Join(e.From, "checkpoints")) {
		c, broken, err := checkpoint.Newest(filepath.Join(e.From, "checkpoints"), nil)
		if err == nil && len(broken) > 0 {
			err = fmt.Errorf("its newest checkpoint, %s, is damaged: %w; the newest complete one is %s", broken[0].Dir, broken[0].Err, c.Dir)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.From, err)
		}
		return c, nil
	}
	read := checkpoint.Open
	if e.written {
		read = checkpoint.Inspect
	}
	c, err := read(e.From)
	if err != nil {
		return nil, fmt.Errorf("%w (want a checkpoint, or the output folder of a job)", err)
	}
	return c, nil
}

// configOf is the configuration of the run that wrote a checkpoint.
func configOf(c *checkpoint.Checkpoint) (*config.Config, error) {
	path, err := c.Path(configFile)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return config.Parse(path, text, nil)
}

// exporting is a checkpoint that is being read.
type exporting struct {
	ctx context.Context // ends the writing
	a   *architecture
	c   *checkpoint.Checkpoint
	t   *checkpoint.Tensors
	// converses are the files that say how the model does; see chatFiles.
	converses map[string][]byte
}

// model writes the whole model, whose parameters read gives.
func (x exporting) model(e Export, read func(p *param.Param, values []float32) error) error {
	o := hf.Output{Dir: e.Output, Replace: e.Replace, DType: e.DType, Files: map[string][]byte{}}
	if x.a.weights != nil {
		o.Source = x.a.weights.Dir
	} else {
		var err error
		if o.Files, err = x.files(); err != nil {
			return err
		}
	}
	maps.Copy(o.Files, x.converses)
	// A file's tensors are in another order than the parameters, of which some are
	// several: the last one stays at hand.
	var last *param.Param
	var values []float32
	return o.Write(func(p *param.Param, from int, out []float32) error {
		if err := context.Cause(x.ctx); err != nil {
			return err
		}
		if last == nil || last.Name != p.Name {
			last, values = nil, slices.Grow(values[:0], p.Numel())[:p.Numel()]
			if err := read(p, values); err != nil {
				return err
			}
			last = p
		}
		copy(out, values[from:])
		if e.moved != nil {
			e.moved(4 * len(out))
		}
		return nil
	})
}

// files are config.json and the rest of a model that has no folder: its tokens are
// bytes, or came from a tokenizer's folder.
func (x exporting) files() (map[string][]byte, error) {
	m, d := x.a.cfg.Model, x.a.cfg.Data
	ofBytes := (d.Tokenizer == "" || d.Tokenizer == "bytes") && d.Format != "tokens" && d.Format != "synthetic"
	ends := map[string]any{}
	if ofBytes {
		ends = map[string]any{"bos_token_id": 0, "eos_token_id": 0}
	}
	settings, err := hf.NewConfig(hf.Shape{
		"arch": m.Arch, "layers": m.Layers, "hidden": m.Hidden, "heads": m.Heads, "kv_heads": m.KVHeads, "head_dim": m.HeadDim, "ffn": m.FFN, "vocab": m.Vocab,
		"max_seq_len": m.MaxSeqLen, "tie_embeddings": m.TieEmbed, "qkv_bias": m.QKVBias, "rope_theta": m.RopeTheta, "norm_eps": m.NormEps,
	}, ends)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"config.json": settings}
	if !ofBytes {
		return files, nil // the tokens are of another tokenizer, whose files are the user's
	}
	more, err := tokenizer.BytesFiles()
	if err != nil {
		return nil, err
	}
	maps.Copy(files, more)
	files[generationFile], err = json.MarshalIndent(ends, "", "  ")
	return files, err
}

// whole reads a parameter: from the checkpoint, or where that lacks it, as it does
// frozen ones, from the model's folder.
func (x exporting) whole(p *param.Param, values []float32) (err error) {
	if _, ok := x.t.Find(p.Split()[0].Name); !ok {
		if x.a.weights == nil {
			return fmt.Errorf("%s: %s is not in the checkpoint, and the model came from no folder", x.c.Dir, p.Name)
		}
		return x.a.weights.Read(p, values)
	}
	p.EachPart(func(part param.Part, from, to int) {
		shape := append([]int{part.Rows}, p.Shape[1:]...)
		found, _ := x.t.Find(part.Name) // a part that is missing has no shape
		if e := (piece{name: part.Name, shape: shape}).fits(found); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", x.c.Dir, e))
			return
		}
		err = errors.Join(err, x.t.Read(part.Name, 0, to-from, func(at int, b []byte) error {
			copy(device.Of(values[from+at:to]).Bytes(), b)
			return nil
		}))
	})
	return err
}
