package train

import (
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
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

// agree makes sure that all ranks read the same data: what each would train and
// evaluate on otherwise is not the batch that the configuration means.
func (j *job) agree(ctx context.Context) error {
	mine := []uint64{j.data.Train.Info().Fingerprint, 0}
	if j.data.Eval != nil {
		mine[1] = j.data.Eval.Info().Fingerprint
	}
	all := make([]uint64, len(mine)*j.size())
	j.group.AllGather(j.comms, device.Of(all), device.Of(mine), dtype.I64)
	if err := j.comms.Synchronize(ctx); err != nil {
		return err
	}
	for i, f := range all {
		if r, first := i/2, all[i%2]; f != first {
			return fmt.Errorf("rank %d on %s reads other %s data than rank 0 on %s (fingerprints %016x and %016x): every host needs the same files",
				r, j.group.Host(r), []string{"training", "evaluation"}[i%2], j.group.Host(0), f, first)
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
