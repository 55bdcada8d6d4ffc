package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// restore reads what this rank has of a checkpoint's tensors, whoever wrote them, and
// takes up where it was written.
func (j *job) restore(ctx context.Context, s recorded) (err error) {
	tensors, err := s.Tensors()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tensors.Close()) }()
	files := j.contents()
	if err := j.compute.Synchronize(ctx); err != nil { // stores may write to memory without it
		return err
	}
	if err := load(ctx, tensors, files); err != nil {
		return fmt.Errorf("%s: %w", s.Dir, err)
	}
	was, now := cmp.Or(s.Strategy, "ddp"), j.cfg.Parallel.Strategy
	if err := j.loadPrivate(ctx, tensors, files, was == now && s.World == j.size()); err != nil {
		return fmt.Errorf("%s: %w", s.Dir, err)
	}
	if j.gpuOps != nil && len(s.Products) > 0 {
		taken, err := j.gpuOps.Products().Adopt(s.Products)
		if err != nil {
			return fmt.Errorf("%s: the algorithms of its matrix products: %w", s.Dir, err)
		}
		if taken < len(s.Products) {
			j.say("%d of the checkpoint's %d algorithms for matrix products are not for this GPU and cuBLASLt: results agree up to rounding", len(s.Products)-taken, len(s.Products))
		}
	}
	if s.World == j.size() && len(s.Links) > 0 && j.cfg.Comm.Tune == "auto" {
		if err := j.group.Retune(s.Links); err != nil {
			return fmt.Errorf("%s: what it says of the links: %w", s.Dir, err)
		}
	}
	j.done, j.optim.applied = s.state.Step, s.Applied
	if s.Backend != j.backend || s.World != j.size() || was != now {
		j.say("the checkpoint was written by %d ranks with %s and %s, now %d ranks with %s and %s: results agree up to rounding",
			s.World, was, s.Backend, j.size(), now, j.backend)
	}
	return nil
}

// load gives the files' tensors their values. The checkpoint must hold these tensors
// and no others.
func load(ctx context.Context, from *checkpoint.Tensors, files []file) error {
	known := map[string]bool{}
	for _, f := range files {
		for _, r := range f.pieces {
			if r.own {
				continue
			}
			known[r.name] = true
			x, ok := from.Find(r.name)
			if !ok {
				return fmt.Errorf("it holds no tensor %q, which the model has", r.name)
			}
			if err := r.fits(x); err != nil {
				return err
			}
			err := from.Read(r.name, r.has.from, r.has.to, func(at int, b []byte) error { return r.write(ctx, at-r.has.from, b) })
			if err != nil {
				return err
			}
		}
	}
	for _, name := range from.Names() {
		if !known[name] {
			return fmt.Errorf("%s is no tensor of this model's checkpoints: it was written for another model, or by another version of gorun", name)
		}
	}
	return nil
}

func (r piece) fits(x checkpoint.Tensor) error {
	if x.Type != "F32" || !slices.Equal(x.Shape, r.shape) {
		return fmt.Errorf("%s is %s%v, the model has %s%v", r.name, x.Type, x.Shape, dtype.F32, r.shape)
	}
	return nil
}

// loadPrivate gives this rank's own tensors their values, where the checkpoint is from
// as many ranks under the same strategy. Else they stay as they are, which is told:
// all ranks' or none's.
func (j *job) loadPrivate(ctx context.Context, from *checkpoint.Tensors, files []file, same bool) error {
	saved := from.Private(j.rank())
	fit, own := same, 0
	for _, f := range files {
		for _, r := range f.pieces {
			if r.own {
				own++
				x, ok := saved[r.name]
				fit = fit && ok && r.fits(x) == nil
			}
		}
	}
	fit = fit && own == len(saved)
	lost := []float64{0}
	if !fit && (own > 0 || len(saved) > 0) {
		lost[0] = 1
	}
	if err := j.exchange(ctx, nil, lost); err != nil {
		return err
	}
	if lost[0] > 0 {
		j.say("what each rank keeps for itself, such as what compression has left of the gradients, is not the checkpoint's but as at the start: it was written by other ranks, or under other settings")
		return nil
	}
	for _, f := range files {
		for _, r := range f.pieces {
			if !r.own {
				continue
			}
			if err := from.ReadPrivate(j.rank(), r.name, func(at int, b []byte) error { return r.write(ctx, at, b) }); err != nil {
				return err
			}
		}
	}
	return nil
}
