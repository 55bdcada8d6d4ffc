package hosttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// faultVariable makes this test's binary the program that gorun starts. Its value
// says what goes wrong, and on which rank: "panic 3".
const faultVariable = "GORUN_HOSTTEST_FAULT"

// faults are what may go wrong in round 20 of the program.
var faults = map[string]func(g *comm.Group, s device.Stream){
	"none":  func(*comm.Group, device.Stream) {},
	"panic": func(*comm.Group, device.Stream) { panic("deliberate") },
	"exit3": func(*comm.Group, device.Stream) { fmt.Fprintln(os.Stderr, "no more"); os.Exit(3) },
	"exit0": func(*comm.Group, device.Stream) { os.Exit(0) },
	"hang":  func(*comm.Group, device.Stream) { select {} },
	"other": func(g *comm.Group, s device.Stream) { g.Broadcast(s, device.Of(make([]float32, 7)), dtype.F32, 0) },
}

// program sums numbers over all ranks, 40 times.
func program() {
	if err := sumUp(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func sumUp() error {
	ctx := context.Background()
	kind, victim, _ := strings.Cut(os.Getenv(faultVariable), " ")
	timeout := time.Minute
	if kind == "hang" { // which nothing else ends
		timeout = 10 * time.Second
	}
	g, err := comm.Join(ctx, comm.Options{Timeout: timeout})
	if err != nil {
		return err
	}
	s := device.NewCPUStream("sums", nil)
	numbers := make([]float32, 100_003)
	for round := range 40 {
		if round == 20 && victim == os.Getenv("RANK") {
			faults[kind](g, s)
		}
		for i := range numbers {
			numbers[i] = float32(g.Rank() + i%7 + round)
		}
		g.AllReduce(s, device.Of(numbers), dtype.F32, comm.Sum)
		if err := s.Synchronize(ctx); err != nil {
			return err
		}
		n := g.Size()
		for i, got := range numbers {
			if want := float32(n*(n-1)/2 + n*(i%7+round)); got != want {
				return fmt.Errorf("rank %d, round %d: sum %d is %v, want %v", g.Rank(), round, i, got, want)
			}
		}
	}
	fmt.Println("all 40 sums are right")
	return errors.Join(s.Close(), g.Close())
}

func TestProgramFails(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for fault, c := range map[string]struct {
		code   int
		report string
	}{
		"panic 3": {2, `rank 3 failed first: exit status 2 \(host host1, local rank 1, pid \d+\): panic: deliberate; see `},
		"exit3 0": {3, `rank 0 failed first: exit status 3 \(host host0, local rank 0, pid \d+\): no more; see `},
		"exit0 1": {1, `rank 1 on host0`},
		"exit0 2": {1, `rank 2 on host1`},
		"hang 2":  {1, `rank 2 on host1`},
		"other 1": {1, `rank 1 called Broadcast\(f32, 7, root 0\) #21\b.*every rank must make the same calls`},
		"none":    {},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			// The race detector, where this test is built with it, otherwise holds a process
			// that ends for a second.
			env := []string{faultVariable + "=" + fault, "GORACE=atexit_sleep_ms=0"}
			j := start(t, launch{hosts: netns.New(t, netns.Options{}), args: []string{"--", self}, env: env})
			if fault == "none" {
				j.succeeds(patience)
				for _, a := range j.agents {
					if n := strings.Count(a.out.String(), "all 40 sums are right"); n != 2 {
						t.Errorf("%s: %d ranks are done:\n%s", a.host.Name, n, a.out)
					}
				}
				return
			}
			j.fails(afterSilence, c.code, c.report)
		})
	}
}

// A host's name means loopback on that host; what other hosts are told is its
// address.
func TestHostNames(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{Hosts: 3, Decoys: true})
	j := start(t, launch{
		hosts: hosts, nproc: []int{1, 2, 1}, rdzv: "host0:29400",
		args: []string{"--", "sh", "-c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $(hostname) $MASTER_ADDR $GORUN_STORE"},
	})
	j.succeeds(patience)
	at := hosts[0].Addr.String()
	for i, want := range [][]string{{"0/4 0/1 host0"}, {"1/4 0/2 host1", "2/4 1/2 host1"}, {"3/4 0/1 host2"}} {
		for _, line := range want {
			if line += " " + at + " " + net.JoinHostPort(at, "29400"); !strings.Contains(j.agents[i].out.String(), line) {
				t.Errorf("host%d: no %q in:\n%s", i, line, j.agents[i].out)
			}
		}
	}
}
