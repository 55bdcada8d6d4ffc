package bench

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Cores is the number of cores that this process may use, 0 where that is not known.
func Cores() int {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return 0
	}
	return may.Count()
}

// Bind keeps all threads of this process, and those that they start, on one core:
// local rank i on the i-th core that the process may use. mpirun does so by default
// where there are few ranks; without it the kernel may put two ranks on one core
// and leave them there, when other programs use the machine.
func Bind(localRank, localSize int) error {
	var may, own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("--bind: the cores of this process: %w", err)
	}
	if n := may.Count(); n < localSize {
		return fmt.Errorf("--bind: %d ranks on this host, and the process may use %d cores: a core for each is needed", localSize, n)
	}
	core, seen := 0, 0
	for ; ; core++ {
		if may.IsSet(core) {
			if seen == localRank {
				break
			}
			seen++
		}
	}
	own.Set(core)
	// A thread that starts meanwhile has the mask of the one that started it, so a
	// look that finds all threads bound is the last one needed.
	for {
		changed, err := bindThreads(&own)
		if err != nil || !changed {
			return err
		}
	}
}

// bindThreads binds the threads that are not, and says whether there were any.
func bindThreads(own *unix.CPUSet) (changed bool, err error) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return false, fmt.Errorf("--bind: the threads of this process: %w", err)
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return false, fmt.Errorf("--bind: thread %q: %w", t.Name(), err)
		}
		var now unix.CPUSet
		err = unix.SchedGetaffinity(id, &now)
		if err == nil && now != *own {
			changed = true
			err = unix.SchedSetaffinity(id, own)
		}
		if err != nil && err != unix.ESRCH { // the thread has ended
			return false, fmt.Errorf("--bind: thread %d: %w", id, err)
		}
	}
	return changed, nil
}
