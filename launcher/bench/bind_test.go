package bench

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// TestBind runs itself in processes of their own, for a binding cannot be undone.
func TestBind(t *testing.T) {
	if rank := os.Getenv("TEST_BIND"); rank != "" {
		bound(t, rank)
		return
	}
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	if may.Count() < 2 {
		testenv.Skip(t, "cores:2", "this process may use one core")
	}
	for _, rank := range []string{"0", "1"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBind$")
		cmd.Env = append(os.Environ(), "TEST_BIND="+rank)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("rank %s: %v\n%s", rank, err, out)
		}
	}
	if err := Bind(0, may.Count()+1); err == nil || !strings.Contains(err.Error(), "a core for each is needed") {
		t.Errorf("more ranks than cores: %v", err)
	}
}

func bound(t *testing.T, text string) {
	rank, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	if err := Bind(rank, 2); err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, th := range threads {
		id, err := strconv.Atoi(th.Name())
		if err != nil {
			t.Fatal(err)
		}
		var now unix.CPUSet
		if err := unix.SchedGetaffinity(id, &now); err != nil {
			t.Fatal(err)
		}
		core := 0
		for !now.IsSet(core) {
			core++
		}
		before := 0
		for c := range core {
			if may.IsSet(c) {
				before++
			}
		}
		if now.Count() != 1 || before != rank {
			t.Errorf("thread %d may use %d cores, the first being number %d of the process's; want number %d alone", id, now.Count(), before, rank)
		}
	}
}
