package train

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

// What ranks allocate to exchange gradients is part of the plan, where they do.
func TestThePlanHoldsWhatRanksExchange(t *testing.T) {
	const tied = "model.tie_embeddings=true"
	for _, c := range []struct {
		name          string
		ranks, world  int
		sets          []string
		row           string
		bytesOfParams int64 // a factor of the parameters' number
		bytes         int64
	}{
		{"sent in the type they have", 2, 2, []string{"parallel.reduce_dtype=bf16"}, "gradients on their way", 0, 0},
		{"sent in another type", 2, 2, []string{"parallel.reduce_dtype=fp32"}, "gradients on their way", 4, 0},
		{"sent by nobody", 1, 1, []string{"parallel.reduce_dtype=fp32"}, "gradients on their way", 0, 0},
		{"rows", 2, 2, []string{tied, "model.vocab=1000"}, "all ranks' rows of the embedding", 0, 2 * 12 * 16 * (32*2 + 4)},
		{"rows, too many", 2, 2, []string{tied, "model.vocab=700"}, "all ranks' rows of the embedding", 0, 0},
		{"rows, but no overlap", 2, 2, []string{tied, "model.vocab=1000", "comm.overlap=false"}, "all ranks' rows of the embedding", 0, 0},
		{"rows, but the head is apart", 2, 2, []string{"model.vocab=1000"}, "all ranks' rows of the embedding", 0, 0},
		{"copy engines", 4, 4, nil, "slots of collectives between GPUs", 0, int64(dma.Memory(4))},
		{"network cards of two hosts", 4, 8, nil, "slots of collectives between GPUs", 0, int64(comm.GPUDirectMemory())},
		{"copy engines, not asked for", 4, 4, []string{"comm.engine=nccl"}, "slots of collectives between GPUs", 0, 0},
	} {
		a, err := describe(parse(t, append(c.sets, "train.device=cuda", "train.threads=0")...), c.ranks, planDevice)
		if err != nil {
			t.Fatal(err)
		}
		_, without := a.bytes()
		a.world = c.world
		rows, sum := a.bytes()
		var got, exchanged int64
		for _, r := range rows {
			if r.name == c.row {
				got = r.bytes
			}
		}
		exchanged = sum - without
		params, _ := a.sizes()
		// Tensors begin at multiples of a cache line.
		if low := c.bytes + c.bytesOfParams*params; got < low || got > low+256*int64(len(a.params)) && low > 0 || low == 0 && got > 0 {
			t.Errorf("%s: %d bytes, want %d", c.name, got, low)
		}
		if exchanged < got {
			t.Errorf("%s: the sum grows by %d bytes, and the row has %d", c.name, exchanged, got)
		}
	}
}

// What a rank copies at a save is part of the plan, to the byte, where it copies.
func TestThePlanHoldsTheCopyOfWhatIsSaved(t *testing.T) {
	for _, c := range []struct {
		strategy string
		ranks    int
		lora     int // its rank; 0: all weights are trained and saved
	}{{"ddp", 1, 0}, {"ddp", 3, 0}, {"zero1", 3, 0}, {"zero3", 2, 0}, {"ddp", 2, 2}, {"zero3", 2, 2}} {
		sets := append(small, "output="+t.TempDir(), "parallel.strategy="+c.strategy, fmt.Sprint("train.micro_batch=", 12/c.ranks), fmt.Sprint("lora.r=", c.lora))
		copied := make([]int64, c.ranks)
		var planned, rest int64
		_, errs := trainChanged(t, c.ranks, func(j *job) {
			copied[j.rank()] = int64(j.shot.Len())
			if j.rank() == 0 {
				if err := j.arch.spread(c.ranks); err != nil {
					t.Error(err)
				}
				_, planned = j.arch.bytes()
				again := *j.cfg
				again.Checkpoint.Async = false
				j.arch.cfg = &again
				_, rest = j.arch.bytes()
			}
		}, nil, sets...)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if most := slices.Max(copied); most == 0 || planned-rest != most {
			t.Errorf("%+v: the plan has %d bytes, the ranks copy %d", c, planned-rest, copied)
		}
	}
	for _, set := range []string{"checkpoint.async=false", "checkpoint.every=0"} {
		_, errs := trainChanged(t, 2, func(j *job) {
			if j.shot.Len() > 0 || j.arch.saved() > 0 {
				t.Errorf("%s: %d bytes, %d planned", set, j.shot.Len(), j.arch.saved())
			}
		}, nil, "output="+t.TempDir(), "train.micro_batch=6", "train.max_steps=3", "eval.every=0", set)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
}

// A host that cannot hold the copies of its GPUs' states says what to do instead.
func TestTheHostMustHoldTheCopiesOfItsGPUs(t *testing.T) {
	a, err := describe(parse(t, "train.device=cuda", "train.threads=0"), 1, planDevice)
	if err != nil {
		t.Fatal(err)
	}
	_, with := a.bytes()
	a.cfg.Checkpoint.Async = false
	_, without := a.bytes()
	if with != without {
		t.Errorf("%d bytes of the GPU are for a copy in the host's memory", with-without)
	}
	text, err := Plan(parse(t, "train.device=cuda", "train.threads=0"), 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	if want := "memory of the host, 173.0 kB for a copy of what a rank saves (checkpoint.async)"; !strings.Contains(text, want) {
		t.Errorf("%q is not in\n%s", want, text)
	}
}

// A job that has come to the CPU and does not fit there learns what kept it from GPUs.
func TestALackOfMemoryOnTheCPUSaysWhyNoGPU(t *testing.T) {
	cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	huge := []string{"model.hidden=8192", "model.heads=64", "model.layers=1000", "train.micro_batch=10000"}
	for _, c := range []struct{ device, want string }{
		{"auto", "memory on the CPU (not on a GPU: this host has 4 ranks and shows 2 GPUs (give --nproc 2)): 4 x "},
		{"cpu", "memory on the CPU: 4 x "},
	} {
		a, err := describe(parse(t, append(huge, "train.device="+c.device)...), 4, chooseDevice)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.fits(&machine{}, 4); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s...", c.device, err, c.want)
		}
	}
}

// What parallel.offload moves to the host leaves the GPU's plan, to the byte, and is
// compared with the host's memory.
func TestOffloadMovesTheStateToTheHost(t *testing.T) {
	for _, strategy := range []string{"ddp", "zero1", "zero2", "zero3"} {
		plan := func(offload string) *architecture {
			cfg := parse(t, "parallel.strategy="+strategy, "parallel.offload="+offload, "train.device=cuda", "train.threads=0")
			a, err := describeAs(cfg, computeType(device.CUDA))
			if err != nil {
				t.Fatal(err)
			}
			a.on, a.ranks = device.CUDA, 2
			if a.memory, err = a.spec.Plan(cfg.Train.MicroBatch, cfg.Data.SeqLen, a.on, recompute(cfg.Train)); err != nil {
				t.Fatal(err)
			}
			if err := a.architecture.spread(2); err != nil {
				t.Fatal(err)
			}
			return &a.architecture
		}
		here, there := plan("none"), plan("optimizer")
		_, all := here.bytes()
		rows, left := there.bytes()
		trained, _ := here.sizes()
		moved := there.offloaded()
		if all-left != moved || here.offloaded() != 0 {
			t.Errorf("%s: the GPU has %d bytes less, the host %d more", strategy, all-left, moved)
		}
		share := int64(1)
		if strategy != "ddp" {
			share = 2
		}
		if low := 12 * trained / share; moved < low || moved > low+low/10 {
			t.Errorf("%s: %d bytes on the host, want %d and a little padding", strategy, moved, low)
		}
		for _, r := range rows {
			if isOffloaded(r) {
				t.Errorf("%s: %s is still in the GPU's plan", strategy, r.name)
			}
		}
		if advice := there.advice(); strings.Contains(advice, "parallel.offload") {
			t.Errorf("advised what is done already: %s", advice)
		}
		if advice := here.advice(); !strings.Contains(advice, "parallel.offload to optimizer") {
			t.Errorf("not advised: %s", advice)
		}
	}
}
