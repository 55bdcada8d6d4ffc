package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// peersBound is how long the copies between GPUs may take in all.
const peersBound = 30 * time.Second

// SpawnPeerCopies runs cmd, a process that calls CopyBetweenGPUs with its stdout, and
// returns what it has written by its end, or by the time that it is given. A process
// that is stuck in the driver is killed, and not waited for: it may never go.
func SpawnPeerCopies(ctx context.Context, cmd *exec.Cmd) ([]PeerCopy, error) {
	return spawn(ctx, cmd, func(PeerCopy) {})
}

// spawn calls told with each line.
func spawn(ctx context.Context, cmd *exec.Cmd, told func(PeerCopy)) (copies []PeerCopy, err error) {
	ctx, cancel := context.WithTimeout(ctx, peersBound)
	defer cancel()
	s := spawned{ctx: ctx, cmd: cmd, started: make(chan error, 1), lines: make(chan PeerCopy), ended: make(chan error, 1)}
	go s.routineRun()
	if err := <-s.started; err != nil {
		return nil, fmt.Errorf("copies between GPUs: %w", err)
	}
	for {
		select {
		case c := <-s.lines:
			if c.Done && len(copies) > 0 {
				copies[len(copies)-1] = c
			} else {
				copies = append(copies, c)
			}
			told(c)
		case err := <-s.ended:
			return copies, err
		case <-ctx.Done():
			return copies, cmd.Process.Kill()
		}
	}
}

// spawned is a process that writes PeerCopies.
type spawned struct {
	ctx     context.Context
	cmd     *exec.Cmd
	started chan error    // holds whether it could be started
	lines   chan PeerCopy // what it writes; nobody reads once ctx has ended
	ended   chan error    // holds its end
}

// routineRun starts the process, reads what it writes, and waits for its end. One,
// started by spawn; it ends with the process, if that ever ends. It keeps its thread,
// for the kernel ends the process with that.
func (s *spawned) routineRun() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var said bytes.Buffer
	s.cmd.Stderr = &said
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	s.started <- err
	if err != nil {
		return
	}
	s.read(out)
	if err = s.cmd.Wait(); err != nil {
		err = fmt.Errorf("copies between GPUs: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	s.ended <- err
}

// read passes lines on until the process ends; where it says something else, its exit
// status tells.
func (s *spawned) read(out io.Reader) {
	for in := json.NewDecoder(out); ; {
		var c PeerCopy
		if err := in.Decode(&c); err != nil {
			return
		}
		select {
		case s.lines <- c:
		case <-s.ctx.Done():
		}
	}
}
