package train

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Plan describes what world ranks, local of them on this host, would do with cfg,
// without doing it: the model, the data, the memory of a rank and the gradient
// buckets. It reads the data, so that what is wrong with it shows. Where this host
// cannot run the plan, the error comes beside the text.
func Plan(cfg *config.Config, world, local int) (string, error) {
	a, err := describe(cfg, local, planDevice)
	if err != nil {
		return "", err
	}
	defer a.close()
	if err := a.spread(world); err != nil {
		return "", err
	}
	capacity, refusal := a.compare(local)
	l, err := openLanguage(cfg)
	if err != nil {
		return "", err
	}
	set, err := openData(context.Background(), a, l, nil)
	if err != nil {
		return "", err
	}
	defer set.Close()
	share := data.Share{World: world, MicroBatch: cfg.Train.MicroBatch, GradAccum: cfg.Train.GradAccum}
	if err := enough(cfg, set, share); err != nil {
		return "", err
	}
	buckets, err := a.buckets()
	if err != nil {
		return "", err
	}
	all, trained := a.sizes()
	tokens := int64(share.Batch()) * int64(cfg.Data.SeqLen)
	total := steps(cfg, set.Train.Len(), share.Batch())
	rates, err := newCourse(cfg.Train, total)
	if err != nil {
		return "", err
	}

	var b strings.Builder
	fmt.Fprintf(&b, "model        %s, %d parameters, %d of them trained\n", a.name, all, trained)
	if a.adapters != nil {
		fmt.Fprintf(&b, "adapters     %s\n", a.adapters)
	}
	fmt.Fprintf(&b, "data         %s\n", contents(cfg, set.Train.Info()))
	if set.Eval != nil {
		fmt.Fprintf(&b, "evaluation   %s\n", contents(cfg, set.Eval.Info()))
	}
	for _, line := range warnings(set) {
		fmt.Fprintf(&b, "             warning: %s\n", line)
	}
	step := fmt.Sprintf("%d sequences (%d tokens): %d ranks x %d micro-steps x %d sequences", share.Batch(), tokens, world, share.GradAccum, share.MicroBatch)
	if cfg.Data.Images() {
		step = fmt.Sprintf("%d images: %d ranks x %d micro-steps x %d images", share.Batch(), world, share.GradAccum, share.MicroBatch)
	}
	fmt.Fprintf(&b, "a step       %s\n", step)
	fmt.Fprintf(&b, "a run        %s\n", lengthOf(cfg, total, share.Batch(), set.Train.Len()))
	fmt.Fprintf(&b, "its rate     %s\n\n", rates)

	where := "on a GPU, in bf16 with fp32 master weights"
	if a.on == device.CPU {
		where = "on the CPU, in fp32"
		if a.why != "" {
			where += " (" + a.why + ")"
		}
	}
	fmt.Fprintf(&b, "memory of a rank, %s\n", where)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	rows, sum := a.bytes()
	for _, row := range rows {
		fmt.Fprintf(w, "  %s\t%s\n", row.name, byteCount(row.bytes))
	}
	fmt.Fprintf(w, "  total\t%s (what only the forward or only the backward pass needs shares its place), and the data\n", byteCount(sum))
	w.Flush()
	if n := a.offloaded(); n > 0 {
		fmt.Fprintf(&b, "memory of the host, %s for the optimizer's state of a rank (parallel.offload)\n", byteCount(n))
	}
	if n := a.saved(); n > 0 && a.on != device.CPU {
		fmt.Fprintf(&b, "memory of the host, %s for a copy of what a rank saves (checkpoint.async)\n", byteCount(n))
	}
	if capacity != "" {
		fmt.Fprintln(&b, capacity)
	}
	fmt.Fprintf(&b, "\n%s", buckets)
	return b.String(), refusal
}

// buckets is what ranks send one another, for people to read.
func (a *architecture) buckets() (string, error) {
	head := ""
	if a.compression != nil {
		head = "gradients are compressed: " + a.compression.about() + "\n"
	}
	if a.shards != nil {
		sent := a.shards.Sent(a.cfg.Train.GradAccum)
		return head + fmt.Sprintf("a rank sends %s of gradients and %s of weights a step\n%s", byteCount(sent.ReduceScatter), byteCount(sent.AllGather), a.shards), nil
	}
	p, err := ddp.NewPlan(a.params, bucketOptions(a.cfg, a.on, nil))
	if err != nil {
		return "", err
	}
	return head + p.String(), nil
}

// planDevice is chooseDevice, but for a job that must run on a GPU: it is planned
// on a machine without one, too.
func planDevice(c config.Train, headDim, ranks int) (device.Kind, string, error) {
	if c.Device == "cuda" {
		return device.CUDA, "", gpuSuits(c, headDim)
	}
	return chooseDevice(c, headDim, ranks)
}

// compare says what this machine holds, where that is known, and refuses a plan that
// it cannot run. One for GPUs may be made where the driver shows none.
func (a *architecture) compare(ranks int) (string, error) {
	if a.on == device.CPU {
		return fmt.Sprintf("this host has %s for %d ranks", byteCount(hostMemory()), ranks), a.fits(&machine{}, ranks)
	}
	if _, err := cuda.Count(); err != nil {
		return "no GPU is visible here to compare that with: " + err.Error(), nil
	}
	if err := gpuCan(a.cfg.Train, a.shape.HeadDim, ranks); err != nil {
		return "", fmt.Errorf("train.device cuda: %w", err)
	}
	dev, err := cuda.Open(0)
	if err != nil {
		return "", err
	}
	defer dev.Close()
	free, total, err := dev.Memory()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s (%s) has %s free of %s", dev, dev.Name(), byteCount(free), byteCount(total)), a.fits(&machine{gpu: dev}, ranks)
}
