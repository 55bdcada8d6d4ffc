package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/train"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
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

// soakJob is two agents on loopback.
type soakJob struct {
	id, output string
	agents     [2]*soakAgent
}

type soakAgent struct {
	cmd  *exec.Cmd
	out  bytes.Buffer // read after over
	over chan struct{}
}

func soak(t *testing.T, output, fault string, flags []string) *soakJob {
	t.Helper()
	tiny, err := filepath.Abs("../../configs/tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	j := &soakJob{id: fmt.Sprint(time.Now().UnixNano()), output: output}
	t.Cleanup(func() { // what a failed test leaves
		for _, p := range marked(j.id) {
			if p.running() && !t.Failed() {
				t.Errorf("left behind: %s", p)
			}
			unix.Kill(p.pid, unix.SIGKILL)
		}
		for _, a := range j.agents {
			<-a.over
		}
	})
	for i := range j.agents {
		args := append([]string{"gorun", "--nnodes", "2", "--node-rank", strconv.Itoa(i), "--rdzv", l.Addr().String(), "--nproc", "2"}, flags...)
		for _, s := range []string{"output=" + output, "train.threads=1", "train.max_steps=" + strconv.Itoa(soakSteps),
			"checkpoint.every=10", "checkpoint.resume=auto", "comm.timeout=4s", "eval.every=50"} {
			args = append(args, "--set", s)
		}
		a := &soakAgent{over: make(chan struct{})}
		a.cmd = &exec.Cmd{Path: self, Args: append(args, tiny), Stdout: &a.out, Stderr: &a.out, WaitDelay: time.Second}
		a.cmd.Env = append(os.Environ(), "GORUN_TOKEN=soak", faultVariable+"="+fault, jobVariable+"="+j.id, "GORACE=atexit_sleep_ms=0")
		a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := a.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		j.agents[i] = a
		go func() { // ends with the agent
			a.cmd.Wait()
			close(a.over)
		}()
	}
	return j
}

// ends waits for both agents and everything they have started.
func (j *soakJob) ends(t *testing.T, within time.Duration, codes ...int) {
	t.Helper()
	late := time.After(within)
	for i, a := range j.agents {
		select {
		case <-a.over:
			if code := a.cmd.ProcessState.ExitCode(); code != codes[i] {
				t.Errorf("node %d: exit status %d, want %d:\n%s", i, code, codes[i], &a.out)
			}
		case <-late:
			t.Fatalf("node %d still runs after %s: %v", i, within, marked(j.id))
		}
	}
	j.gone(t, time.Now().Add(time.Second)) // the guards end a moment later
}

// gone waits until no process of the job is left.
func (j *soakJob) gone(t *testing.T, deadline time.Time) {
	t.Helper()
	for _, p := range marked(j.id) {
		if !p.awaitEnd(deadline) {
			t.Errorf("still there: %s", p)
		}
	}
}

// reportedOnce expects the report on some nodes, and no other rank accused.
func (j *soakJob) reportedOnce(t *testing.T, pattern string, nodes ...int) {
	t.Helper()
	accusation := regexp.MustCompile(`gorun: rank \d+ (failed first|stopped answering|ended while|did not answer)`)
	for _, i := range nodes {
		out := j.agents[i].out.Bytes()
		if !regexp.MustCompile(`gorun: `+pattern).Match(out) || len(accusation.FindAll(out, -1)) > 1 {
			t.Errorf("node %d: want one report, like %q", i, pattern)
		}
	}
}

// restarted expects the second attempt in time, and the first one gone by then.
func (j *soakJob) restarted(t *testing.T, within time.Duration) {
	t.Helper()
	struck, _ := j.noted(t, "struck")
	for rank := range 4 {
		at, old := j.noted(t, fmt.Sprintf("began.1.%d", rank))
		if at.Sub(struck) > within {
			t.Errorf("rank %d began again after %s, want at most %s", rank, at.Sub(struck), within)
		}
		if old != "" {
			t.Errorf("of the first attempt was left when rank %d began again: %s", rank, old)
		}
	}
}

func (j *soakJob) noted(t *testing.T, name string) (time.Time, string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(j.output, name))
	if err != nil {
		t.Fatalf("%v\nnode 0:\n%s\nnode 1:\n%s", err, &j.agents[0].out, &j.agents[1].out)
	}
	first, rest, _ := strings.Cut(string(b), "\n")
	nanos, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, nanos), rest
}

// losesAgent expects the other node to notice and name it, and everything that can
// end to do so in time. An agent that is stopped ends when it goes on.
func (j *soakJob) losesAgent(t *testing.T, victim int, f soakFault) {
	t.Helper()
	other := j.agents[1-victim]
	select {
	case <-other.over:
	case <-time.After(patience):
		t.Fatalf("node %d still runs: %v", 1-victim, marked(j.id))
	}
	struck, _ := j.noted(t, "struck")
	deadline := struck.Add(f.within)
	for _, p := range marked(j.id) {
		if p.env["RANK"] != "" && !p.awaitEnd(deadline) {
			t.Errorf("still there: %s", p)
		}
	}
	if late := time.Since(struck); late > f.within {
		t.Errorf("node %d ended after %s, want at most %s", 1-victim, late, f.within)
	}
	if f.kind == "stop-agent" {
		unix.Kill(j.agents[victim].cmd.Process.Pid, unix.SIGCONT)
		deadline = time.Now().Add(f.within)
	}
	j.gone(t, deadline)
	<-j.agents[victim].over
	if code := other.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("node %d: exit status %d, want 1", 1-victim, code)
	}
	j.reportedOnce(t, fmt.Sprintf(`node %d \(host .*\) is lost`, victim), 1-victim)
}

// whole opens every checkpoint, which verifies it.
func whole(t *testing.T, output string) {
	t.Helper()
	refs, err := checkpoint.List(filepath.Join(output, "checkpoints"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, r := range refs {
		if _, err := checkpoint.Open(r.Dir); err != nil {
			t.Errorf("checkpoint: %v", err)
		}
	}
}

// weights reads what the job ended with.
func weights(t *testing.T, output string) map[string][]byte {
	t.Helper()
	dir := filepath.Join(output, "checkpoints", fmt.Sprintf("step-%08d", soakSteps))
	files := map[string][]byte{}
	for _, name := range []string{"model.safetensors", "optimizer.safetensors"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = b
	}
	return files
}

// soakProcess is a process that carries a job's mark.
type soakProcess struct {
	pid  int
	env  map[string]string
	args string
}

func (p soakProcess) String() string {
	return fmt.Sprintf("pid %d, rank %q, attempt %q: %s", p.pid, p.env["RANK"], p.env["GORUN_ATTEMPT"], p.args)
}

// running says that it is no zombie.
func (p soakProcess) running() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}

func (p soakProcess) awaitEnd(deadline time.Time) bool {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	for {
		left := max(0, time.Until(deadline))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n == 1
		}
	}
}

// marked finds the processes of a job.
func marked(id string) []soakProcess {
	var out []soakProcess
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte(jobVariable+"="+id)) {
			continue
		}
		p := soakProcess{env: map[string]string{}}
		p.pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
		for v := range strings.SplitSeq(string(b), "\x00") {
			name, value, _ := strings.Cut(v, "=")
			p.env[name] = value // where a name comes twice, the last one counts
		}
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		p.args = strings.ReplaceAll(string(args), "\x00", " ")
		out = append(out, p)
	}
	return out
}
