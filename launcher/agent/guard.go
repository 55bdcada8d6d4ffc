package agent

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// GuardName is argv[0] of the guard: the agent's own binary, started a second
// time, whose main must then call Guard.
const GuardName = "gorun-guard"

// markVariable is in the environment of every worker, and so of what it starts.
// Its value is the agent's alone.
const markVariable = "GORUN_AGENT"

// Guard outlives an agent that was killed by a moment. The kernel kills the
// workers then, but not what they have started: the guard does. On in it reads
// the agent's mark, then a "+<group>" for each worker that starts and a "-<group>"
// for each that is reaped, and "done" before the agent ends by itself. Where in
// ends without that, it kills the groups that are left, and every process that
// carries the mark: one whose group was not announced in time, or that has left
// its group.
func Guard(in io.Reader) {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT) // they are the agent's affair
	lines := bufio.NewScanner(in)
	if !lines.Scan() {
		return // nothing was started yet
	}
	mark := lines.Text()
	groups := map[int]bool{}
	for lines.Scan() {
		text := lines.Text()
		if text == "done" {
			return
		}
		if group, err := strconv.Atoi(text[1:]); err == nil && group > 1 {
			groups[group] = text[0] == '+'
		}
	}
	for group, alive := range groups {
		if alive {
			unix.Kill(-group, unix.SIGKILL) // gone already where it had no helpers
		}
	}
	for range 100 { // again, for what was being forked while we looked
		if killMarked(mark) == 0 {
			return
		}
	}
}

// killMarked kills the processes whose environment holds the mark, and says how
// many there were. Those of other users cannot be read, and are not ours.
func killMarked(mark string) int {
	n := 0
	entry := []byte(markVariable + "=" + mark)
	paths, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well formed
	for _, path := range paths {
		env, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile, or is another user's
		}
		for v := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(v, entry) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				unix.Kill(pid, unix.SIGKILL)
				n++
			}
		}
	}
	return n
}

// guard is the agent's end of it.
type guard struct {
	mark string
	cmd  *exec.Cmd

	mu   sync.Mutex // keeps lines whole
	pipe *os.File
}

func startGuard() (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the guard: %w", err)
	}
	defer r.Close()
	g := &guard{mark: rand.Text(), pipe: w, cmd: &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{GuardName},
		Stdin:       r,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // what hits the agent's group spares it
	}}
	if err := g.cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("the guard against orphans cannot be started: %w", explainStart("gorun", err))
	}
	return g, g.tell(g.mark)
}

// watch adds a worker's group; forget takes it back before its id is freed.
func (g *guard) watch(p *process) error  { return g.tell(fmt.Sprint("+", p.cmd.Process.Pid)) }
func (g *guard) forget(p *process) error { return g.tell(fmt.Sprint("-", p.cmd.Process.Pid)) }

func (g *guard) tell(line string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := io.WriteString(g.pipe, line+"\n"); err != nil {
		return fmt.Errorf("the guard against orphans is gone: %w", err)
	}
	return nil
}

// close ends the guard.
func (g *guard) close() error {
	err := g.tell("done")
	g.pipe.Close()
	if waitErr := g.cmd.Wait(); waitErr != nil {
		return fmt.Errorf("the guard against orphans: %w", waitErr)
	}
	return err
}
