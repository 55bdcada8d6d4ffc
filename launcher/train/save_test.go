package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// strategies are what parallel.strategy may be.
var strategies = []string{"ddp", "zero1", "zero2", "zero3"}

// on are the settings of a strategy on a number of ranks that share the global batch.
func on(strategy string, ranks int, sets ...string) []string {
	return slices.Concat(small, []string{"parallel.strategy=" + strategy, fmt.Sprint("train.micro_batch=", 12/ranks)}, sets)
}

// holds fails where what this rank has is not what the tensors say.
func holds(t *testing.T, j *job, want map[string][]byte) {
	t.Helper()
	seen := 0
	for _, f := range j.contents() {
		for _, x := range f.pieces {
			if x.own {
				continue
			}
			seen++
			if x.has.numel() == 0 {
				continue
			}
			got := make([]byte, 4*x.has.numel())
			if err := errors.Join(x.read(t.Context(), 0, device.Host(got)), j.compute.Synchronize(t.Context())); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(got, want[x.name][4*x.has.from:4*x.has.to]) {
				t.Errorf("rank %d: elements %d to %d of %s are not those of the checkpoint", j.rank(), x.has.from, x.has.to, x.name)
			}
		}
	}
	if seen != len(want) {
		t.Errorf("rank %d has parts of %d tensors, the checkpoint has %d", j.rank(), seen, len(want))
	}
}

// What four ranks have written, each a part, any number of ranks under any strategy
// reads, bit by bit: weights and both moments.
func TestAnyNumberOfRanksReadsWhatFourHaveWritten(t *testing.T) {
	for w, writer := range strategies {
		dir := t.TempDir()
		mustTrain(t, 4, on(writer, 4, "output="+dir, "train.max_steps=3", "eval.every=0")...)
		want := weights(t, dir, 3)
		for name, b := range want {
			if strings.HasSuffix(name, "proj.weight") && !differs(b) {
				t.Errorf("%s is constant: it shows nothing", name)
			}
		}
		c, err := checkpoint.Open(filepath.Join(dir, "checkpoints", "step-00000003"))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{weightsKind, optimizerKind} {
			var sizes []int64
			for _, e := range c.Files {
				if strings.HasPrefix(e.Name, kind) {
					sizes = append(sizes, e.Size)
				}
			}
			if len(sizes) != 4 || writer == "ddp" && slices.Max(sizes) > slices.Min(sizes)*3/2 {
				t.Errorf("%s: files of %d bytes for the %s", writer, sizes, kind)
			}
		}
		for i, ranks := range []int{1, 2, 3, 6} {
			reader := strategies[(w+i)%4] // each meets each writer, not in each number
			_, errs := trainChanged(t, ranks, func(j *job) { holds(t, j, want) }, nil,
				on(reader, ranks, "output="+dir, "train.max_steps=3", "eval.every=0", "checkpoint.resume=auto")...)
			if err := errors.Join(errs...); err != nil {
				t.Errorf("%s on 4, %s on %d: %v", writer, reader, ranks, err)
			}
		}
	}
}

// rewritten reads the checkpoint of step 3 in from and writes it to to.
func rewritten(t *testing.T, from, to, strategy string, ranks int) {
	t.Helper()
	_, errs := trainChanged(t, ranks, func(j *job) {
		j.cfg = new(*j.cfg)
		j.cfg.Output = to
		if err := j.save(t.Context(), true); err != nil {
			t.Error(err)
		}
	}, nil, on(strategy, ranks, "output="+from, "train.max_steps=3", "eval.every=0", "checkpoint.resume=auto")...)
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%s on %d: %v", strategy, ranks, err)
	}
}

func TestACheckpointGoesFromDDPToZeROAndBack(t *testing.T) {
	a, b, c, d := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	mustTrain(t, 3, on("ddp", 3, "output="+a, "train.max_steps=3", "eval.every=0")...)
	rewritten(t, a, b, "zero3", 4)
	rewritten(t, b, c, "ddp", 2)
	rewritten(t, c, d, "zero1", 1)
	want := weights(t, a, 3)
	for _, dir := range []string{b, c, d} {
		sameWeights(t, dir, want, weights(t, dir, 3))
	}
	// One rank's is for other programs, too.
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", checkpoint.IndexName} {
		if _, err := os.Stat(filepath.Join(d, "checkpoints", "step-00000003", name)); err != nil {
			t.Error(err)
		}
	}
}

// hold makes saves wait in f where they come by.
func hold(t *testing.T, f func(rank, step int, what string)) {
	t.Helper()
	before := reached
	reached = f
	t.Cleanup(func() { reached = before })
}

// While one rank's disk takes its time, all ranks make steps, and what is written in
// the end is of the step of the save.
func TestStepsGoOnWhileACheckpointIsWritten(t *testing.T) {
	for _, strategy := range strategies {
		sets := on(strategy, 3, "train.max_steps=8", "checkpoint.every=4")
		calm, dir := t.TempDir(), t.TempDir()
		mustTrain(t, 3, append(sets, "output="+calm, "checkpoint.async=false")...)
		stepped := make(chan struct{})
		hold(t, func(rank, step int, what string) {
			if rank == 1 && step == 4 && what == "writing" {
				<-stepped
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		said, err := trainTelling(t, ctx, 3, func(line string) {
			if strings.Contains(line, `"step":7,`) {
				close(stepped)
			}
		}, append(sets, "output="+dir)...)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []int{4, 8} {
			sameWeights(t, fmt.Sprint(strategy, " step ", step), weights(t, calm, step), weights(t, dir, step))
			if !strings.Contains(said, fmt.Sprintf("checkpoint of step %d: ", step)) {
				t.Errorf("of step %d nothing was said: %s", step, said)
			}
		}
		if !bytes.Contains([]byte(said), []byte(" by 3 ranks, written in ")) || len(readSteps(t, dir)) != 8 {
			t.Errorf("said %s", said)
		}
	}
}

// A step that is to be saved while the checkpoint before it is still being written
// waits for that: one is on its way at a time, and both become complete.
func TestOneCheckpointIsOnItsWayAtATime(t *testing.T) {
	dir := t.TempDir()
	atFour := make(chan struct{})
	var others atMost
	hold(t, func(rank, step int, what string) {
		if rank != 0 {
			return
		}
		switch what {
		case "writing":
			others.enter(t, step)
			if step == 2 {
				<-atFour
			}
		case "published":
			others.leave()
		}
	})
	_, err := trainTelling(t, t.Context(), 2, func(line string) {
		if strings.Contains(line, `"step":3,`) { // step 4 begins, and wants to be saved
			close(atFour)
		}
	}, on("zero2", 2, "output="+dir, "checkpoint.every=2")...)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{2, 4, 6} {
		weights(t, dir, step)
	}
}

// A rank that cannot write costs all ranks that checkpoint, and no more.
func TestARankThatCannotWriteCostsTheCheckpointAlone(t *testing.T) {
	for _, async := range []bool{true, false} {
		dir := t.TempDir()
		hold(t, func(rank, step int, what string) {
			if rank != 1 || step != 4 || what != "writing" {
				return
			}
			drafts, err := filepath.Glob(filepath.Join(dir, "checkpoints", "*.tmp-*"))
			if err != nil || len(drafts) != 1 {
				t.Errorf("drafts %v (%v)", drafts, err)
				return
			}
			if err := os.WriteFile(filepath.Join(drafts[0], fileName(optimizerKind, 1, 3)), nil, 0o666); err != nil {
				t.Error(err)
			}
		})
		said := mustTrain(t, 3, on("zero1", 3, "output="+dir, fmt.Sprint("checkpoint.async=", async))...)
		want := "the checkpoint of step 4 could not be written, training goes on: rank 1 on "
		if !strings.Contains(said, want) || !strings.Contains(said, "optimizer-00002-of-00003.safetensors: file exists") {
			t.Errorf("said %s, want %s", said, want)
		}
		left, err := os.ReadDir(filepath.Join(dir, "checkpoints"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range left {
			names = append(names, e.Name())
		}
		if want := []string{".writer", "step-00000002", "step-00000006"}; !slices.Equal(names, want) {
			t.Errorf("there are %v, want %v", names, want)
		}
	}
	dir := t.TempDir()
	hold(t, func(rank, step int, what string) {
		if rank == 1 && step == 6 && what == "writing" {
			drafts, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*.tmp-*"))
			for _, d := range drafts {
				if err := os.WriteFile(filepath.Join(d, fileName(weightsKind, 1, 2)), nil, 0o666); err != nil {
					t.Error(err)
				}
			}
		}
	})
	_, errs := trainChanged(t, 2, func(*job) {}, nil, on("ddp", 2, "output="+dir)...)
	wants(t, errs, "the checkpoint of step 6 could not be written, and the newest is of step 4 (--resume goes on from it): rank 1 on ")
}

// What rank 0 cannot publish costs the checkpoint alone, too, and leaves no draft.
func TestACheckpointThatCannotBePublishedIsDropped(t *testing.T) {
	dir := t.TempDir()
	hold(t, func(rank, step int, what string) {
		if rank != 2 || step != 2 || what != "written" {
			return
		}
		drafts, err := filepath.Glob(filepath.Join(dir, "checkpoints", "*.tmp-*"))
		if err != nil || len(drafts) != 1 {
			t.Errorf("drafts %v (%v)", drafts, err)
			return
		}
		if err := os.WriteFile(filepath.Join(drafts[0], "stray"), nil, 0o666); err != nil {
			t.Error(err)
		}
	})
	said := mustTrain(t, 3, on("zero3", 3, "output="+dir)...)
	if want := "the checkpoint of step 2 could not be written, training goes on: rank 0 on "; !strings.Contains(said, want) || !strings.Contains(said, "no rank has reported: stray") {
		t.Errorf("said %s, want %s", said, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "checkpoints", "step-00000002")); err == nil {
		t.Error("it was published")
	}
	for _, step := range []int{4, 6} {
		weights(t, dir, step)
	}
	if drafts, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*.tmp-*")); len(drafts) > 0 {
		t.Errorf("left: %v", drafts)
	}
}

// A job that ends in the middle of a save leaves no draft and no lock behind.
func TestAJobThatFailsWhileItSavesLeavesTheLastCheckpoint(t *testing.T) {
	dir := t.TempDir()
	stop, failing := errors.New("enough"), make(chan struct{})
	hold(t, func(rank, step int, what string) {
		if rank == 1 && step == 4 && what == "writing" {
			<-failing
		}
	})
	_, errs := trainChanged(t, 2, func(j *job) {
		if j.rank() == 1 {
			j.model = &faulty{Model: j.model, j: j, rank: 1, step: 5, scale: func(s float32) float32 {
				j.group.Abort(stop)
				close(failing)
				return s
			}}
		}
	}, nil, on("zero3", 2, "output="+dir)...)
	wants(t, errs, stop.Error())
	if err := os.RemoveAll(filepath.Join(dir, "checkpoints", "step-00000004")); err != nil {
		t.Fatal(err) // it may have become complete
	}
	mustTrain(t, 2, on("zero3", 2, "output="+dir, "checkpoint.resume=auto")...)
	calm := t.TempDir()
	mustTrain(t, 2, on("zero3", 2, "output="+calm)...)
	sameWeights(t, "gone on", weights(t, calm, 6), weights(t, dir, 6))
	if drafts, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*.tmp-*")); len(drafts) > 0 {
		t.Errorf("left: %v", drafts)
	}
}

// Tensors that a rank has for itself come back to the same rank of as many under the
// same strategy, and stay at their start otherwise, which is said.
func TestWhatARankHasForItself(t *testing.T) {
	dir := t.TempDir()
	give := func(j *job, name string, first float32) {
		x, err := tensor.Alloc(j.device, dtype.F32, 3, 2)
		if err != nil {
			t.Error(err)
		}
		for i := range x.F32() {
			x.F32()[i] = first + float32(10*j.rank()+i)
		}
		j.private = []private{{name, x}}
		if err := j.reserve(); err != nil {
			t.Error(err)
		}
	}
	_, errs := trainChanged(t, 3, func(j *job) { give(j, "left over", 100) }, nil, on("zero2", 3, "output="+dir, "train.max_steps=4")...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{2, 4} { // written beside steps, and at the end
		for _, c := range []struct {
			strategy string
			ranks    int
			name     string
			kept     bool
		}{
			{"zero2", 3, "left over", true}, {"zero2", 3, "other", false}, {"zero2", 3, "", false},
			{"zero1", 3, "left over", false}, {"zero2", 2, "left over", false}, {"zero2", 4, "left over", false},
		} {
			var said string
			said, errs := trainChanged(t, c.ranks, func(j *job) {
				if j.private = nil; c.name != "" {
					give(j, c.name, 0)
				}
				r, err := j.recorded(j.checkpointPath(step))
				if err == nil {
					err = j.restore(t.Context(), r)
				}
				if err != nil {
					t.Errorf("%+v: %v", c, err)
				}
				first := float32(0)
				if c.kept {
					first = 100
				}
				for _, p := range j.private {
					for i, v := range p.F32() {
						if want := first + float32(10*j.rank()+i); v != want {
							t.Errorf("%+v: rank %d: element %d is %v, want %v", c, j.rank(), i, v, want)
						}
					}
				}
				j.private, j.done = nil, j.total
			}, nil, on(c.strategy, c.ranks, "output="+dir, "train.max_steps=4", "eval.every=0", fmt.Sprint("checkpoint.resume=", filepath.Join(dir, "checkpoints", "step-00000004")))...)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if told := strings.Contains(said[strings.LastIndex(said, "going on from"):], "what each rank keeps for itself"); told == c.kept {
				t.Errorf("%+v said %s", c, said)
			}
		}
	}
}

// A checkpoint of before there was an index is read by any number of ranks.
func TestACheckpointOfTheEarlierFormatIsRead(t *testing.T) {
	dir := t.TempDir()
	mustTrain(t, 1, on("ddp", 1, "output="+dir, "train.max_steps=3", "eval.every=0")...)
	now, err := checkpoint.Open(filepath.Join(dir, "checkpoints", "step-00000003"))
	if err != nil {
		t.Fatal(err)
	}
	want := tensorsOf(t, now)
	var meta map[string]any
	if err := now.Meta(&meta); err != nil {
		t.Fatal(err)
	}
	delete(meta, "strategy")
	old := t.TempDir()
	d, err := checkpoint.Begin(filepath.Join(old, "checkpoints"), 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", configFile} {
		b, err := os.ReadFile(filepath.Join(now.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.WriteFile(name, func(w io.Writer) error { _, err := w.Write(b); return err }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Publish(meta); err != nil {
		t.Fatal(err)
	}
	for i, ranks := range []int{1, 2, 3, 4} {
		_, errs := trainChanged(t, ranks, func(j *job) { holds(t, j, want) }, nil,
			on(strategies[i], ranks, "output="+old, "train.max_steps=3", "eval.every=0", "checkpoint.resume=auto")...)
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}
