package train

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/status"
)

func TestARerunAndAResumedRunAreBitIdentical(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	sets := []string{"train.micro_batch=2", "train.grad_accum=2", "parallel.first_bucket_mb=0.01", "parallel.bucket_cap_mb=0.02"}
	mustTrain(t, 3, append(sets, "output="+a)...)
	mustTrain(t, 3, append(sets, "output="+b)...)
	sameWeights(t, "rerun", weights(t, a, 6), weights(t, b, 6))

	// The same job, stopped by a signal while step 2 is under way, and gone on with.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopBehind1 := func(line string) {
		if strings.Contains(line, `"step":1,`) {
			stop()
		}
	}
	said, err := trainTelling(t, ctx, 3, stopBehind1, append(sets, "output="+c, "checkpoint.every=0")...)
	if err != nil || !strings.Contains(said, "stopped early: context canceled") || strings.Count(said, "asked to stop") != 1 {
		t.Fatalf("stopping: %v, said %s", err, said)
	}
	if got := readSteps(t, c); len(got) != 2 {
		t.Fatalf("%d steps were made, the signal came behind step 1", len(got))
	}
	said = mustTrain(t, 3, append(sets, "output="+c, "checkpoint.resume=auto")...)
	if !strings.Contains(said, "going on from") {
		t.Errorf("said %s", said)
	}
	sameWeights(t, "resumed", weights(t, a, 6), weights(t, c, 6))
	full, resumed := readSteps(t, a), readSteps(t, c)
	for i := range full {
		if full[i].Loss != resumed[i].Loss || full[i].LR != resumed[i].LR || full[i].GradNorm != resumed[i].GradNorm {
			t.Errorf("step %d: %+v, resumed %+v", i+1, full[i], resumed[i])
		}
	}
	said = mustTrain(t, 3, append(sets, "output="+c, "checkpoint.resume=auto")...)
	if !strings.Contains(said, "nothing to do") {
		t.Errorf("a finished job said %s", said)
	}
	if again := readSteps(t, c); len(again) != 6 {
		t.Errorf("a finished job left %d lines of metrics", len(again))
	}
}

// Who ends because of another rank has not been asked to by the user, and does not know
// whether there will be a checkpoint.
func TestAPeersFailureIsNotTheUsersWish(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	why := "rank 2 on host b: killed by SIGKILL"
	stopBehind1 := func(line string) {
		if strings.Contains(line, `"step":1,`) {
			stop(&status.StopError{Reason: why})
		}
	}
	said, err := trainTelling(t, ctx, 2, stopBehind1, "output="+t.TempDir(), "train.micro_batch=2")
	if err != nil || strings.Count(said, why+"; stopping") != 1 || !strings.Contains(said, "stopped early: "+why) || strings.Contains(said, "asked to stop") {
		t.Errorf("%v, said %s", err, said)
	}
}

func TestResumingOnAnotherNumberOfRanksGoesOnWithTheSameSamples(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	mustTrain(t, 1, "output="+a)
	mustTrain(t, 2, "output="+b, "train.micro_batch=6", "checkpoint.every=4", "train.max_steps=6")
	os.RemoveAll(filepath.Join(b, "checkpoints", "step-00000006"))
	said := mustTrain(t, 3, "output="+b, "train.micro_batch=4", "checkpoint.resume=auto")
	if !strings.Contains(said, "written by 2 ranks") {
		t.Errorf("said %s", said)
	}
	want, got := readSteps(t, a), readSteps(t, b)
	for i := range want {
		if off := math.Abs(float64(got[i].Loss - want[i].Loss)); !(off <= 1e-4) {
			t.Errorf("step %d: loss %v, one rank has %v", i+1, got[i].Loss, want[i].Loss)
		}
	}
	_, err := trainRanks(t, t.Context(), 2, "output="+b, "train.micro_batch=4", "checkpoint.resume=auto")
	if err == nil || !strings.Contains(err.Error(), "global_batch") || !strings.Contains(err.Error(), "train.micro_batch=6") {
		t.Errorf("another global batch: %v", err)
	}
	_, err = trainRanks(t, t.Context(), 1, "output="+b, "train.micro_batch=4", "checkpoint.resume=auto")
	if err == nil || !strings.Contains(err.Error(), "train.grad_accum=3)") {
		t.Errorf("a third of the global batch: %v", err)
	}
	_, err = trainRanks(t, t.Context(), 1, "output="+b, "seed=8", "checkpoint.resume=auto")
	if err == nil || !strings.Contains(err.Error(), "seed") {
		t.Errorf("another seed: %v", err)
	}
}

func TestADamagedCheckpointIsNamedAndTheOneBeforeItOffered(t *testing.T) {
	dir := t.TempDir()
	mustTrain(t, 2, "output="+dir, "train.micro_batch=6")
	file := filepath.Join(dir, "checkpoints", "step-00000006", fileName(weightsKind, 1, 2))
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(file, b, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = trainRanks(t, t.Context(), 2, "output="+dir, "train.micro_batch=6", "checkpoint.resume=auto")
	if err == nil || !strings.Contains(err.Error(), "step-00000006: model-00002-of-00002.safetensors is damaged") || !strings.Contains(err.Error(), "checkpoint.resume="+dir+"/checkpoints/step-00000004") {
		t.Fatalf("got %v", err)
	}
	mustTrain(t, 2, "output="+dir, "train.micro_batch=6", "checkpoint.resume="+filepath.Join(dir, "checkpoints", "step-00000004"))
	if got := len(readSteps(t, dir)); got != 6 {
		t.Errorf("%d lines of metrics", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "old-1", "checkpoints", "step-00000006")); err != nil {
		t.Errorf("the damaged checkpoint was not set aside: %v", err)
	}
}

// Ranks of another host, which do not see the folder that rank 0 writes to or goes on
// from, say what is wrong.
func TestAFolderThatIsNotSharedIsNamed(t *testing.T) {
	dir := t.TempDir()
	said, errs := trainChanged(t, 3, func(j *job) {
		if j.rank() != 2 {
			return
		}
		if err := j.verify(filepath.Join(dir, "elsewhere"), &part{}); err == nil || !strings.HasPrefix(err.Error(), "this host does not see the checkpoint "+dir) {
			t.Errorf("going on: %v", err)
		}
		if _, err := j.writeShare(t.Context(), &part{}, &saving{}, filepath.Join(dir, "step-00000002.tmp-AAAA")); err == nil ||
			!strings.Contains(err.Error(), "this host does not see the folder "+dir) || !strings.Contains(err.Error(), "that all hosts share") {
			t.Errorf("saving: %v", err)
		}
	}, nil, on("zero1", 3, "output="+dir, "eval.every=0")...)
	if err := errors.Join(errs...); err != nil {
		t.Errorf("%v, said %s", err, said)
	}
}

// Workers that are started again take up the checkpoint of their own job, and set
// another's aside.
func TestARestartKnowsItsOwnCheckpoints(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TORCHELASTIC_RUN_ID", "one")
	mustTrain(t, 1, "output="+dir, "train.max_steps=4", "train.schedule=constant")
	t.Setenv("TORCHELASTIC_RESTART_COUNT", "1")
	if said := mustTrain(t, 1, "output="+dir, "train.schedule=constant"); !strings.Contains(said, "step 4 of 6") {
		t.Errorf("the same job said %s", said)
	}
	t.Setenv("TORCHELASTIC_RUN_ID", "two")
	if said := mustTrain(t, 1, "output="+dir); !strings.Contains(said, "old-1") {
		t.Errorf("another job said %s", said)
	}
}

func TestANewRunSetsTheOldOneAside(t *testing.T) {
	dir := t.TempDir()
	mustTrain(t, 1, "output="+dir)
	before := weights(t, dir, 6)
	said := mustTrain(t, 1, "output="+dir, "seed=8")
	if !strings.Contains(said, "old-1") {
		t.Errorf("said %s", said)
	}
	sameWeights(t, "old run", before, weights(t, filepath.Join(dir, "old-1"), 6))
}
