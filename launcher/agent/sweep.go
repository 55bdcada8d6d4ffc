package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// markVariable is in the environment of every worker, and so of what it starts.
	// Its value is the agent's alone.
	markVariable = "GORUN_AGENT"

	// sweepEvery is how often processes that were asked to end are looked at.
	sweepEvery = 50 * time.Millisecond
	// sweepTries bounds the looks for what was being forked while we looked.
	sweepTries = 100
)

// marked finds the processes whose environment holds the mark. Those of other users
// cannot be read, and are not ours; dead ones have no environment.
func marked(mark string) []int {
	var pids []int
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
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// killMarked kills the processes that carry the mark until there is none, and adds
// them to killed, which may be nil.
func killMarked(mark string, killed map[int]bool) {
	for range sweepTries {
		pids := marked(mark)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
			if killed != nil {
				killed[pid] = true
			}
		}
	}
}

// sweep ends what the workers of a broken attempt have started outside their
// process groups, as setsid does: it asks with SIGTERM, and kills what is left
// then or at a second SIGINT. The workers themselves are gone.
//
// After a success nothing is swept: a daemon that a program has put into a session
// of its own, and left behind when all went well, was left on purpose.
func (a *Agent) sweep(until time.Time) {
	ended := map[int]bool{}
	var left []unix.PollFd
	for _, pid := range marked(a.guard.mark) {
		// The descriptor keeps the signal from whoever gets the number next.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it ended meanwhile
		}
		defer unix.Close(fd)
		for _, s := range []syscall.Signal{unix.SIGTERM, unix.SIGCONT} {
			unix.PidfdSendSignal(fd, s, nil, 0) // an error: it has just ended
		}
		ended[pid] = true
		left = append(left, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	a.awaitEnds(left, until)
	killMarked(a.guard.mark, ended)
	switch n := len(ended); {
	case n == 1:
		a.console.Notice("a process that a worker had started in a session of its own has been ended")
	case n > 1:
		a.console.Notice("%d processes that the workers had started in sessions of their own have been ended", n)
	}
}

// awaitEnds waits for the processes behind the descriptors until the time is up,
// or the user is impatient.
func (a *Agent) awaitEnds(left []unix.PollFd, until time.Time) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	late := time.After(time.Until(until))
	for {
		n, err := unix.Poll(left, 0)
		if err == nil && n == len(left) {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			return
		case s := <-a.signals:
			if s != unix.SIGPIPE && a.userAsks(s.(syscall.Signal)) {
				return
			}
		}
	}
}
