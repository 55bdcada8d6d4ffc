package shm

import (
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// available is how many bytes of shared memory this process may still take: what
// the machine has free, or what the process's control group leaves if that is
// less. The kernel would hand out more, and then end processes.
// root is "/", but in tests.
func available(root string) (int64, error) {
	info, err := os.ReadFile(root + "proc/meminfo")
	if err != nil {
		return 0, err
	}
	free, err := meminfo(string(info), "MemAvailable")
	if err != nil {
		return 0, err
	}
	groups, err := os.ReadFile(root + "proc/self/cgroup")
	if err != nil {
		return free, nil // a kernel without control groups
	}
	for line := range strings.Lines(string(groups)) {
		dir, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		// In a container the path may lie outside what is mounted; then its parents count.
		for dir = path.Clean("/" + dir); ; dir = path.Dir(dir) {
			limit, used := number(root+"sys/fs/cgroup"+dir+"/memory.max"), number(root+"sys/fs/cgroup"+dir+"/memory.current")
			if limit >= 0 && used >= 0 {
				free = min(free, max(0, limit-used))
			}
			if dir == "/" {
				break
			}
		}
	}
	return free, nil
}

// number reads a file of one number, -1 where there is none ("max" is none).
func number(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func meminfo(text, key string) (int64, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil || kb > math.MaxInt64>>10 {
				return 0, fmt.Errorf("/proc/meminfo: cannot read %q", line)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", key)
}
