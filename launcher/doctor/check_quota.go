package doctor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// quota looks at how many cores the job may use, by its control group and its
// affinity: a rank that is throttled holds up all others.
type quota struct{}

func (quota) name() string { return "cpus" }

func (quota) look(_ context.Context, m *Machine) ([]Finding, error) {
	var out []Finding
	cores, file, unread := m.cgroupCores()
	if file != "" && cores < float64(m.Workers) {
		out = append(out, Finding{
			Severity: Warning,
			What:     fmt.Sprintf("the control group allows %g cores, and %s run here: the kernel stops them for part of each period, and every other rank waits", cores, plural(m.Workers, "worker")),
			Evidence: "/" + file,
			Fix:      "give the container or the service more CPU (--cpus, resources.limits.cpu, CPUQuota=), or none such limit",
		})
	}
	allowed, err := m.status("Cpus_allowed_list")
	if err != nil {
		return out, errors.Join(unread, err)
	}
	n, err := countList(allowed)
	if err != nil {
		return out, fmt.Errorf("/proc/self/status: Cpus_allowed_list: %w", errors.Join(unread, err))
	}
	if n < m.Workers {
		out = append(out, Finding{
			Severity: Warning,
			What:     fmt.Sprintf("%s may run on %s: they take turns, and every other rank waits", plural(m.Workers, "worker"), plural(n, "core")),
			Evidence: "/proc/self/status: Cpus_allowed_list " + allowed,
			Fix:      "start fewer workers, or give the job more cores (taskset, cpuset, --cpus-per-task)",
		})
	}
	return out, unread
}

// cgroupCores is the smallest limit of this process's control group and those above
// it, and the file that says so; "" where there is none.
func (m *Machine) cgroupCores() (cores float64, file string, err error) {
	groups, err := m.text("proc/self/cgroup")
	if err != nil || groups == "" { // a kernel without groups
		return 0, "", err
	}
	for line := range strings.SplitSeq(groups, "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			return 0, "", fmt.Errorf("/proc/self/cgroup: %q", line)
		}
		root, read := "sys/fs/cgroup", m.cpuMax
		if f[0] != "0" {
			if !hasWord(f[1], "cpu") {
				continue
			}
			root, read = path.Join("sys/fs/cgroup", f[1]), m.cfsQuota
			if !m.exists(root) {
				root = "sys/fs/cgroup/cpu"
			}
		}
		for dir := path.Clean("/" + f[2]); ; dir = path.Dir(dir) {
			n, at, err := read(path.Join(root, dir))
			if err != nil {
				return 0, "", err
			}
			if at != "" && (file == "" || n < cores) {
				cores, file = n, at
			}
			if dir == "/" {
				break
			}
		}
	}
	return cores, file, nil
}

// cpuMax reads a limit of version 2: "200000 100000", or "max 100000".
func (m *Machine) cpuMax(dir string) (float64, string, error) {
	file := path.Join(dir, "cpu.max")
	if !m.exists(file) {
		return 0, "", nil // the root, or a group that lies outside of this container
	}
	text, err := m.text(file)
	if err != nil {
		return 0, "", err
	}
	quota, period, _ := strings.Cut(text, " ")
	if quota == "max" {
		return 0, "", nil
	}
	return ratio(file, quota, period)
}

// cfsQuota reads one of version 1, where -1 is none.
func (m *Machine) cfsQuota(dir string) (float64, string, error) {
	file := path.Join(dir, "cpu.cfs_quota_us")
	if !m.exists(file) {
		return 0, "", nil
	}
	quota, err := m.text(file)
	if err != nil || quota == "-1" {
		return 0, "", err
	}
	period, err := m.text(dir, "cpu.cfs_period_us")
	if err != nil {
		return 0, "", err
	}
	return ratio(file, quota, period)
}

func ratio(file, quota, period string) (float64, string, error) {
	q, err := strconv.ParseFloat(quota, 64)
	if err != nil {
		return 0, "", fmt.Errorf("/%s: %w", file, err)
	}
	p, err := strconv.ParseFloat(period, 64)
	if err != nil || p <= 0 {
		return 0, "", fmt.Errorf("/%s: period %q", file, period)
	}
	return q / p, file, nil
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// countList counts the numbers of a list such as 0-3,8.
func countList(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err := strconv.Atoi(first)
		if err != nil {
			return 0, err
		}
		b, err := strconv.Atoi(last)
		if err != nil {
			return 0, err
		}
		n += b - a + 1
	}
	return n, nil
}
