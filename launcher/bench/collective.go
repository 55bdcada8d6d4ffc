package bench

import (
	"fmt"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
)

// collective is what the benchmark has to know of one. W is the number of ranks,
// a part is count elements.
type collective struct {
	name             string
	reduces, rooted  bool
	manySrc, manyDst bool // src, dst hold W parts instead of one
	outOfPlace       bool // there is a form with dst apart from src
	inPlace          bool // there is a form with dst within src, or src within dst
	// bus turns the size over the time into what a link carries.
	bus func(w float64) float64
	// origin says what part p of rank's dst holds: elements of rank from's src,
	// starting at element at. from is -1 for the reduction over all ranks.
	origin func(rank, p, count, root int) (from, at int)
	call   func(r *runner, dst, src device.Buffer) *comm.Work
}

func (c *collective) parts() bool { return c.manySrc || c.manyDst }

var collectives = []*collective{
	{
		name: "allreduce", reduces: true, outOfPlace: true, inPlace: true,
		bus:    func(w float64) float64 { return 2 * (w - 1) / w },
		origin: func(_, _, _, _ int) (int, int) { return -1, 0 },
		call: func(r *runner, dst, src device.Buffer) *comm.Work {
			return r.group.AllReduceInto(r.stream, dst, src, r.dt, r.op)
		},
	},
	{
		name: "reducescatter", reduces: true, manySrc: true, outOfPlace: true, inPlace: true,
		bus:    shareOfOthers,
		origin: func(rank, _, count, _ int) (int, int) { return -1, rank * count },
		call: func(r *runner, dst, src device.Buffer) *comm.Work {
			return r.group.ReduceScatter(r.stream, dst, src, r.dt, r.op)
		},
	},
	{
		name: "allgather", manyDst: true, outOfPlace: true, inPlace: true,
		bus:    shareOfOthers,
		origin: func(_, p, _, _ int) (int, int) { return p, 0 },
		call: func(r *runner, dst, src device.Buffer) *comm.Work {
			return r.group.AllGather(r.stream, dst, src, r.dt)
		},
	},
	{
		name: "broadcast", rooted: true, inPlace: true,
		bus:    func(float64) float64 { return 1 },
		origin: func(_, _, _, root int) (int, int) { return root, 0 },
		call: func(r *runner, dst, _ device.Buffer) *comm.Work {
			return r.group.Broadcast(r.stream, dst, r.dt, r.root)
		},
	},
	{
		name: "alltoall", manySrc: true, manyDst: true, outOfPlace: true,
		bus:    shareOfOthers,
		origin: func(rank, p, count, _ int) (int, int) { return p, rank * count },
		call: func(r *runner, dst, src device.Buffer) *comm.Work {
			return r.group.AllToAll(r.stream, dst, src, r.dt)
		},
	},
}

// shareOfOthers is the share of the full array that is not a rank's own.
func shareOfOthers(w float64) float64 { return (w - 1) / w }

// Names lists the collectives that can be measured.
func Names() []string {
	var names []string
	for _, c := range collectives {
		names = append(names, c.name)
	}
	return names
}

func find(name string) (*collective, error) {
	for _, c := range collectives {
		if c.name == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("unknown collective %q: want one of %s", name, strings.Join(Names(), ", "))
}
