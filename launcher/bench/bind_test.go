package bench

import (
	"os"
	"os/exec"
	"slices"
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
	want := share(&may, firstOfCore, rank, 2)
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
		if now != want {
			t.Errorf("thread %d may use processors %v, want %v of %v", id, processors(now), processors(want), processors(may))
		}
	}
}

func TestShare(t *testing.T) {
	alone := func(cpu int) int { return cpu }
	pairs := func(n int) func(int) int { return func(cpu int) int { return cpu % n } } // i and i+n are one core
	span := func(from, to int) (all []int) {
		for c := from; c < to; c++ {
			all = append(all, c)
		}
		return all
	}
	for _, w := range []struct {
		name  string
		may   []int
		first func(int) int
		want  [][]int // of each rank
	}{
		{"one each", span(0, 2), alone, [][]int{{0}, {1}}},
		{"all", span(0, 3), alone, [][]int{{0, 1, 2}}},
		{"four each", span(0, 32), alone, [][]int{span(0, 4), span(4, 8), span(8, 12), span(12, 16), span(16, 20), span(20, 24), span(24, 28), span(28, 32)}},
		{"some cores", []int{1, 5, 7, 70}, alone, [][]int{{1, 5}, {7, 70}}},
		{"one is left", span(0, 5), alone, [][]int{{0, 1}, {2, 3}}},
		{"whole cores", span(0, 8), pairs(4), [][]int{{0, 1, 4, 5}, {2, 3, 6, 7}}},
		{"half cores", span(0, 4), pairs(2), [][]int{{0}, {2}, {1}, {3}}},
		{"more ranks than cores", span(0, 8), pairs(4), [][]int{{0}, {4}, {5}, {2}, {3}}},
	} {
		var may unix.CPUSet
		for _, c := range w.may {
			may.Set(c)
		}
		var taken unix.CPUSet
		for rank, want := range w.want {
			own := share(&may, w.first, rank, len(w.want))
			if got := processors(own); !slices.Equal(got, want) {
				t.Errorf("%s: rank %d gets %v, want %v", w.name, rank, got, want)
			}
			for i := range own {
				if own[i]&taken[i] != 0 || own[i]&^may[i] != 0 {
					t.Errorf("%s: rank %d gets %v, of which others have some, or the process has not all", w.name, rank, processors(own))
				}
				taken[i] |= own[i]
			}
		}
	}
}

func processors(s unix.CPUSet) (all []int) {
	for c := 0; len(all) < s.Count(); c++ {
		if s.IsSet(c) {
			all = append(all, c)
		}
	}
	return all
}
