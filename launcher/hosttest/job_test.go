package hosttest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

const (
	// patience is for what takes a moment, on a machine that does other things too.
	patience = 3 * time.Minute
	// afterDeath is how soon every process must be gone once one has died, and
	// afterSilence once one says nothing any more: about 1 s and 11 s, where the
	// machine is not busy. Without an end of their own they would go on for good.
	afterDeath   = 45 * time.Second
	afterSilence = time.Minute

	// mark is in the environment of every process of a job.
	mark = "GORUN_HOSTTEST"
)

// launch is how a job is started.
type launch struct {
	hosts []*netns.Host
	nproc []int    // workers of each host; nil means 2 each
	rdzv  string   // "" means host 0's address and port 29400
	args  []string // behind the flags of the job: a program, or a train.yaml and --set
	env   []string
	token []string // of each host; nil means the same for all
}

// job is a running launch: one agent a host.
type job struct {
	t      *testing.T
	id     string
	tmp    string // where logs go that no flag says a place for
	agents []*agent
}

// agent is the gorun command of one host.
type agent struct {
	host *netns.Host
	cmd  *exec.Cmd // what stands for it outside
	out  *console
	over chan struct{} // closed when it has ended
	code int           // its exit status, then
}

// start starts the agents of all hosts. What is left of them at the end of the
// test is a failure of the test, and is killed.
func start(t *testing.T, l launch) *job {
	t.Helper()
	j := &job{t: t, id: rand.Text(), tmp: t.TempDir()}
	t.Cleanup(j.sweep)
	for i := range l.hosts {
		j.begin(l, i)
	}
	return j
}

// begin starts host i's agent.
func (j *job) begin(l launch, i int) *agent {
	j.t.Helper()
	command, err := gorun()
	if err != nil {
		j.t.Fatal(err)
	}
	if l.rdzv == "" {
		l.rdzv = net.JoinHostPort(l.hosts[0].Addr.String(), "29400")
	}
	nproc, token := 2, "only for this test"
	if l.nproc != nil {
		nproc = l.nproc[i]
	}
	if l.token != nil {
		token = l.token[i]
	}
	args := []string{"--nproc", strconv.Itoa(nproc)}
	if len(l.hosts) > 1 {
		args = append(args, "--nnodes", strconv.Itoa(len(l.hosts)), "--node-rank", strconv.Itoa(i), "--rdzv", l.rdzv)
	}
	a := &agent{host: l.hosts[i], out: newConsole(), over: make(chan struct{})}
	a.cmd = a.host.Command(command, append(args, l.args...)...)
	a.cmd.Env = append(append(os.Environ(), mark+"="+j.id, "TMPDIR="+j.tmp, "GORUN_TOKEN="+token), l.env...)
	a.cmd.Stdout, a.cmd.Stderr = a.out, a.out
	if err := a.cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.agents = append(j.agents, a)
	go a.routineWait()
	return a
}

// routineWait waits for the agent's end. One an agent, started by begin.
func (a *agent) routineWait() {
	err := a.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		a.code = exit.ExitCode()
		if s := exit.Sys().(syscall.WaitStatus); s.Signaled() {
			a.code = 128 + int(s.Signal())
		}
	} else if err != nil {
		a.code = -1
	}
	close(a.over)
}

// await waits until the agent has printed something.
func (a *agent) await(t *testing.T, pattern string) {
	t.Helper()
	if !a.out.await(pattern, a.over, patience) {
		t.Fatalf("%s: nothing like %q in:\n%s", a.host.Name, pattern, a.out)
	}
}

// wait waits for the end of all agents, and of every process of theirs.
func (j *job) wait(within time.Duration) {
	j.t.Helper()
	begin, late := time.Now(), time.After(within)
	for _, a := range j.agents {
		select {
		case <-a.over:
		case <-late:
			there := j.list()
			j.dump()
			j.t.Fatalf("%s: the agent still runs after %s; what is there:\n%s\n%s", a.host.Name, within, there, j.outputs())
		}
	}
	j.gone(begin.Add(within))
	j.t.Logf("gone after %s", time.Since(begin).Round(10*time.Millisecond))
}

// dump makes the workers, which hang, print their stacks.
func (j *job) dump() {
	for _, p := range j.processes() {
		if p.env["RANK"] != "" {
			unix.Kill(p.pid, unix.SIGABRT)
			p.awaitEnd(afterDeath)
		}
	}
}

// gone waits until no process of the job is left.
func (j *job) gone(deadline time.Time) {
	j.t.Helper()
	for _, p := range j.processes() {
		if !p.awaitEnd(time.Until(deadline)) {
			j.t.Errorf("still there: %s\n%s", p, j.outputs())
			return
		}
	}
	if left := j.processes(); len(left) > 0 {
		j.t.Errorf("started meanwhile: %v\n%s", left, j.outputs())
	}
}

// succeeds waits until all agents have ended with status 0.
func (j *job) succeeds(within time.Duration) {
	j.t.Helper()
	j.wait(within)
	for _, a := range j.agents {
		if a.code != 0 {
			j.t.Errorf("%s: exit status %d", a.host.Name, a.code)
		}
	}
	if j.t.Failed() {
		j.t.Fatal(j.outputs())
	}
}

// sweep kills what the test has left behind, and says so.
func (j *job) sweep() {
	for _, p := range j.processes() {
		if !j.t.Failed() {
			j.t.Errorf("left behind: %s", p)
		}
		unix.Kill(p.pid, unix.SIGKILL)
	}
	for _, a := range j.agents {
		<-a.over
	}
}

func (j *job) outputs() string {
	var b strings.Builder
	for i, a := range j.agents {
		fmt.Fprintf(&b, "--- node %d on %s:\n%s", i, a.host.Name, a.out)
	}
	return b.String()
}

func (j *job) list() string {
	var b strings.Builder
	for _, p := range j.processes() {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// process is one of a job's.
type process struct {
	pid  int // outside
	exe  string
	args string
	env  map[string]string
}

func (p process) String() string {
	return fmt.Sprintf("pid %d (RANK %q): %s", p.pid, p.env["RANK"], p.args)
}

// processes finds all that have the job's mark.
func (j *job) processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		j.t.Fatal(err)
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !bytes.Contains(environ, []byte(mark+"="+j.id)) {
			continue // gone, or not ours
		}
		p := process{pid: pid, env: map[string]string{}}
		for v := range strings.SplitSeq(string(environ), "\x00") {
			name, value, _ := strings.Cut(v, "=")
			p.env[name] = value // where a name comes twice, the last one counts
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		p.args = strings.TrimSpace(strings.ReplaceAll(string(args), "\x00", " "))
		p.exe, _ = os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		out = append(out, p)
	}
	return out
}

// awaitEnd waits until the process is gone.
func (p process) awaitEnd(within time.Duration) bool {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(within)
	for {
		left := max(0, time.Until(deadline))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n == 1
		}
	}
}

// signal sends sig to a rank's worker.
func (j *job) signal(rank int, sig unix.Signal) {
	j.t.Helper()
	for _, p := range j.processes() {
		if p.env["RANK"] == strconv.Itoa(rank) {
			if err := unix.Kill(p.pid, sig); err != nil {
				j.t.Fatal(err)
			}
			return
		}
	}
	j.t.Fatalf("rank %d is not there:\n%s\n%s", rank, j.list(), j.outputs())
}

// signalAgent sends sig to the agent on a host.
func (j *job) signalAgent(node int, sig unix.Signal) {
	j.t.Helper()
	command, _ := gorun()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", j.agents[node].cmd.Process.Pid))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(children)))
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || exe != command {
		j.t.Fatalf("the agent of %s is not there (%v, %q, %s):\n%s", j.agents[node].host.Name, err, children, exe, j.list())
	}
	if err := unix.Kill(pid, sig); err != nil {
		j.t.Fatal(err)
	}
}
