package comm

import (
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/tune"
)

// Typical figures choose what was fastest on two H200, at the sizes where one way is faster
// than the others by more than a tenth (docs/benchmarks/gpu-peers.md); and over PCIe copies
// for what is large.
func TestTypicalFiguresOfGPUs(t *testing.T) {
	under := gpuEngine(&overNCCL{})
	for _, c := range []struct {
		kind            transport.Kind
		size            int
		copies, inPlace bool
		under           gpuEngine
		nvlink, pcie    Algorithm
	}{
		{transport.Barrier, 0, false, false, under, Kernels, Kernels},
		{transport.AllReduce, 0, true, true, under, Kernels, Kernels},
		{transport.AllReduce, 1 << 10, true, true, under, Kernels, Kernels},
		{transport.AllReduce, 1 << 20, true, true, under, Kernels, CopyEngines},
		{transport.AllReduce, 16 << 20, true, true, under, InPlace, CopyEngines},
		{transport.AllReduce, 1 << 30, true, true, under, InPlace, CopyEngines},
		{transport.AllReduce, 4 << 20, false, false, under, Kernels, NCCL},
		{transport.AllReduce, 256 << 20, false, false, under, NCCL, NCCL},
		{transport.AllReduce, 256 << 20, false, false, nil, Kernels, Kernels},
		{transport.AllReduce, 256 << 20, false, true, nil, InPlace, Kernels},
		{transport.ReduceScatter, 4 << 20, true, true, under, Kernels, CopyEngines},
		{transport.ReduceScatter, 64 << 20, true, true, under, InPlace, CopyEngines},
		{transport.AllGather, 4 << 20, true, false, under, Kernels, CopyEngines},
		{transport.AllGather, 64 << 20, true, false, under, CopyEngines, CopyEngines},
		{transport.AllGather, 256 << 20, false, false, under, NCCL, NCCL},
		{transport.Broadcast, 64 << 20, true, false, nil, CopyEngines, CopyEngines},
		{transport.Reduce, 1 << 10, false, false, under, Kernels, Kernels},
		{transport.Gather, 1 << 10, false, false, nil, Kernels, Kernels},
	} {
		for costs, want := range map[*ways]Algorithm{&overNVLink: c.nvlink, &overPCIe: c.pcie} {
			b := &byPeers{under: c.under, costs: *costs, tuned: &tuning{}, size: 2}
			s := gpuSized{sized{c.kind, c.size}, c.copies, c.inPlace}
			got := b.pick(s)
			if got.algorithm != want {
				t.Errorf("NVLink %t: %s of %d bytes, copies %t, in place %t, NCCL %t: %s, want %s", costs == &overNVLink, c.kind, c.size, c.copies, c.inPlace, c.under != nil, got.algorithm, want)
			}
			if got.predicted <= 0 {
				t.Errorf("%s of %d bytes is expected to take %s", c.kind, c.size, got.predicted)
			}
		}
	}
}

// What was measured corrects the figures of its own collective and way alone, and an option
// goes before both, where there is such a way.
func TestMeasuredFiguresOfGPUs(t *testing.T) {
	b := &byPeers{costs: overNVLink, tuned: &tuning{}, size: 2}
	large := gpuSized{sized{transport.AllReduce, 64 << 20}, true, true}
	expected := b.costs.expected(large.kind, CopyEngines, 2, large.size)
	b.tuned.table.Store(tune.New([]tune.Point{{Call: "gpu AllReduce", Algorithm: "copy-engines", Bytes: large.size, Expected: expected, Seconds: expected / 2}}))
	if got, want := b.pick(large), (pick{CopyEngines, time.Duration(expected / 2 * 1e9)}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	scatter := large
	scatter.kind = transport.ReduceScatter
	if got := b.pick(scatter); got.algorithm != InPlace {
		t.Errorf("%+v for a ReduceScatter, of which nothing was measured", got)
	}
	for algo, want := range map[Algorithm]Algorithm{Kernels: Kernels, InPlace: InPlace, NCCL: CopyEngines, Ring: CopyEngines} {
		b.algo = algo
		if got := b.pick(large); got.algorithm != want {
			t.Errorf("%s wanted: %+v, want %s", algo, got, want)
		}
	}
}
