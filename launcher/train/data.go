package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// openData reads what a trains and is evaluated on. tell is told what goes on while
// that takes long.
func openData(ctx context.Context, a *architecture, l *language, tell func(string)) (*data.Set, error) {
	cfg := a.cfg
	d := cfg.Data
	if d.Images() {
		return openImages(d)
	}
	if packs(cfg) && a.name == "gpt2" {
		return nil, errors.New("data.packing: gpt2's learned positions tell where in its sequence a sample lies: give packing: false")
	}
	cache := d.Cache
	if d.Samples(cfg.Model) && cache == "" {
		folder, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("data.cache: %w; give a folder", err)
		}
		cache = filepath.Join(folder, "gorun", "data")
	}
	truncation := d.Truncation
	if truncation == "auto" {
		truncation = ""
	}
	return data.Open(ctx, data.Options{
		Train: d.Train, Eval: d.Eval, EvalSplit: d.EvalSplit, Format: d.Format, DType: d.DType, SeqLen: d.SeqLen,
		Packing: d.Packing, MaxBytes: int64(d.MaxBytes), Vocab: a.vocab, Seed: cfg.Seed,
		Encoding: l.encoding, Fields: data.Fields(d.Fields), Weights: d.Weights, TrainOn: d.TrainOn, Truncation: truncation,
		BadRows: d.BadRows, Cache: cache, Tell: tell,
	})
}

// packs says that sequences hold several samples, which attention does not leave.
func packs(cfg *config.Config) bool { return cfg.Data.Packing && cfg.Data.Samples(cfg.Model) }

// warnings says, a line each, what of the data is not learned from.
func warnings(s *data.Set) []string {
	lines := s.Train.Info().Warnings()
	if s.Eval == nil {
		return lines
	}
	for _, line := range s.Eval.Info().Warnings() {
		lines = append(lines, "evaluation: "+line)
	}
	return lines
}

// enough says that the data does not make one global batch.
func enough(cfg *config.Config, set *data.Set, share data.Share) error {
	n, batch := set.Train.Len(), share.Batch()
	if n >= batch {
		return nil
	}
	packed := ""
	if packs(cfg) {
		packed = fmt.Sprintf(", into which %d samples are packed", set.Train.Info().Samples)
	}
	return fmt.Errorf("the data holds %d %s%s, fewer than one global batch of %d (train.micro_batch %d x train.grad_accum %d x %d ranks): give more data or make the batch smaller",
		n, sequences(cfg), packed, batch, share.MicroBatch, share.GradAccum, share.World)
}

// feed is a micro-batch and the host memory in which it is put together.
type feed struct {
	models.Batch
	tokens, targets, docs tensor.Tensor // i32 [B*T] on the host; on the CPU the batch itself. docs may be none
}

// newFeed makes room for b sequences of t tokens, and, with docs, for the bounds of
// their documents.
func newFeed(d device.Device, b, t int, docs bool) (f feed, err error) {
	f.B, f.T = b, t
	pairs := []struct{ batch, host *tensor.Tensor }{{&f.Tokens, &f.tokens}, {&f.Targets, &f.targets}, {&f.Docs, &f.docs}}
	if !docs {
		pairs = pairs[:2]
	}
	for _, x := range pairs {
		buf, err := d.AllocHost(4 * b * t)
		if err != nil {
			return f, err
		}
		*x.host = tensor.New(buf, dtype.I32, b*t)
		*x.batch = *x.host
		if d.Kind() == device.CPU {
			continue
		}
		if *x.batch, err = tensor.Alloc(d, dtype.I32, b*t); err != nil {
			return f, err
		}
	}
	return f, nil
}

// take fills the host memory with micro-batch m of the loader's step.
func (f feed) take(l *data.Loader, m int) {
	l.Micro(m, f.tokens.I32(), f.targets.I32())
	if !f.docs.None() {
		l.Docs(m, f.docs.I32())
	}
}

// takeEval fills the host memory with micro-batch m of the evaluation, and returns
// the targets that count.
func (f feed) takeEval(e *data.Evaluation, m int) (int, error) {
	if !f.docs.None() {
		e.Docs(m, f.docs.I32())
	}
	return e.Read(m, f.tokens.I32(), f.targets.I32())
}

// upload copies what is on the host to the batch.
func (f feed) upload(s device.Stream) {
	if f.Tokens.Buf.OnHost() {
		return
	}
	s.Copy(f.Tokens.Buf, f.tokens.Buf)
	s.Copy(f.Targets.Buf, f.targets.Buf)
	if !f.docs.None() {
		s.Copy(f.Docs.Buf, f.docs.Buf)
	}
}

// agree makes sure that all ranks begin with the same weights and read the same data:
// what each would train and evaluate on otherwise is not the batch that the configuration
// means, and shards would be of several models. And that all compute on the same kind of
// device.
func (j *job) agree(ctx context.Context) error {
	mine := []uint64{uint64(j.device.Kind()), 0, j.data.Train.Info().Fingerprint, 0}
	if j.arch.weights != nil {
		var err error
		if mine[1], err = j.arch.weights.Fingerprint(); err != nil {
			return err
		}
	}
	if j.data.Eval != nil {
		mine[3] = j.data.Eval.Info().Fingerprint
	}
	all := make([]uint64, len(mine)*j.size())
	j.group.AllGather(j.host, device.Of(all), device.Of(mine), dtype.I64)
	if err := j.host.Synchronize(ctx); err != nil {
		return err
	}
	for i, f := range all {
		r, what, first := i/len(mine), i%len(mine), all[i%len(mine)]
		if what == 0 && f != first {
			return fmt.Errorf("rank %d on %s computes on %s, rank 0 on %s on %s: give train.device, so that a rank which cannot says why",
				r, j.group.Host(r), device.Kind(f), j.group.Host(0), device.Kind(first))
		}
		if f != first {
			return fmt.Errorf("rank %d on %s reads other %s than rank 0 on %s (fingerprints %016x and %016x): every host needs the same files",
				r, j.group.Host(r), []string{"weights of model.path", "training data", "evaluation data"}[what-1], j.group.Host(0), f, first)
		}
	}
	return nil
}

// share is this rank's part of the global batch.
func (j *job) share() data.Share {
	return data.Share{Rank: j.rank(), World: j.size(), MicroBatch: j.cfg.Train.MicroBatch, GradAccum: j.cfg.Train.GradAccum}
}

// loaders starts reading: the training batches from step j.done on, and the
// list of evaluation sequences.
func (j *job) loaders() (err error) {
	c := j.cfg
	share := j.share()
	if err := enough(c, j.data, share); err != nil {
		return err
	}
	share.Total = sequencesOf(c, j.data.Train.Len())
	j.total = steps(c, j.data.Train.Len(), share.Batch())
	if j.loader, err = data.NewLoader(j.data.Train, c.Seed, share); err != nil {
		return err
	}
	j.onClose(func() error { j.loader.Close(); return nil })
	if j.data.Eval == nil || c.Eval.Every == 0 {
		return nil
	}
	j.eval, err = data.NewEvaluation(j.data.Eval, c.Eval.Steps*share.Batch(), share)
	return err
}

// teller is how a rank tells of what its host does before the job has met: one of
// each host does.
func (j *job) teller(at place) func(string) {
	return func(what string) {
		if at.local == 0 {
			_ = j.out.Message("data: %s", what) // that nobody listens is no reason to stop
		}
	}
}
