package train

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryRow is a part of what a rank allocates.
type memoryRow struct {
	name  string
	bytes int64
}

// bytes is what a rank allocates under data parallelism, in fp32, without the
// data. The sum is less than that of the rows where some share their place.
func (a *architecture) bytes() (rows []memoryRow, sum int64) {
	all, trained := a.sizes()
	rows = []memoryRow{{"weights", 4 * all}, {"gradients", 4 * trained}, {"AdamW moments", 8 * trained}}
	sum = 4*all + 12*trained + a.memory.Bytes()
	for _, r := range a.memory.Regions() {
		rows = append(rows, memoryRow{r.Name, int64(r.Bytes())})
	}
	return rows, sum
}

// fits refuses a job whose ranks on this host, local of them, need more memory
// than the host has. Nothing is allocated yet: where it were, the kernel would end
// one process or another without a word.
func (a *architecture) fits(local int) error {
	have := hostMemory()
	rows, sum := a.bytes()
	if have == 0 || sum <= have/int64(local) {
		return nil
	}
	slices.SortStableFunc(rows, func(x, y memoryRow) int { return cmp.Compare(y.bytes, x.bytes) })
	var largest []string
	for _, r := range rows[:min(3, len(rows))] {
		largest = append(largest, fmt.Sprintf("%s %s", r.name, byteCount(r.bytes)))
	}
	return fmt.Errorf("memory: %d x %s for the ranks on this host, which has %s; the largest parts of a rank are %s; make train.micro_batch, data.seq_len or the model smaller",
		local, byteCount(sum), byteCount(have), strings.Join(largest, ", "))
}

// hostMemory is the memory that all processes here may use together, in bytes: the
// machine's, or what the control group allows. 0 where neither is known.
func hostMemory() (n int64) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		n = int64(info.Totalram) * int64(info.Unit)
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return n
	}
	for line := range bytes.Lines(groups) {
		dir, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "0::") // version 2's only hierarchy
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", dir, "memory.max"))
		if err != nil {
			continue // the root has none
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // else "max"
			n = min(n, limit)
		}
	}
	return n
}
