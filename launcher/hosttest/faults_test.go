package hosttest

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// fails waits until the job is gone, and expects of every agent the exit status
// and one report that fits.
func (j *job) fails(within time.Duration, code int, report string) {
	j.t.Helper()
	j.wait(within)
	for _, a := range j.agents {
		a.reports(j.t, code, report)
	}
	if j.t.Failed() {
		j.t.Log(j.outputs())
	}
}

// reports expects the exit status and one report.
func (a *agent) reports(t *testing.T, code int, report string) {
	t.Helper()
	if a.code != code {
		t.Errorf("%s: exit status %d, want %d", a.host.Name, a.code, code)
	}
	lines := strings.Split(strings.TrimSpace(a.out.String()), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "gorun: ") })
	found := 0
	for _, l := range lines {
		if regexp.MustCompile(report).MatchString(l) {
			found++
		}
	}
	if found != 1 || !strings.HasPrefix(lines[len(lines)-1], "gorun: ") || !regexp.MustCompile(report).MatchString(lines[len(lines)-1]) {
		t.Errorf("%s: %d reports like %q, want one, as the last line, in:\n%s", a.host.Name, found, report, a.out)
		return
	}
	t.Logf("%s: %s", a.host.Name, lines[len(lines)-1])
}

// running starts four ranks on two hosts and waits until they train.
func running(t *testing.T, o netns.Options, set ...string) (*job, []*netns.Host) {
	t.Helper()
	hosts := netns.New(t, o)
	j := start(t, launch{hosts: hosts, args: endless(t, set...)})
	j.agents[0].await(t, "step +1/")
	return j, hosts
}

func TestRankKilled(t *testing.T) {
	t.Parallel()
	for rank, where := range []string{"host host0, local rank 0", "host host0, local rank 1", "host host1, local rank 0", "host host1, local rank 1"} {
		t.Run(strconv.Itoa(rank), func(t *testing.T) {
			t.Parallel()
			j, _ := running(t, netns.Options{})
			j.signal(rank, unix.SIGKILL)
			j.fails(afterDeath, 137, `rank `+strconv.Itoa(rank)+` failed first: killed by SIGKILL \(`+where+`, pid \d+\)`)
			for _, a := range j.agents {
				if strings.Contains(a.out.String(), "asked to stop") {
					t.Errorf("%s: workers have taken the failure for the user's wish:\n%s", a.host.Name, a.out)
				}
			}
		})
	}
}

// A rank that is stopped is named when the ranks' patience is over, which is
// comm.timeout; by the agent of its host where they take too long to say so.
func TestRankStopped(t *testing.T) {
	t.Parallel()
	for _, rank := range []int{0, 3} {
		t.Run(strconv.Itoa(rank), func(t *testing.T) {
			t.Parallel()
			j, _ := running(t, netns.Options{}, "comm.timeout=5s")
			j.signal(rank, unix.SIGSTOP)
			// It alone is named, whoever waits for whom.
			n := strconv.Itoa(rank)
			j.fails(afterSilence, 1, `rank \d waited \S+ for rank \d in [^;]+; rank `+n+` does not answer: it is stopped, gone or cut off(; rank \d on [^;]+)*; see `+
				`|rank `+n+` stopped answering: stopped \(T\) for (8|9|1\d)s`)
		})
	}
}

// The same without a short timeout: a stopped process is seen as such.
func TestRankStoppedUnderALongTimeout(t *testing.T) {
	t.Parallel()
	j, _ := running(t, netns.Options{})
	j.signal(2, unix.SIGSTOP)
	j.fails(afterSilence, 1, `rank 2\b.*stopped`)
}

func TestAgentKilled(t *testing.T) {
	t.Parallel()
	t.Run("node 1", func(t *testing.T) {
		t.Parallel()
		j, _ := running(t, netns.Options{})
		j.signalAgent(1, unix.SIGKILL)
		j.wait(afterSilence)
		j.agents[0].reports(t, 1, `node 1 \(host host1, ranks 2 to 3\) is lost`)
	})
	t.Run("node 0", func(t *testing.T) {
		t.Parallel()
		j, _ := running(t, netns.Options{})
		j.signalAgent(0, unix.SIGKILL)
		j.wait(afterSilence)
		j.agents[1].reports(t, 1, `node 0 \(host host0\) is lost`)
	})
}

// cut is a fault between the hosts that neither of them sees as a death.
func cut(t *testing.T, fault func(hosts []*netns.Host)) {
	t.Parallel()
	j, hosts := running(t, netns.Options{})
	fault(hosts)
	j.wait(afterSilence)
	j.agents[0].reports(t, 1, `node 1 \(host host1, ranks 2 to 3\) is lost`)
	j.agents[1].reports(t, 1, `node 0 \(host host0\) is lost`)
}

func TestLinkDown(t *testing.T) {
	t.Parallel()
	for node, name := range []string{"host0", "host1"} {
		t.Run(name, func(t *testing.T) { cut(t, func(hosts []*netns.Host) { hosts[node].Unplug() }) })
	}
}

func TestOneDirectionLost(t *testing.T) {
	t.Parallel()
	for _, d := range []netns.Direction{netns.Sent, netns.Received} {
		t.Run(string(d), func(t *testing.T) { cut(t, func(hosts []*netns.Host) { hosts[1].Lose(d, netns.All()) }) })
	}
}

// A host that loses its power says nothing more.
func TestHostCrashes(t *testing.T) {
	t.Parallel()
	for node, want := range []string{`node 0 \(host host0\) is lost`, `node 1 \(host host1, ranks 2 to 3\) is lost`} {
		t.Run("host"+strconv.Itoa(node), func(t *testing.T) {
			t.Parallel()
			j, hosts := running(t, netns.Options{})
			hosts[node].Unplug()
			hosts[node].Crash()
			j.wait(afterSilence)
			j.agents[1-node].reports(t, 1, want)
		})
	}
}

// The user's signal to one agent ends all hosts, and what was learnt is saved.
func TestUserStops(t *testing.T) {
	t.Parallel()
	for _, node := range []int{0, 1} {
		t.Run(strconv.Itoa(node), func(t *testing.T) {
			t.Parallel()
			hosts, output := netns.New(t, netns.Options{}), t.TempDir()
			j := start(t, launch{hosts: hosts, args: tiny(t, output, 1_000_000)})
			j.agents[0].await(t, "step +1/")
			j.signalAgent(node, unix.SIGINT)
			j.fails(afterDeath, 130, `ended by SIGINT`)
			saved, err := os.ReadDir(output + "/checkpoints")
			if err != nil || len(saved) == 0 {
				t.Errorf("no checkpoint: %v %v\n%s", saved, err, j.outputs())
			}
		})
	}
}
