package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
)

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
	l, err := listenBelow()
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
			"checkpoint.every=10", "checkpoint.resume=auto", "comm.timeout=7s", "eval.every=50"} {
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
	accusation := regexp.MustCompile(`gorun: rank \d+ (failed first|stopped answering|ended while|is blamed)`)
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
	all, err := tensorsOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	return all
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
