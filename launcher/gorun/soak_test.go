package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/train"
)

const (
	faultVariable = "GORUN_TEST_FAULT" // "kind rank step", or "none"
	jobVariable   = "GORUN_TEST_JOB"   // in the environment of every process of a job

	soakSteps    = 120
	afterDeath   = 5 * time.Second  // everything of the attempt is gone
	afterSilence = 15 * time.Second // the same where the fault says nothing
)

// soakFault is what a worker does to itself, or to its agent, in the first attempt.
type soakFault struct {
	kind   string
	do     func()
	within time.Duration
	says   string // of worker faults; %d is the rank
}

var soakFaults = []soakFault{
	{"kill", func() { unix.Kill(os.Getpid(), unix.SIGKILL) }, afterDeath, `rank %d failed first: killed by SIGKILL`},
	{"stop", func() { unix.Kill(os.Getpid(), unix.SIGSTOP) }, afterSilence, `rank %d stopped answering: stopped \(T\)`},
	{"panic", func() { panic("deliberate") }, afterDeath, `rank %d failed first: exit status 2 .*: panic: deliberate`},
	{"exit3", func() { os.Exit(3) }, afterDeath, `rank %d failed first: exit status 3`},
	{"exit0", func() { os.Exit(0) }, afterDeath, `rank %d ended while the others still needed it: exit status 0`},
	{"kill-agent", func() { unix.Kill(os.Getppid(), unix.SIGKILL) }, afterSilence, ""},
	{"stop-agent", func() { unix.Kill(os.Getppid(), unix.SIGSTOP) }, afterSilence, ""},
}

// testTraining is what this test's gorun trains: the real thing, with a fault, where
// the environment asks for one.
func testTraining(ctx context.Context, cfg *config.Config) error {
	fault := strings.Fields(os.Getenv(faultVariable))
	if len(fault) == 0 {
		return fakeTraining(ctx, cfg)
	}
	rank, attempt := os.Getenv("RANK"), os.Getenv("GORUN_ATTEMPT")
	if err := note(cfg, "began."+attempt+"."+rank); err != nil {
		return err
	}
	if len(fault) == 3 && fault[1] == rank && attempt == "0" {
		step, err := strconv.Atoi(fault[2])
		if err != nil {
			return err
		}
		i := slices.IndexFunc(soakFaults, func(f soakFault) bool { return f.kind == fault[0] })
		go routineFault(cfg, step, soakFaults[i].do)
	}
	return train.Run(ctx, cfg)
}

// note leaves a file that holds the time and what runs of earlier attempts.
func note(cfg *config.Config, name string) error {
	var old []string
	for _, p := range marked(os.Getenv(jobVariable)) {
		if p.env["RANK"] != "" && p.env["GORUN_ATTEMPT"] != os.Getenv("GORUN_ATTEMPT") && p.running() {
			old = append(old, p.String())
		}
	}
	text := fmt.Sprintf("%d\n%s", time.Now().UnixNano(), strings.Join(old, "\n"))
	return os.WriteFile(filepath.Join(cfg.Output, name), []byte(text), 0o644)
}

// routineFault strikes while step is under way. It ends with the process.
func routineFault(cfg *config.Config, step int, do func()) {
	tick := time.NewTicker(time.Millisecond)
	for range tick.C {
		b, _ := os.ReadFile(filepath.Join(cfg.Output, "metrics.jsonl"))
		if bytes.Count(b, []byte{'\n'}) >= step {
			break
		}
	}
	if err := note(cfg, "struck"); err != nil {
		panic(err)
	}
	do()
}

// TestSoak lets random faults hit jobs of two nodes with two workers each, one a
// job. A worker's fault is survived by a restart; after an agent's the job is started
// again with --resume. Each time the report names the right rank or node, everything
// is gone in time, nothing is left, all checkpoints are whole, and the weights at the
// end are those of a job that nothing happened to, bit by bit.
//
// GORUN_SOAK is the number of faults; GORUN_SOAK_SEED repeats a run.
func TestSoak(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("GORUN_SOAK"))
	if err != nil || n < 1 {
		t.Skip("takes minutes: GORUN_SOAK=20 runs it with 20 faults; .ci/soak does")
	}
	seed, err := strconv.ParseUint(os.Getenv("GORUN_SOAK_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("GORUN_SOAK_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	calm := soak(t, t.TempDir(), "none", nil)
	calm.ends(t, patience, 0, 0)
	want := weights(t, calm.output)
	for i := range n {
		f, rank, step := soakFaults[random.IntN(len(soakFaults))], random.IntN(4), 1+random.IntN(soakSteps-40)
		spec := fmt.Sprintf("%s %d %d", f.kind, rank, step)
		ok := t.Run(fmt.Sprintf("%d %s", i, spec), func(t *testing.T) {
			j := soak(t, t.TempDir(), spec, []string{"--max-restarts", "1"})
			if f.says != "" {
				j.ends(t, patience, 0, 0)
				j.reportedOnce(t, fmt.Sprintf(f.says, rank), 0, 1)
				j.restarted(t, f.within)
			} else {
				j.losesAgent(t, rank/2, f)
				whole(t, j.output)
				j = soak(t, j.output, "none", []string{"--resume"})
				j.ends(t, patience, 0, 0)
			}
			whole(t, j.output)
			for name, b := range weights(t, j.output) {
				if !bytes.Equal(b, want[name]) {
					t.Errorf("%s is not that of the undisturbed job", name)
				}
			}
			if t.Failed() {
				t.Logf("node 0:\n%s\nnode 1:\n%s", &j.agents[0].out, &j.agents[1].out)
			}
		})
		if !ok {
			t.Fatalf("fault %d of %d; GORUN_SOAK_SEED=%d repeats it", i, n, seed)
		}
	}
}
