package comm_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// chunk is small, so that small arrays take several messages.
const chunk = 512

func tryAll(t *testing.T, groups []*comm.Group, more ...commtest.Case) {
	t.Helper()
	commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
		for _, c := range append(commtest.Cases(g.Size(), 0, 1, 13, chunk/4+1, 3*chunk), more...) {
			if err := commtest.Collectives(context.Background(), g, s, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// Every transport, algorithm, number of ranks, size, type, operation and aliasing.
func TestCollectives(t *testing.T) {
	commtest.CheckLeaks(t)
	for _, n := range []int{1, 2, 3, 4, 7} {
		for _, o := range []comm.Options{
			{Transport: "local", Algo: comm.OneShot}, {Transport: "local", Algo: comm.Direct},
			{Transport: "local", Algo: comm.Ring}, {Transport: "local", Algo: comm.Doubling},
			{Transport: "local", Algo: comm.Tree}, {Transport: "local", Algo: comm.Chain},
			{Transport: "tcp"}, {Transport: "tcp", Algo: comm.Ring, Conns: 3},
			{Transport: "shm"},
		} {
			o.Chunk = chunk
			t.Run(fmt.Sprintf("%s%s/%d", o.Transport, o.Algo, n), func(t *testing.T) {
				tryAll(t, commtest.Groups(t, n, o))
			})
		}
	}
}

// Hosts with several ranks, some with fewer than others, in any order.
func TestCollectivesOfTwoLevels(t *testing.T) {
	commtest.CheckLeaks(t)
	for _, hosts := range []string{"a b", "a a b", "a b a b", "a a b b", "a b c a b a a"} {
		t.Run(strings.ReplaceAll(hosts, " ", ""), func(t *testing.T) {
			groups, err := comm.LocalOn(strings.Fields(hosts), comm.Options{Chunk: chunk})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { commtest.Close(groups) })
			// Arrays that are worth more than one lane, and that divide by the ranks or not.
			tryAll(t, groups, commtest.Case{Count: 1 << 15, DType: dtype.F32, Op: comm.Avg, InPlace: true},
				commtest.Case{Count: 1<<16 + 1, DType: dtype.BF16, Op: comm.Sum})
		})
	}
}

// Megabytes, with the chunks and algorithms that are used by default.
func TestLargeCollectives(t *testing.T) {
	commtest.CheckLeaks(t)
	for _, tr := range []string{"local", "tcp", "shm"} {
		for _, n := range []int{2, 3} {
			t.Run(fmt.Sprintf("%s/%d", tr, n), func(t *testing.T) {
				groups := commtest.Groups(t, n, comm.Options{Transport: tr})
				commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
					c := commtest.Cases(n, 1<<18+3)[g.Size()%2] // f32 or f64
					return commtest.Collectives(context.Background(), g, s, c)
				})
			})
		}
	}
}
