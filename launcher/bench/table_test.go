package bench

import (
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// A flag that what was measured has no use for is named.
func TestFlagsWithoutUse(t *testing.T) {
	for _, c := range []struct {
		over string
		want string
	}{
		{"shm", ", no use for --interface and --ports and --chunk and --channels"},
		{"none", ", no use for --interface and --ports and --chunk and --channels"},
		{"rdma", ", chunk 64K, no use for --interface and --ports and --channels"},
		{"tcp", ", interface lo, ports 40000, chunk 64K, 2 channels"},
		{"shm+tcp", ", interface lo, ports 40000, chunk 64K, 2 channels"},
	} {
		r := &runner{dev: device.NewCPU(), o: small("allreduce"), found: found{transport: c.over}}
		w := &report{runners: []*runner{r}}
		if how := w.how(); how != "" {
			t.Errorf("%s: %q without a flag", c.over, how)
		}
		r.o.Interface, r.o.Ports, r.o.Chunk, r.o.Channels = "lo", "40000", 64<<10, 2
		if how := w.how(); how != c.want {
			t.Errorf("%s: %q, want %q", c.over, how, c.want)
		}
	}
}

// So is an algorithm that no call went by.
func TestAlgorithmThatThereIsNot(t *testing.T) {
	for _, c := range []struct {
		asked comm.Algorithm
		taken [2][]comm.Algorithm
		says  bool
	}{
		{comm.Auto, [2][]comm.Algorithm{{comm.Ring}}, false},
		{comm.Ring, [2][]comm.Algorithm{{comm.Ring, comm.Ring}}, false},
		{comm.Ring, [2][]comm.Algorithm{{comm.Shared}, {comm.Shared}}, true},
		{comm.Kernels, [2][]comm.Algorithm{nil, {comm.NCCL, comm.Kernels}}, false}, // GPUs take it where it can be had
		{comm.Ring, [2][]comm.Algorithm{{comm.TwoLevel}}, false},                   // within
	} {
		r := &runner{parsed: parsed{algo: c.asked}, o: small("allreduce"), found: found{algorithms: c.taken}}
		if got := r.instead(); (got != "") != c.says || c.says && got != "; allreduce has no ring here (--algo)" {
			t.Errorf("%s asked for, %v taken: %q", c.asked, c.taken, got)
		}
	}
}

// Of several things that are measured the one is named that the algorithm is of.
func TestAlgorithmOfSeveral(t *testing.T) {
	for _, c := range []struct {
		collective, dtype, op string
		every                 bool
		want                  string
	}{
		{"allreduce", "bf16", "max", false, ""},
		{"allreduce", "all", "max", false, "of bf16 max: "},
		{"allgather", "all", "sum", false, "of bf16: "},
		{"broadcast", "bf16", "sum", true, "of bf16 from rank 3: "},
	} {
		o := small(c.collective)
		o.DType, o.Op, o.EveryRoot = c.dtype, c.op, c.every
		parsed, err := o.parse()
		if err != nil {
			t.Fatal(err)
		}
		r := &runner{o: o, parsed: parsed, spec: spec{dtype.BF16, comm.Max, 3}}
		if got := r.which(); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A file that cannot be written is one error.
func TestOneErrorOfAFullDisk(t *testing.T) {
	_, errs := runRanks(t, 1, func(int) Options {
		o := small("allreduce")
		o.File = "/dev/full"
		return o
	})
	if err := errs[0]; err == nil || strings.Count(err.Error(), "no space left") != 1 {
		t.Errorf("%v, want one error", err)
	}
}
