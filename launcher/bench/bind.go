package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
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

// Bind keeps all threads of this process, and those that they start, on the local
// rank's share of the cores that the process may use, see share. Without it the kernel
// may put two ranks on one core and leave them there, when other programs use the
// machine.
func Bind(localRank, localSize int) error {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("--bind: the cores of this process: %w", err)
	}
	if n := may.Count(); n < localSize {
		return fmt.Errorf("--bind: %d ranks on this host, and the process may use %d cores: a core for each is needed", localSize, n)
	}
	own := share(&may, firstOfCore, localRank, localSize)
	// A thread that starts meanwhile has the mask of the one that started it, so a
	// look that finds all threads bound is the last one needed.
	for {
		changed, err := bindThreads(&own)
		if err != nil || !changed {
			return err
		}
	}
}

// share is rank's part of the processors that may names: as many neighbouring ones for
// each of size ranks. So does mpirun --map-by slot:PE=n --bind-to core. Processors of
// one core, which first tells, are neighbours, so that ranks share a core only where
// there are not enough. Processors that do not go round are spread between the ranks.
func share(may *unix.CPUSet, first func(cpu int) int, rank, size int) (own unix.CPUSet) {
	type place struct{ core, cpu int }
	var all []place
	for cpu := 0; len(all) < may.Count(); cpu++ {
		if may.IsSet(cpu) {
			all = append(all, place{first(cpu), cpu})
		}
	}
	slices.SortFunc(all, func(a, b place) int { return cmp.Or(cmp.Compare(a.core, b.core), cmp.Compare(a.cpu, b.cpu)) })
	from := rank * len(all) / size
	for _, p := range all[from : from+len(all)/size] {
		own.Set(p.cpu)
	}
	return own
}

// firstOfCore is the first processor of cpu's core. Where the kernel shows none, cpu is
// a core of its own.
func firstOfCore(cpu int) int {
	list, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return cpu
	}
	digits := bytes.IndexFunc(list, func(r rune) bool { return r < '0' || r > '9' })
	first, err := strconv.Atoi(string(list[:max(digits, 0)]))
	if err != nil {
		return cpu
	}
	return first
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
