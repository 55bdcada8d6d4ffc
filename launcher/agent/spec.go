package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/cluster"
)

// Spec is what an agent starts on its node.
type Spec struct {
	Path        string       // of the program, looked up already
	Argv        []string     // Argv[0] is what the user typed
	Env         []string     // KEY=value beside the worker's own; wins over them
	Token       string       // of the job
	LogDir      string       // of the job: attempt_N/<local rank> stand below it
	Redirects   StdMap       // streams kept off the console
	Tee         StdMap       // streams that stay on it nevertheless
	Filter      map[int]bool // local ranks on the console; nil = all
	MaxRestarts int
	Verbose     bool

	SharedConsole bool                   // the workers of all nodes write to node 0's
	Alarms        <-chan cluster.Failure // what others than workers and nodes notice ends the job; may be nil
}

// shown says which streams of a local rank reach the console.
func (s *Spec) shown(localRank int) Std {
	if s.Filter != nil && !s.Filter[localRank] {
		return 0
	}
	return (Stdout|Stderr)&^s.Redirects.Of(localRank) | s.Tee.Of(localRank)
}

// ranksPerCore bounds --nproc: more workers than this on a core is a typing error.
const ranksPerCore = 64

// ParseNProc reads --nproc: a number, "gpu", "cpu", or "auto" for the GPUs there
// are, else the cores.
func ParseNProc(s string) (int, error) {
	cores, gpus := runtime.NumCPU(), GPUCount()
	var n int
	switch s {
	case "auto":
		n = gpus
		if n == 0 {
			n = cores
		}
	case "cpu":
		n = cores
	case "gpu":
		if gpus == 0 {
			return 0, errors.New("--nproc gpu: this host shows no NVIDIA GPU (/proc/driver/nvidia/gpus, CUDA_VISIBLE_DEVICES)")
		}
		n = gpus
	default:
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 {
			return 0, fmt.Errorf("--nproc %q: want a number of workers from 1, or auto, cpu, gpu", s)
		}
		n = v
	}
	if most := cores * ranksPerCore; n > most {
		return 0, fmt.Errorf("--nproc %d: more than this machine can start: it has %d cores, and gorun starts at most %d workers a core, %d in all", n, cores, ranksPerCore, most)
	}
	return n, checkLimits(n)
}

// GPUCount counts the NVIDIA GPUs that the kernel lists and CUDA_VISIBLE_DEVICES
// leaves. Asking the driver itself would take a good part of a second.
func GPUCount() int {
	n := 0
	if entries, err := os.ReadDir("/proc/driver/nvidia/gpus"); err == nil {
		n = len(entries)
	} else if nodes, err := filepath.Glob("/dev/nvidia[0-9]*"); err == nil {
		n = len(nodes) // a container may hide the driver's folder
	}
	if v, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		visible := 0
		for d := range strings.SplitSeq(v, ",") {
			if d = strings.TrimSpace(d); d == "" || d == "-1" {
				break // CUDA ignores what follows an invalid entry
			}
			visible++
		}
		n = min(n, visible)
	}
	return n
}

// checkLimits refuses a number of workers that the machine's limits rule out: a
// worker needs a process and a thread of ours, and seven descriptors.
func checkLimits(nproc int) error {
	const reserve = 16
	processes := uint64(2*nproc + reserve)
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &lim); err == nil && os.Geteuid() != 0 && lim.Cur != unix.RLIM_INFINITY && processes > lim.Cur {
		return fmt.Errorf("--nproc %d: more than this machine can start: the user's limit of processes is %d (ulimit -u)", nproc, lim.Cur)
	}
	if free, ok := cgroupPIDs(); ok && processes > free {
		return fmt.Errorf("--nproc %d: more than this machine can start: the control group has room for %d more processes (pids.max)", nproc, free)
	}
	var files syscall.Rlimit // through syscall: the limit as Go raised it for itself
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && uint64(7*nproc+64) > files.Cur {
		return fmt.Errorf("--nproc %d: more than this machine can start: the limit of open files is %d (ulimit -n)", nproc, files.Cur)
	}
	return nil
}

// cgroupPIDs returns how many processes the control group still takes; false
// where there is no such limit.
func cgroupPIDs() (uint64, bool) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		_, path, ok := strings.Cut(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		read := func(name string) (uint64, bool) {
			b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", path, name))
			if err != nil {
				return 0, false
			}
			v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			return v, err == nil // "max" is no number: no limit
		}
		most, ok1 := read("pids.max")
		now, ok2 := read("pids.current")
		if ok1 && ok2 {
			return most - min(most, now), true
		}
	}
	return 0, false
}
