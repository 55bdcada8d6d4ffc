package agent

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// GuardName is argv[0] of the guard: the agent's own binary, started a second
// time, whose main must then call Guard.
const GuardName = "gorun-guard"

// Guard outlives the agent by a moment. The kernel kills the workers of an agent
// that dies by SIGKILL, but not what they have started; the guard kills their
// groups. It reads "+<group>" and "-<group>" lines from in, which ends when the
// agent does, and then kills what was added and not taken back.
func Guard(in io.Reader) {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT) // they are the agent's affair
	groups := map[int]bool{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var sign byte
		var group int
		if n, err := fmt.Sscanf(lines.Text(), "%c%d", &sign, &group); n == 2 && err == nil && group > 1 {
			groups[group] = sign == '+'
		}
	}
	for group, alive := range groups {
		if alive {
			unix.Kill(-group, unix.SIGKILL) // gone already where it had no helpers
		}
	}
}

// guard is the agent's end of it.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File
}

func startGuard() (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the guard: %w", err)
	}
	defer r.Close()
	g := &guard{pipe: w, cmd: &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{GuardName},
		Stdin:       r,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // what hits the agent's group spares it
	}}
	if err := g.cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("the guard against orphans cannot be started: %w", explainStart("gorun", err))
	}
	return g, nil
}

// watch adds a worker's group; forget takes it back before its id is freed.
func (g *guard) watch(p *process) error  { return g.tell('+', p) }
func (g *guard) forget(p *process) error { return g.tell('-', p) }

func (g *guard) tell(sign byte, p *process) error {
	if _, err := fmt.Fprintf(g.pipe, "%c%d\n", sign, p.cmd.Process.Pid); err != nil {
		return fmt.Errorf("the guard against orphans is gone: %w", err)
	}
	return nil
}

// close ends the guard.
func (g *guard) close() error {
	g.pipe.Close()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("the guard against orphans: %w", err)
	}
	return nil
}
