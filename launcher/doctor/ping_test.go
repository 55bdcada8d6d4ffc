package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// Everybody plays everybody once, and both agree on when.
func TestTournament(t *testing.T) {
	for n := 1; n < 9; n++ {
		for host := range n {
			met := map[int]bool{}
			for round := range n {
				o := opponent(host, round, n)
				if opponent(o, round, n) != host || met[o] {
					t.Errorf("%d hosts, round %d: %d plays %d, who plays %d; met before: %t", n, round, host, o, opponent(o, round, n), met[o])
				}
				met[o] = true
			}
		}
	}
}

// All ports are tried with all hosts, each by its place; what fails is said by both.
func TestPings(t *testing.T) {
	var mu sync.Mutex
	tried := map[string]int{}
	r, _ := hold(t, 3, func(i int, m *Meeting) {
		f := newGPUs(t)
		f.Name = m.Machine.Name
		if i == 2 {
			f.variable("NCCL_IB_HCA", "mlx5_1:1,mlx5_2") // the others have more
		}
		m.Machine = f.Machine
		m.ping = func(_ context.Context, rank int, hosts [2]string, port string, keys rdma.Exchange) (float64, error) {
			mu.Lock()
			defer mu.Unlock()
			tried[fmt.Sprintf("%s %s-%s %d", port, hosts[0], hosts[1], rank)]++
			if port == "mlx5_1:1" && hosts[1] == "node1" {
				return 0, errors.New("no answer")
			}
			return 2.5, nil
		}
	})
	want := []string{
		"mlx5_0:1 node0-node1 0", "mlx5_1:1 node0-node1 0", "mlx5_2:1 node0-node1 0", "mlx5_0:1 node0-node1 1", "mlx5_1:1 node0-node1 1", "mlx5_2:1 node0-node1 1",
		"mlx5_0:1 node0-node2 0", "mlx5_1:1 node0-node2 0", "mlx5_1:1 node0-node2 1", "mlx5_2:1 node0-node2 1",
		"mlx5_0:1 node1-node2 0", "mlx5_1:1 node1-node2 0", "mlx5_1:1 node1-node2 1", "mlx5_2:1 node1-node2 1",
	}
	for _, w := range want {
		if tried[w] != 1 {
			t.Errorf("%s: tried %d times", w, tried[w])
		}
	}
	if len(tried) != len(want) || len(r.Pings) != len(want) {
		t.Errorf("tried %v, reported %+v", tried, r.Pings)
	}
	found := matching(r.Findings, `^mlx5_1:1 cannot exchange data with mlx5_1:1 of node[01] over RDMA`)
	if len(found) != 2 || found[0].Severity != Error || found[0].Where != (Where{Host: "node0", Device: "mlx5_1:1", Peer: "node1"}) || found[0].Evidence != "no answer" || found[1].Where.Host != "node1" {
		t.Errorf("%s", dump(r.Findings))
	}
}

func TestActivePorts(t *testing.T) {
	port := func(n int, state string) RDMAPort { return RDMAPort{Number: n, State: state} }
	devices := []RDMADevice{
		{Name: "mlx5_0", Verbs: "uverbs0", Ports: []RDMAPort{port(1, "4: ACTIVE"), port(2, "4: ACTIVE")}},
		{Name: "mlx5_10", Verbs: "uverbs1", Ports: []RDMAPort{port(1, "1: DOWN"), port(2, "4: ACTIVE")}},
		{Name: "mlx5_1", Ports: []RDMAPort{port(1, "4: ACTIVE")}}, // which cannot be opened
	}
	for chosen, want := range map[string]string{
		"": "mlx5_0:1 mlx5_0:2 mlx5_10:2", "mlx5_1": "mlx5_10:2", "=mlx5_1": "", "mlx5_0:2": "mlx5_0:2",
		"^mlx5_0": "mlx5_10:2", "^=mlx5_1": "mlx5_0:1 mlx5_0:2 mlx5_10:2", "=mlx5_10:2,mlx5_0:1": "mlx5_0:1 mlx5_10:2",
	} {
		if got := strings.Join(activePorts(devices, chosen), " "); got != want {
			t.Errorf("%q: %s, want %s", chosen, got, want)
		}
	}
}

// The real thing, between the first two ports of this host, and to one that never comes.
func TestPingOverRDMA(t *testing.T) {
	m := &Machine{Root: "/", Environ: os.Environ()}
	devices, err := m.rdmaDevices()
	if err != nil {
		t.Fatal(err)
	}
	ports := activePorts(devices, "")
	if len(ports) < 2 {
		testenv.Skip(t, "rdma", fmt.Sprintf("this host has %d active RDMA ports, and it takes two (.ci/rdma starts a guest that has)", len(ports)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	board := newMemory()
	hosts := [2]string{"a", "b"}
	var both sync.WaitGroup
	for rank := range 2 {
		both.Go(func() {
			micros, err := m.pingOver(ctx, rank, hosts, ports[rank], prefixed{board, "one/"})
			if err != nil || micros <= 0 {
				t.Errorf("rank %d: %.1f us, %v", rank, micros, err)
			}
			t.Logf("rank %d: %.1f us", rank, micros)
		})
	}
	both.Wait()
	short, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	if _, err := m.pingOver(short, 0, hosts, ports[0], prefixed{board, "two/"}); err == nil || !strings.Contains(err.Error(), "b") {
		t.Errorf("with a peer that never comes: %v", err)
	}
}
