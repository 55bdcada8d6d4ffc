package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
)

// TestMain plays the job that is killed while it saves, where a test starts it for
// that.
func TestMain(m *testing.M) {
	out := os.Getenv("TRAIN_TEST_CRASH")
	if out == "" {
		os.Exit(m.Run())
	}
	kill := os.Getenv("TRAIN_TEST_STAGE")
	reached = func(rank, step int, what string) {
		if fmt.Sprintf("rank %d, step %d, %s", rank, step, what) == kill {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal comes
		}
	}
	if err := crashing(out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// crashSets are the settings of the job that is killed.
func crashSets(out string) []string {
	return on("zero2", 3, "output="+out, "checkpoint.every=2", "checkpoint.keep=5", "comm.timeout=1m")
}

// crashing runs the job of three ranks in this process.
func crashing(out string) error {
	cfg, err := config.Parse("test.yaml", []byte(base), crashSets(out))
	if err != nil {
		return err
	}
	groups, err := comm.Local(3)
	if err != nil {
		return err
	}
	errs := make([]error, 3)
	var all sync.WaitGroup
	for r, g := range groups {
		all.Go(func() {
			j := &job{cfg: cfg, out: status.NewWriter(&console{})}
			defer j.close()
			if errs[r] = j.open(context.Background(), place{ranks: 3}, joining(g)); errs[r] == nil {
				errs[r] = j.train(context.Background())
			}
			if errs[r] != nil {
				g.Abort(errs[r])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Wherever in a save a job is killed, the checkpoint that was complete is there, and
// nothing else is taken for one; from it the job goes on to the same end.
func TestAJobIsKilledAtEachStageOfASave(t *testing.T) {
	calm := t.TempDir()
	mustTrain(t, 3, crashSets(calm)...)
	want := weights(t, calm, 6)
	for stage, newest := range map[string]int64{
		"rank 0, step 4, copied":    2,
		"rank 2, step 4, writing":   2,
		"rank 0, step 4, written":   2,
		"rank 0, step 4, published": 4,
		"rank 1, step 6, writing":   4, // the last one, which is waited for
		"rank 0, step 6, published": 6,
	} {
		t.Run(stage, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "TRAIN_TEST_CRASH="+dir, "TRAIN_TEST_STAGE="+stage)
			said, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%v\n%s", err, said)
			}
			found, broken, err := checkpoint.Newest(filepath.Join(dir, "checkpoints"), nil)
			if err != nil || found.Step != newest || len(broken) > 0 {
				t.Fatalf("the newest is %+v, want step %d; broken are %v (%v)", found, newest, broken, err)
			}
			told := mustTrain(t, 3, append(crashSets(dir), "checkpoint.resume=auto")...)
			if !strings.Contains(told, fmt.Sprintf("step-%08d", newest)) {
				t.Errorf("said %s", told)
			}
			sameWeights(t, "gone on", want, weights(t, dir, 6))
			if newest < 6 { // what the killed job has left is cleared away at the next save
				if drafts, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*.tmp-*")); len(drafts) > 0 {
					t.Errorf("left: %v", drafts)
				}
			}
		})
	}
}
