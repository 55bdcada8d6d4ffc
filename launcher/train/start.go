package train

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/param"
)

// start gives the weights their first values: a checkpoint's, those of a model's
// folder, or those that the seed makes. It leaves j ready for step j.done.
func (j *job) start(ctx context.Context) error {
	from, err := j.resumeFrom(ctx)
	if err != nil {
		return err
	}
	var saved recorded
	if from != "" {
		if saved, err = j.recorded(from); err != nil {
			return err
		}
	}
	if err := j.spread(ctx, saved.order); err != nil {
		return err
	}
	if j.copies() {
		if err := j.reserve(); err != nil {
			return err
		}
	}
	j.onClose(j.abandon)
	// A checkpoint does not hold frozen weights.
	if from == "" || slices.ContainsFunc(j.model.Params(), func(p *param.Param) bool { return p.Frozen }) {
		if err := j.initialize(ctx); err != nil {
			return err
		}
	}
	if from != "" {
		if err := j.restore(ctx, saved); err != nil {
			return err
		}
	}
	if err := j.keeper.Publish(); err != nil {
		return err
	}
	if err := j.keeper.Compare(ctx); err != nil {
		return err
	}
	if err := j.loaders(); err != nil {
		return err
	}
	if j.course, err = newCourse(j.cfg.Train, j.total); err != nil {
		return err
	}
	if j.rank() == 0 {
		if err := j.claimOutput(from); err != nil {
			return err
		}
	}
	if err := j.recall(ctx, saved.Evaluations); err != nil {
		return err
	}
	j.introduce(from, saved)
	return nil
}

// firstValues gives elements of a parameter, which stand until it is called again.
type firstValues func(elements) ([]float32, error)

// initialize gives all weights their first values.
func (j *job) initialize(ctx context.Context) error {
	params := j.model.Params()
	var memory []float32
	sized := func(n int) []float32 {
		memory = slices.Grow(memory[:0], n)[:n]
		return memory
	}
	if f := j.arch.weights; f != nil {
		var own []*param.Param // of adapters, which are not in the folder
		if l := j.arch.adapters; l != nil {
			own = l.Params()
		}
		base := slices.DeleteFunc(slices.Clone(params), func(p *param.Param) bool { return slices.Contains(own, p) })
		if err := f.Fits(base); err != nil {
			return err
		}
		for i, p := range base {
			err := j.keeper.Set(ctx, p, func(x elements) ([]float32, error) {
				v := sized(x.numel())
				return v, f.ReadRange(f.Params()[i], x.from, v)
			})
			if err != nil {
				return fmt.Errorf("%s: %s: %w", f.Dir, p.Name, err)
			}
		}
		params = own
	}
	for _, p := range params {
		err := j.keeper.Set(ctx, p, func(x elements) ([]float32, error) {
			all := sized(p.Numel()) // one depends on those before it
			j.model.Init(p, j.cfg.Seed, all)
			return all[x.from:x.to], nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// idleOnOneHost are the keys for links between ranks of which there are none, for
// comm.transport auto has taken shared memory.
func (j *job) idleOnOneHost() (keys []string) {
	if j.gpu != nil || j.size() == 1 || slices.ContainsFunc(j.group.Stats().Wires, func(w comm.WireStats) bool { return w.Transport != "shm" }) {
		return nil
	}
	c := &j.cfg.Comm
	for _, x := range []struct {
		key string
		set bool
	}{
		{"comm.interface", c.Interface != ""}, {"comm.ports", c.Ports != ""}, {"comm.algo", c.Algo != "auto"},
		{"comm.channels", c.Channels > 0}, {"comm.chunk", c.Chunk > 0},
	} {
		if x.set {
			keys = append(keys, x.key)
		}
	}
	return keys
}

// introduce tells the user what is about to run.
func (j *job) introduce(from string, saved recorded) {
	all, trained := j.arch.sizes()
	model := fmt.Sprintf("%s, %d parameters", j.arch.name, all)
	if trained != all {
		model += fmt.Sprintf(", %d of them trained", trained)
	}
	share := j.share()
	j.say("model: %s, in %s", model, computeType(j.arch.on))
	if l := j.arch.adapters; l != nil {
		j.say("adapters: %s", l)
	}
	about := j.about
	if j.arch.why != "" {
		about += "; not on a GPU: " + j.arch.why
	}
	j.say("ranks: %d, on %s", j.size(), about)
	if idle := j.idleOnOneHost(); len(idle) > 0 {
		j.say("without effect: %s; ranks of one host go through shared memory, which has one algorithm, pieces of its own and no network", strings.Join(idle, ", "))
	}
	if j.gpuOps != nil {
		s := j.arch.shape
		if packs(j.cfg) {
			j.say("attention: native, which alone keeps the samples of a sequence apart")
		} else {
			j.say("%s", j.gpuOps.Explain(j.env.B, j.env.T, s.Heads, s.KVHeads, s.HeadDim))
		}
		if j.size() > 1 {
			j.say("gradients: %s, over %s", j.keeper.About(), j.group.GPUEngine())
		}
	}
	if stage(j.cfg.Parallel) > 0 {
		j.say("shards: %s", j.keeper.About())
	}
	if c := j.arch.compression; c != nil {
		j.say("compression: %s", c.about())
	}
	j.say("data: %s", contents(j.cfg, j.data.Train.Info()))
	for _, line := range warnings(j.data) {
		j.say("data: warning: %s", line)
	}
	j.say("a step: %d %s; %s; learning rate %s", share.Batch(), sequences(j.cfg), lengthOf(j.cfg, j.total, share.Batch(), j.data.Train.Len()), j.course)
	if j.arch.weights != nil {
		for _, note := range j.arch.weights.Notes {
			j.say("%s: %s", j.arch.weights.Dir, note)
		}
	}
	if from != "" {
		j.say("going on from %s, step %d of %d", from, j.done, j.total)
		j.tellChanges(saved)
	}
}
