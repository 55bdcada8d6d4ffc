package comm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// A description of the host that NCCL would not take is refused by name, before
// anybody meets; one that it takes does not change what is computed.
func TestTopoFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.xml", topologytest.CloudVM(t).System().XML())
	for path, want := range map[string]string{
		filepath.Join(dir, "absent.xml"):                 "absent.xml: no such file or directory",
		write("broken.xml", `<system version="1"><cpu>`): "broken.xml is no topology in NCCL's format: line 1: the file ends within <cpu> of line 1",
		write("old.xml", `<system version="0"/>`):        `old.xml is no topology in NCCL's format: line 1: <system> has version "0", want 1`,
	} {
		_, err := comm.New(ctx, comm.Options{Size: 1, Store: struct{ comm.Store }{}, TopoFile: path})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want ... %s", path, err, want)
		}
	}
	m := newMachine(t, 2)
	groups := m.groups(t, comm.Options{TopoFile: good})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		return commtest.Collectives(ctx, g, s, commtest.Cases(2, 17)[0])
	})
}
