package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// realTraining in the environment makes this test's binary the gorun command with
// the training that it is built with; testdata/*.txt have one that pretends.
const realTraining = "GORUN_TEST_REAL_TRAINING"

func init() {
	if os.Getenv(realTraining) != "" && filepath.Base(os.Args[0]) == "gorun" {
		main()
	}
}

// TestTrainingScripts runs testdata/train/*.txt: training as it is. Beside what
// TestScripts has:
//
//	flip FILE BYTE        change a bit of a file
//	[!] same A B          compare what two output folders hold of a run, see differences
//	[root]                is true where files cannot be made unreadable
func TestTrainingScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/train",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			e.Setenv(realTraining, "1")
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"flip": flip, "same": same},
	})
}

func flip(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	b[at] ^= 1
	ts.Check(os.WriteFile(path, b, 0o666))
}

func same(ts *testscript.TestScript, neg bool, args []string) {
	err := differences(ts.MkAbs(args[0]), ts.MkAbs(args[1]))
	if neg == (err == nil) {
		ts.Fatalf("same: %v", err)
	}
}

// differences compares two output folders: the figures of every line of
// metrics.jsonl that are no times, and the tensors of the newest checkpoint.
func differences(a, b string) error {
	linesA, err := figures(a)
	if err != nil {
		return err
	}
	linesB, err := figures(b)
	if err != nil {
		return err
	}
	for i := range max(len(linesA), len(linesB)) {
		if i >= len(linesA) || i >= len(linesB) || linesA[i] != linesB[i] {
			return fmt.Errorf("metrics differ from line %d of %d and %d on: %q and %q",
				i+1, len(linesA), len(linesB), linesA[min(i, len(linesA)):min(i+1, len(linesA))], linesB[min(i, len(linesB)):min(i+1, len(linesB))])
		}
	}
	newestA, newestB := newestCheckpoint(a), newestCheckpoint(b)
	if newestA == "" || filepath.Base(newestA) != filepath.Base(newestB) {
		return fmt.Errorf("the newest checkpoints are %q and %q", newestA, newestB)
	}
	tensorsA, errA := tensorsOf(newestA)
	tensorsB, errB := tensorsOf(newestB)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if len(tensorsA) == 0 || len(tensorsA) != len(tensorsB) {
		return fmt.Errorf("%s: %d and %d tensors", filepath.Base(newestA), len(tensorsA), len(tensorsB))
	}
	for name := range tensorsA {
		if !bytes.Equal(tensorsA[name], tensorsB[name]) {
			return fmt.Errorf("%s of %s differs", name, filepath.Base(newestA))
		}
	}
	return nil
}

// tensorsOf reads a checkpoint, of whatever number of ranks.
func tensorsOf(dir string) (map[string][]byte, error) {
	c, err := checkpoint.Inspect(dir)
	if err != nil {
		return nil, err
	}
	r, err := c.Tensors()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	all := map[string][]byte{}
	for _, name := range r.Names() {
		x, _ := r.Find(name)
		n, _ := x.Numel() // the index was checked
		if err := r.Read(name, 0, n, func(_ int, b []byte) error { all[name] = append(all[name], b...); return nil }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// figures is metrics.jsonl without times and without the line of the end, which
// speaks of one run.
func figures(output string) (lines []string, err error) {
	f, err := os.Open(filepath.Join(output, "metrics.jsonl"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var all map[string]any
		if err := json.Unmarshal(s.Bytes(), &all); err != nil {
			return nil, fmt.Errorf("%q: %w", s.Text(), err)
		}
		if all["event"] != nil {
			continue
		}
		line := ""
		for _, key := range []string{"step", "loss", "lr", "grad_norm", "skipped", "val_loss"} {
			if v := all[key]; v != nil {
				line += fmt.Sprintf("%s %v ", key, v)
			}
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("%s has no lines", f.Name())
	}
	return lines, nil
}

func newestCheckpoint(output string) string {
	all, _ := filepath.Glob(filepath.Join(output, "checkpoints", "step-????????")) // no error: the pattern is well-formed
	if len(all) == 0 {
		return ""
	}
	return slices.Max(all)
}

// gorunCommand is the command with the real training, in a folder of its own.
func gorunCommand(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Args[0], cmd.Dir = "gorun", dir
	cmd.Env = append(os.Environ(), realTraining+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// endless is a job that goes on until something happens to it. What it does in a
// step does not depend on how long it is.
const endless = `
output: out
model: {layers: 1, hidden: 16, heads: 2, vocab: 32}
data: {format: synthetic, seq_len: 16}
train: {max_steps: 1000000, micro_batch: 2, lr: 1e-2, schedule: constant, warmup_steps: 5, threads: 1}
eval: {every: 7, steps: 1}
checkpoint: {every: 10}
`

// However a job ends, --resume goes on with the very numbers of a job that
// nothing happened to.
func TestResumeAfterAnyEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		sig  unix.Signal
		rank string // "" is the agent
		exit int
	}{
		{"the user's SIGINT", unix.SIGINT, "", 130},
		{"the agent's SIGTERM", unix.SIGTERM, "", 143},
		{"the agent killed", unix.SIGKILL, "", -1},
		{"rank 0 killed", unix.SIGKILL, "0", 137},
		{"rank 1 killed", unix.SIGKILL, "1", 137},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "train.yaml"), []byte(endless), 0o666); err != nil {
				t.Fatal(err)
			}
			said, exit := interrupt(t, dir, regexp.MustCompile(`^step +28/`), c.rank, c.sig)
			if exit != c.exit {
				t.Errorf("exit status %d, want %d; it said\n%s", exit, c.exit, said)
			}
			if saves := c.sig != unix.SIGKILL; saves != strings.Contains(said, "stopped early") {
				t.Errorf("said\n%s", said)
			}
			newest := newestCheckpoint(filepath.Join(dir, "out"))
			step, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(newest), "step-"))
			if err != nil {
				t.Fatalf("the newest checkpoint is %q", newest)
			}
			if c.sig == unix.SIGKILL && step%10 != 0 {
				t.Errorf("a killed job saved step %d", step)
			}
			last := fmt.Sprint("train.max_steps=", step+25)
			for _, args := range [][]string{{"--set", last, "--resume"}, {"--set", last, "--set", "output=calm"}} {
				if out, err := gorunCommand(t, dir, append(args, "--nproc", "2", "train.yaml")...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", args, err, out)
				}
			}
			if err := differences(filepath.Join(dir, "calm"), filepath.Join(dir, "out")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A job whose workers are started again goes on from its own checkpoint, without
// --resume too, and never from one of an earlier job.
func TestRestartGoesOn(t *testing.T) {
	dir := t.TempDir()
	yaml := strings.Replace(endless, "max_steps: 1000000", "max_steps: 800", 1)
	if err := os.WriteFile(filepath.Join(dir, "train.yaml"), []byte(yaml), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--set", "output=calm"}, {"--set", "train.max_steps=20"}} {
		if out, err := gorunCommand(t, dir, append(args, "--nproc", "2", "train.yaml")...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	said, exit := interrupt(t, dir, regexp.MustCompile(`^step +28/`), "1", unix.SIGKILL, "--max-restarts", "1")
	if exit != 0 || !regexp.MustCompile(`(?m)^going on from out/checkpoints/step-[0-9]+, step [0-9]+ of 800$`).MatchString(said) {
		t.Errorf("exit status %d; it said\n%s", exit, said)
	}
	if err := differences(filepath.Join(dir, "calm"), filepath.Join(dir, "out")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "out", "old-2")); err == nil {
		t.Error("the restart set its own run aside")
	}
}

// interrupt runs train.yaml of dir with two ranks, and sends the signal to a rank
// or the agent once a line of the console fits. It returns when every process of
// the job has let go of the console.
func interrupt(t *testing.T, dir string, at *regexp.Regexp, rank string, sig unix.Signal, flags ...string) (said string, exit int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := gorunCommand(t, dir, append(flags, "--nproc", "2", "train.yaml")...)
	cmd.Stdout, cmd.Stderr = w, w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	lines, sent := bufio.NewReader(r), false
	for {
		line, err := lines.ReadString('\n')
		all.WriteString(line)
		if !sent && at.MatchString(line) {
			sent = true
			pid := cmd.Process.Pid
			if rank != "" {
				pid = worker(t, pid, rank)
			}
			if err := unix.Kill(pid, sig); err != nil {
				t.Error(err)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	err = cmd.Wait()
	if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return all.String(), cmd.ProcessState.ExitCode()
}

// worker is the process of a rank.
func worker(t *testing.T, agent int, rank string) int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", agent))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		children, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for pid := range strings.FieldsSeq(string(children)) {
			env, err := os.ReadFile(filepath.Join("/proc", pid, "environ"))
			if err == nil && bytes.Contains(env, []byte("\x00RANK="+rank+"\x00")) {
				n, err := strconv.Atoi(pid)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
	}
	t.Fatalf("the agent %d has no rank %s", agent, rank)
	return 0
}

// A checkpoint that finds no room costs a running job nothing but the checkpoint:
// those before it stay, and one at the end that cannot be written is an error.
func TestFullDisk(t *testing.T) {
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "--mount", "true").CombinedOutput(); err != nil {
		testenv.Skip(t, "netns", fmt.Sprintf("unshare: %v %s", err, out))
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	yaml := strings.Replace(endless, "max_steps: 1000000", "max_steps: 60", 1)
	yaml = strings.Replace(yaml, "every: 10", "every: 10, keep: 0", 1)
	if err := errors.Join(os.Symlink(self, filepath.Join(dir, "gorun")), os.WriteFile(filepath.Join(dir, "train.yaml"), []byte(yaml), 0o666)); err != nil {
		t.Fatal(err)
	}
	// Three checkpoints are more than the disk holds, which is seen from within only.
	const script = `mkdir out && mount -t tmpfs -o size=250k none out || exit 99
./gorun --nproc 2 train.yaml
echo "exit status $?"
ls out/checkpoints
mount -o remount,ro out
./gorun --nproc 2 train.yaml`
	cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), realTraining+"=1", "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	for _, want := range []string{
		`(?m)^the checkpoint of step 30 could not be written, training goes on: .*no space left on device$`,
		`(?m)^step 60/60 `,
		`(?m)^gorun: .*the checkpoint of step 60 could not be written, and the newest is of step 20 .*no space left on device`,
		`(?m)^exit status 1\nstep-00000010\nstep-00000020\ngorun: `,
		`gorun: output folder out cannot be written: .*read-only file system\n$`,
	} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("no %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%v\n%s", err, out)
	}
}

// What --dry-run and metrics.jsonl say holds: a rank takes the memory that was
// planned and little more, and a ring sends 2(n-1)/n of the gradients.
func TestFiguresHold(t *testing.T) {
	const n = 3
	dir := t.TempDir()
	yaml := strings.NewReplacer("layers: 1, hidden: 16, heads: 2", "layers: 4, hidden: 256, heads: 2", "max_steps: 1000000", "max_steps: 5",
		"seq_len: 16", "seq_len: 256", "eval: {every: 7", "eval: {every: 0").Replace(endless)
	if err := os.WriteFile(filepath.Join(dir, "train.yaml"), []byte(yaml), 0o666); err != nil {
		t.Fatal(err)
	}
	args := []string{"--nproc", fmt.Sprint(n), "--set", "comm.transport=tcp", "train.yaml"}
	plan, err := gorunCommand(t, dir, append(args, "--dry-run")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, plan)
	}
	figure := func(pattern string) float64 {
		m := regexp.MustCompile(pattern).FindSubmatch(plan)
		if m == nil {
			t.Fatalf("no %s in\n%s", pattern, plan)
		}
		x, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	gradients, total := 4*figure(`llama, ([0-9]+) parameters`), 1e6*figure(`total +([0-9.]+) MB`)
	if out, err := gorunCommand(t, dir, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	metrics, err := os.ReadFile(filepath.Join(dir, "out", "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(metrics), "\n")
	var last struct {
		Comm   float64 `json:"comm_bytes"`
		Memory float64 `json:"mem_bytes"`
	}
	if err := json.Unmarshal([]byte(lines[4]), &last); err != nil {
		t.Fatal(err)
	}
	// Beside the gradients go the loss and little else.
	if want := gradients * 2 * (n - 1) / n; last.Comm < want || last.Comm > want+1000 {
		t.Errorf("%g bytes were sent, want %g", last.Comm, want)
	}
	// The program itself takes some 25 MB. The race detector keeps several bytes for
	// each of memory.
	limit := total + 60e6
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		limit *= 6
	}
	if last.Memory < total || last.Memory > limit {
		t.Errorf("%g bytes of memory were used, %g were planned", last.Memory, total)
	}
}
