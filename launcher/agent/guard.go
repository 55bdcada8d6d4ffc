package agent

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// GuardName is argv[0] of the guard: the agent's own binary, started a second
// time, whose main must then call Guard.
const GuardName = "gorun-guard"

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
	killMarked(mark, nil)
}

// guard is the agent's end of it.
type guard struct {
	mark string
	cmd  *exec.Cmd

	mu   sync.Mutex // keeps lines whole, and guards what follows
	pipe *os.File
	lost bool // the agent has been told so
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
		Env:         slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, markVariable+"=") }), // of an agent around this one
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

// tell writes to the guard. That it is gone is an error once.
func (g *guard) tell(line string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := io.WriteString(g.pipe, line+"\n"); err != nil && !g.lost {
		g.lost = true
		return fmt.Errorf("the guard against orphans is gone, the job goes on without: %w", err)
	}
	return nil
}

// close ends the guard.
func (g *guard) close() error {
	err := g.tell("done")
	g.pipe.Close()
	if waitErr := g.cmd.Wait(); waitErr != nil && !g.lost {
		return fmt.Errorf("the guard against orphans: %w", waitErr)
	}
	return err
}
