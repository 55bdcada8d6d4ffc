package train

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models/data"
)

// Plan describes what world ranks would do with cfg, without doing it: the
// model, the data, the memory of a rank and the gradient buckets. It reads the
// data, so that what is wrong with it shows.
func Plan(cfg *config.Config, world int) (string, error) {
	a, err := describe(cfg)
	if err != nil {
		return "", err
	}
	defer a.close()
	set, err := openData(context.Background(), cfg, a.vocab)
	if err != nil {
		return "", err
	}
	defer set.Close()
	if err := a.fits(1); err != nil {
		return "", err
	}
	share := data.Share{World: world, MicroBatch: cfg.Train.MicroBatch, GradAccum: cfg.Train.GradAccum}
	if err := enough(cfg, set, share); err != nil {
		return "", err
	}
	buckets, err := ddp.NewPlan(a.params, bucketOptions(cfg.Parallel, nil))
	if err != nil {
		return "", err
	}
	all, trained := a.sizes()
	tokens := int64(share.Batch()) * int64(cfg.Data.SeqLen)
	total := steps(cfg, set.Train.Len(), share.Batch())

	var b strings.Builder
	fmt.Fprintf(&b, "model        %s, %d parameters, %d of them trained\n", a.name, all, trained)
	fmt.Fprintf(&b, "data         %s\n", set.Train.Info())
	if set.Eval != nil {
		fmt.Fprintf(&b, "evaluation   %s\n", set.Eval.Info())
	}
	fmt.Fprintf(&b, "a step       %d sequences (%d tokens): %d ranks x %d micro-steps x %d sequences\n",
		share.Batch(), tokens, world, share.GradAccum, share.MicroBatch)
	fmt.Fprintf(&b, "a run        %d steps, %.3f epochs\n\n", total, float64(total)*float64(share.Batch())/float64(set.Train.Len()))

	fmt.Fprintf(&b, "memory of a rank\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	rows, sum := a.bytes()
	for _, row := range rows {
		fmt.Fprintf(w, "  %s\t%s\n", row.name, byteCount(row.bytes))
	}
	fmt.Fprintf(w, "  total\t%s (what only the forward or only the backward pass needs shares its place), and the data\n", byteCount(sum))
	w.Flush()
	fmt.Fprintf(&b, "\n%s", buckets)
	return b.String(), nil
}
