package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/cluster"
)

// A dead worker's output is awaited before its failure is reported, for 300 ms where
// helpers of it hold the pipe open. They are counted in turns: an agent that gets no
// processor for so long has not read what is there.
const (
	lastWords     = 6
	lastWordsTurn = 50 * time.Millisecond
)

// process is one worker: a process group led by the program itself.
//
// The kernel kills the leader when the thread that created it ends, so its
// supervisor keeps that thread locked until the leader is gone; an agent that
// dies, even by SIGKILL, takes its workers along. The dead leader stays a zombie
// until reap: until then its group's id cannot be given to anybody else, and a
// signal to the group is safe.
type process struct {
	localRank int
	rank      int
	cmd       *exec.Cmd
	out       *output

	// Written by supervise before it reports, read afterwards.
	startErr error
	guardErr error          // the job goes on without the guard
	code     int            // exit code, or 128 + signal
	signal   syscall.Signal // 0 where the leader exited by itself
	core     bool
	ended    time.Time

	// Kept by the attempt's loop.
	started bool
	over    bool             // reported on exited
	sent    []syscall.Signal // what the agent sent to the group
	state   processState
	failure *cluster.Failure // what is to say of it, once it is final
}

// supervise starts the leader, reports on started, waits for its end and reports
// on exited. The attempt starts one for each worker; it ends with the leader, or
// at once where that could not be started.
func (p *process) supervise(g *guard, started, exited chan<- *process) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.startErr = p.cmd.Start()
	if p.startErr == nil {
		p.guardErr = g.watch(p)
	}
	p.out.closeChildEnds()
	started <- p
	if p.startErr != nil {
		return
	}
	p.awaitEnd()
	if p.code != 0 {
		turn := time.NewTicker(lastWordsTurn)
		p.out.hear(turn.C)
		turn.Stop()
	}
	exited <- p
}

// awaitEnd blocks until the leader is dead and leaves it unreaped.
func (p *process) awaitEnd() {
	// The kernel's siginfo_t for SIGCHLD on 64-bit Linux.
	var info struct {
		signo, errno, code, _ int32
		pid, uid, status      int32
		_                     [100]byte
	}
	for {
		err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			panic(fmt.Sprintf("waitid of our own child %d: %v", p.cmd.Process.Pid, err))
		}
	}
	const exited, dumped = 1, 3 // CLD_EXITED, CLD_DUMPED
	p.ended = time.Now()
	if info.code == exited {
		p.code = int(info.status)
		return
	}
	p.signal = syscall.Signal(info.status)
	p.core = info.code == dumped
	p.code = 128 + int(info.status)
}

// wasSent says whether the agent sent this signal.
func (p *process) wasSent(sig syscall.Signal) bool { return slices.Contains(p.sent, sig) }

// kill sends a signal to the whole group. A group that is gone is no error.
func (p *process) kill(sig syscall.Signal) error {
	err := unix.Kill(-p.cmd.Process.Pid, sig)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %s to rank %d (pid %d): %w", unix.SignalName(sig), p.rank, p.cmd.Process.Pid, err)
	}
	return nil
}

// reap kills what is left of the group and frees the leader's id.
func (p *process) reap() {
	unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) // the zombie is there: it cannot fail
	p.cmd.Wait()                                // the leader is dead: returns at once; its status is known already
}

// cause says how the leader ended.
func (p *process) cause() string {
	switch {
	case p.startErr != nil:
		return "could not be started: " + explainStart(p.cmd.Path, p.startErr).Error()
	case p.signal != 0 && p.core:
		return fmt.Sprintf("killed by %s (core dumped)", unix.SignalName(p.signal))
	case p.signal != 0:
		return "killed by " + unix.SignalName(p.signal)
	default:
		return fmt.Sprintf("exit status %d", p.code)
	}
}

// explainStart turns the errors of fork and exec into what to do about them.
func explainStart(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("%s: exec format error: it is built for another machine, or a script without a #! line", path)
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%s: the limit of processes is reached (ulimit -u, or the container's pids limit): raise it or lower --nproc: %w", path, err)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%s: not enough memory to start another process: lower --nproc: %w", path, err)
	case errors.Is(err, unix.ENOENT):
		if _, statErr := os.Stat(path); statErr == nil {
			return fmt.Errorf("%s: its interpreter (the #! line or the ELF loader) does not exist: %w", path, err)
		}
	}
	return err
}
