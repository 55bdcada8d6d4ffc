package comm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// stagedOn makes a group of fake GPUs, one for each of the hosts named, with engine ring,
// whose memory goes through the hosts'.
func stagedOn(t *testing.T, hosts string, o comm.Options) (*machine, []*comm.Group) {
	t.Helper()
	names := strings.Fields(hosts)
	m := newMachine(t, len(names))
	comm.EmulateStreams(t, m.driver)
	if o.Engine == "" {
		o.Engine = "ring"
	}
	groups, err := comm.LocalOn(names, m.options(o)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { commtest.Close(groups) })
	return m, groups
}

// Every collective, type, operation and aliasing, over tcp, over shared memory, and over
// both.
func TestStagedCollectives(t *testing.T) {
	for _, c := range []struct{ hosts, over string }{{"a b", "tcp"}, {"a b c", "tcp"}, {"a a b", "tcp"}, {"a a", "shared memory"}} {
		t.Run(strings.ReplaceAll(c.hosts, " ", ""), func(t *testing.T) {
			m, groups := stagedOn(t, c.hosts, comm.Options{})
			n := len(groups)
			commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
				for _, c := range append(commtest.Cases(n, 0, 1, 13), commtest.Case{Count: 300, DType: dtype.F32, Op: comm.Avg, InPlace: true}) {
					if err := commtest.Collectives(ctx, g, s, c); err != nil {
						return err
					}
				}
				return nil
			})
			want := fmt.Sprintf("staged in pinned memory of the host, over %s, %d ranks", c.over, n)
			if got := groups[0].GPUEngine(); got != want || strings.Count(m.log.String(), want) != 1 {
				t.Errorf("the engine is %q, want %q; logged:\n%s", got, want, m.log)
			}
			if err := commtest.Close(groups); err != nil {
				t.Error(err)
			}
		})
	}
}
