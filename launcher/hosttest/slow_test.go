package hosttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv"
	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// A rank whose core others have taken slows the job down, and that is all: nobody
// counts as dead, and the metrics say who it is.
func TestSlowRank(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	var cores [2]unix.CPUSet
	for core, found := 0, 0; found < 2; core++ {
		if core == 8*len(all)*8 {
			testenv.Skip(t, "cores:2", "a slow rank needs a core of its own beside the other's")
		}
		if all.IsSet(core) {
			cores[found].Set(core)
			found++
		}
	}
	const slow, steps = 1, 120
	output := t.TempDir()
	j := start(t, launch{hosts: netns.New(t, netns.Options{}), nproc: []int{1, 1}, args: tiny(t, output, steps,
		"comm.timeout=20s", "model.hidden=128", "data.seq_len=128")})
	j.agents[0].await(t, "step +1/")
	for _, p := range j.processes() {
		if rank, err := strconv.Atoi(p.env["RANK"]); err == nil {
			bind(t, p.pid, &cores[rank])
		}
	}
	for range 4 {
		thief := exec.Command("/bin/sh", "-c", "while :; do :; done")
		thief.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := thief.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { thief.Process.Kill(); thief.Wait() })
		bind(t, thief.Process.Pid, &cores[slow])
	}
	j.succeeds(patience)

	b, err := os.ReadFile(filepath.Join(output, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var slowest []int
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		var step struct {
			Rank *int `json:"slowest_rank"`
		}
		if json.Unmarshal(lines.Bytes(), &step) == nil && step.Rank != nil {
			slowest = append(slowest, *step.Rank)
		}
	}
	if len(slowest) != steps {
		t.Fatalf("%d steps, want %d", len(slowest), steps)
	}
	named := 0
	for _, rank := range slowest[steps/2:] {
		if rank == slow {
			named++
		}
	}
	if named < steps/2*2/3 {
		t.Errorf("rank %d was the slowest in %d of the last %d steps:\n%s", slow, named, steps/2, j.outputs())
	}
}

// bind keeps all threads of a process on some cores.
func bind(t *testing.T, pid int, cores *unix.CPUSet) {
	t.Helper()
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = unix.SchedSetaffinity(id, cores)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
