package train

import (
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func openData(ctx context.Context, cfg *config.Config, vocab int) (*data.Set, error) {
	d := cfg.Data
	return data.Open(ctx, data.Options{
		Train: d.Train, Eval: d.Eval, EvalSplit: d.EvalSplit, Format: d.Format, DType: d.DType, SeqLen: d.SeqLen,
		Packing: d.Packing, MaxBytes: int64(d.MaxBytes), Vocab: vocab, Seed: cfg.Seed,
	})
}

// enough says that the data does not make one global batch.
func enough(cfg *config.Config, set *data.Set, share data.Share) error {
	if n, batch := set.Train.Len(), share.Batch(); n < batch {
		return fmt.Errorf("the data holds %d sequences of %d tokens, fewer than one global batch of %d (train.micro_batch %d x train.grad_accum %d x %d ranks): give more data or make the batch smaller",
			n, cfg.Data.SeqLen, batch, share.MicroBatch, share.GradAccum, share.World)
	}
	return nil
}

// feed is a micro-batch and the host memory in which it is put together.
type feed struct {
	models.Batch
	tokens, targets tensor.Tensor // i32 [B*T] on the host; on the CPU the batch itself
}

func newFeed(d device.Device, b, t int) (f feed, err error) {
	f.B, f.T = b, t
	for _, x := range []struct{ batch, host *tensor.Tensor }{{&f.Tokens, &f.tokens}, {&f.Targets, &f.targets}} {
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

// upload copies what is on the host to the batch.
func (f feed) upload(s device.Stream) {
	if f.Tokens.Buf.OnHost() {
		return
	}
	s.Copy(f.Tokens.Buf, f.tokens.Buf)
	s.Copy(f.Targets.Buf, f.targets.Buf)
}

// agree makes sure that all ranks read the same data: what each would train and
// evaluate on otherwise is not the batch that the configuration means. And that
// all compute on the same kind of device.
func (j *job) agree(ctx context.Context) error {
	mine := []uint64{uint64(j.device.Kind()), j.data.Train.Info().Fingerprint, 0}
	if j.data.Eval != nil {
		mine[2] = j.data.Eval.Info().Fingerprint
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
			return fmt.Errorf("rank %d on %s reads other %s data than rank 0 on %s (fingerprints %016x and %016x): every host needs the same files",
				r, j.group.Host(r), []string{"training", "evaluation"}[what-1], j.group.Host(0), f, first)
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

// steps is the length of the whole job: max_steps, or what the epochs come to.
func steps(c *config.Config, sequences, batch int) int {
	n := c.Train.MaxSteps
	if c.Train.Epochs > 0 {
		if byEpochs := data.Steps(sequences, c.Train.Epochs, batch); n == 0 || byEpochs < n {
			n = byEpochs
		}
	}
	return n
}
