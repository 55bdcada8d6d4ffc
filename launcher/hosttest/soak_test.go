package hosttest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// TestSoak lets one job be hit by a random fault after a random step, again and
// again: each time it goes on from the last checkpoint. Nothing hangs, nothing is
// left, what the survivors report names the place, no checkpoint is broken, and
// the losses are those of a job that nothing happened to.
//
// GORUN_SOAK is the number of faults; 1 means 200. GORUN_SOAK_SEED repeats a run.
func TestSoak(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("GORUN_SOAK"))
	if err != nil || n < 1 {
		t.Skip("takes an hour: GORUN_SOAK=1 runs it, GORUN_SOAK=20 a part of it")
	}
	if n == 1 {
		n = 200
	}
	seed, err := strconv.ParseUint(os.Getenv("GORUN_SOAK_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("GORUN_SOAK_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	set := []string{"comm.timeout=5s", "checkpoint.every=5", "eval.every=1", "eval.steps=1"}
	output := t.TempDir()
	for i := range n {
		steps, rank, kind := random.IntN(8), random.IntN(4), random.IntN(len(hits))
		ok := t.Run(fmt.Sprintf("%d %s rank %d", i, hits[kind].name, rank), func(t *testing.T) {
			hosts := netns.New(t, netns.Options{})
			j := start(t, launch{hosts: hosts, args: append([]string{"--resume"}, tiny(t, output, 1_000_000, set...)...)})
			j.agents[0].await(t, fmt.Sprintf(`(?s)(step +\d+/.*?){%d}`, steps+1))
			hits[kind].hit(j, hosts, rank)
			j.wait(afterSilence)
			for node, a := range j.agents {
				switch {
				case hits[kind].takesHost && node == rank/2: // it has no say
				case a.code == 0:
					t.Errorf("%s: exit status 0", a.host.Name)
				case !regexp.MustCompile(hits[kind].report(rank, node)).MatchString(a.out.String()):
					t.Errorf("%s: nothing like %q", a.host.Name, hits[kind].report(rank, node))
				}
			}
			if t.Failed() {
				t.Log(j.outputs())
			}
		})
		if !ok {
			break // what comes after would be about the same
		}
	}
	// What is left of the metrics goes up to some step; a calm job says the same.
	got := losses(t, output)
	calm := t.TempDir()
	j := start(t, launch{hosts: netns.New(t, netns.Options{}), args: tiny(t, calm, 1_000_000, set...)})
	j.agents[0].await(t, fmt.Sprintf(`step +%d/`, len(got)))
	j.signalAgent(0, unix.SIGTERM)
	j.wait(afterDeath)
	same(t, got, losses(t, calm)[:len(got)])
}

// hits are the faults of TestSoak. rank is whom, or whose host, they hit.
var hits = []struct {
	name      string
	takesHost bool // its agent cannot report
	hit       func(j *job, hosts []*netns.Host, rank int)
	report    func(rank, node int) string // what the agent of a node says
}{
	{"kill", false, func(j *job, _ []*netns.Host, rank int) { j.signal(rank, unix.SIGKILL) }, namesRank},
	{"abort", false, func(j *job, _ []*netns.Host, rank int) { j.signal(rank, unix.SIGABRT) }, namesRank},
	{"stop", false, func(j *job, _ []*netns.Host, rank int) { j.signal(rank, unix.SIGSTOP) }, namesRank},
	{"interrupt", false, func(j *job, _ []*netns.Host, rank int) { j.signalAgent(rank/2, unix.SIGINT) }, func(int, int) string { return "ended by SIGINT" }},
	{"kill agent of", true, func(j *job, _ []*netns.Host, rank int) { j.signalAgent(rank/2, unix.SIGKILL) }, namesNode},
	{"crash", true, func(_ *job, hosts []*netns.Host, rank int) { hosts[rank/2].Unplug(); hosts[rank/2].Crash() }, namesNode},
	{"unplug", false, func(_ *job, hosts []*netns.Host, rank int) { hosts[rank/2].Unplug() }, namesOther},
	{"deafen", false, func(_ *job, hosts []*netns.Host, rank int) { hosts[rank/2].Lose(netns.Received, netns.All()) }, namesOther},
	{"silence", false, func(_ *job, hosts []*netns.Host, rank int) { hosts[rank/2].Lose(netns.Sent, netns.All()) }, namesOther},
}

func namesRank(rank, _ int) string { return fmt.Sprintf(`gorun: .*\brank %d\b`, rank) }

func namesNode(rank, _ int) string {
	return fmt.Sprintf(`gorun: node %d \(host host%[1]d\b.*is lost`, rank/2)
}

func namesOther(_, node int) string { return namesNode(2*(1-node), node) }
