package comm

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// Where a rank is: at its GPU, whatever the address is spelt like, or on the one NUMA
// node on which it may run; else nowhere, and it says why.
func TestSpots(t *testing.T) {
	dgx, one, hidden := topologytest.DGXH100(t).System(), topologytest.NoGPU(t).System(), topologytest.CloudVM(t).System()
	for what, c := range map[string]struct {
		got  rdma.Spot
		of   topology.Node
		says string
	}{
		"a GPU":            {spotOfGPU(dgx, "00000000:33:00.0"), dgx.GPUs[2], "GPU 0000:33:00.0"},
		"a GPU elsewhere":  {spotOfGPU(dgx, "0000:99:00.0"), nil, "where GPU 0000:99:00.0 is, /sys does not show"},
		"bound":            {spotOfCores(dgx, []int{60, 61}), dgx.CPUs[1], "NUMA node 1, to which the process is bound"},
		"not bound":        {spotOfCores(dgx, []int{3, 60}), nil, "may run on several NUMA nodes"},
		"one node":         {spotOfCores(one, []int{0}), nil, "the host one NUMA node"},
		"a GPU of a guest": {spotOfGPU(hidden, "0000:00:05.0"), hidden.GPUs[1], "GPU 0000:00:05.0"},
	} {
		if c.got.Of != c.of || !strings.Contains(c.got.Why, c.says) {
			t.Errorf("%s: %+v, want one that says %q", what, c.got, c.says)
		}
	}
}

// comm.topo_file and NCCL_TOPO_FILE say where a host's devices are, the option first; one
// that cannot be read is told, and is no place.
func TestSpotByAFile(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "host.xml")
	if err := os.WriteFile(good, []byte(topologytest.DGXH100(t).System().XML()), 0o644); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(dir, "absent.xml")
	t.Setenv("NCCL_TOPO_FILE", absent)
	if got := (&Options{}).spot(); got.Of != nil || !strings.Contains(got.Why, absent) {
		t.Errorf("by the variable: %+v", got)
	}
	if got := (&Options{TopoFile: good}).spot(); strings.Contains(got.Why, "absent") {
		t.Errorf("by the option: %+v", got)
	}
}

// Ports are looked for where RDMA may be taken, by goroutines as ranks too.
func TestWhoLooksForRDMA(t *testing.T) {
	for what, c := range map[string]struct {
		o    Options
		want bool
	}{
		"rdma": {Options{Transport: "rdma"}, true}, "auto": {Options{Transport: "auto"}, true}, "tcp": {Options{Transport: "tcp"}, false},
		"rdma in a process": {Options{Transport: "rdma", hub: newHub()}, true}, "auto in a process": {Options{Transport: "auto", hub: newHub()}, false},
	} {
		var me member
		if c.o.lookForRDMA(&me); (len(me.RDMA.Ports) > 0 || me.NoRDMA != "") != c.want {
			t.Errorf("%s: %+v", what, me)
		}
	}
}

// Each host shares out its own ports, on all of its ranks alike, of what has travelled.
func TestPortsOfHosts(t *testing.T) {
	near := func(ports ...string) rdma.Near {
		return rdma.Near{Ports: ports, Path: topology.PIX, Why: "nearest to GPU 0000:33:00.0"}
	}
	sent := []member{{RDMA: near("a:1", "b:1")}, {RDMA: near("a:1")}, {RDMA: near("a:1", "b:1")}, {NoRDMA: "none"}, {RDMA: near("a:1", "b:1")}}
	b, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var members []member
	if err := json.Unmarshal(b, &members); err != nil || !reflect.DeepEqual(members, sent) {
		t.Fatalf("%+v have become %+v, %v", sent, members, err)
	}
	hosts := [][]int{{0, 2, 4}, {1, 3}}
	for rank, want := range []string{"a:1", "a:1", "b:1", "", "a:1"} {
		g := &Group{o: Options{Rank: rank}, members: members}
		if got := g.port(hosts); got != want {
			t.Errorf("rank %d takes %q, want %q", rank, got, want)
		}
	}
}

// The choice is logged once for each rank of a job: not for what else goes the same way.
func TestChoiceOfPortIsLogged(t *testing.T) {
	var text bytes.Buffer
	g := &Group{o: Options{Rank: 1, Host: "h", Name: "world", Logger: slog.New(slog.NewTextHandler(&text, nil))}}
	g.members = []member{{}, {RDMA: rdma.Near{Path: topology.PXB, Why: "nearest to GPU 0000:33:00.0"}}}
	g.tellPort("mlx5_2:1", &wires{})
	part := &Group{o: g.o, members: g.members}
	part.o.tuned = &tuned{}
	part.tellPort("mlx5_2:1", &part.wires)
	g.tellPort("", &g.wires) // the error that follows says why there is none
	if text.Len() > 0 {
		t.Errorf("logged: %s", &text)
	}
	g.tellPort("mlx5_2:1", &g.wires)
	if want := `level=INFO msg="comm: RDMA port" group=world rank=1 host=h port=mlx5_2:1 path=PXB why="nearest to GPU 0000:33:00.0"`; !strings.Contains(text.String(), want) {
		t.Errorf("logged: %s, want %s", &text, want)
	}
}
