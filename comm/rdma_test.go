package comm_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// needRDMA skips the test where there is no RDMA device, real or emulated. .ci/rdma
// runs these tests in a guest that has two.
func needRDMA(t *testing.T) {
	t.Helper()
	if _, err := rdma.Usable(nil, rdma.Settings{}); err != nil {
		testenv.Skip(t, "rdma", err.Error())
	}
}

// The matrix of the other transports, over RDMA.
func TestCollectivesOverRDMA(t *testing.T) {
	needRDMA(t)
	commtest.CheckLeaks(t)
	for _, n := range []int{1, 2, 3} {
		for _, o := range []comm.Options{{}, {Algo: comm.Ring, RDMA: rdma.Settings{QPs: 1}}} {
			o.Transport, o.Chunk = "rdma", chunk
			t.Run(fmt.Sprintf("rdma%s/%d", o.Algo, n), func(t *testing.T) {
				tryAll(t, commtest.Groups(t, n, o))
			})
		}
	}
}

// Megabytes, in memory that is registered and in memory that is not.
func TestLargeCollectivesOverRDMA(t *testing.T) {
	needRDMA(t)
	commtest.CheckLeaks(t)
	groups := commtest.Groups(t, 2, comm.Options{Transport: "rdma"})
	commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
		for _, c := range []commtest.Case{{Count: 1<<18 + 3, DType: dtype.F32, Op: comm.Avg}, {Count: 1 << 18, DType: dtype.BF16, InPlace: true}} {
			if err := commtest.Collectives(context.Background(), g, s, c); err != nil {
				return err
			}
		}
		return nil
	})
	commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
		const n = 1 << 19
		b, err := g.Alloc(4 * n)
		if err != nil {
			return err
		}
		x := device.View[float32](b)
		for i := range x {
			x[i] = float32(i%1000 + g.Rank())
		}
		if err := g.AllReduce(s, b, dtype.F32, comm.Sum).Wait(context.Background()); err != nil {
			return err
		}
		for i, v := range x {
			if v != float32(2*(i%1000)+1) {
				return fmt.Errorf("element %d is %v", i, v)
			}
		}
		return nil
	})
}

// auto takes RDMA between hosts where every rank has a port for it.
func TestRDMABetweenHosts(t *testing.T) {
	needRDMA(t)
	commtest.CheckLeaks(t)
	for _, hosts := range []string{"a b", "a a b"} {
		t.Run(strings.ReplaceAll(hosts, " ", ""), func(t *testing.T) {
			groups, err := comm.LocalOn(strings.Fields(hosts), comm.Options{Chunk: chunk})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { commtest.Close(groups) })
			commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
				for _, c := range append(commtest.Cases(g.Size(), 13), commtest.Case{Count: 1 << 14, DType: dtype.F32, InPlace: true}) {
					if err := commtest.Collectives(context.Background(), g, s, c); err != nil {
						return err
					}
				}
				return nil
			})
			for _, g := range groups {
				if w := g.Stats().Wires; w[len(w)-1].Transport != "rdma" || w[len(w)-1].Sent == 0 {
					t.Errorf("rank %d moved data over %+v", g.Rank(), w)
				}
			}
		})
	}
}
