package comm

import (
	"errors"
	"testing"

	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Sums on other streams than the one before wait for it, and those on the same do not.
func TestCopiesKeepTheirOrder(t *testing.T) {
	driver := cudatest.Fake(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	streams := make([]*cuda.Stream, 2)
	for i := range streams {
		s, err := d.NewStream("comm")
		if err != nil {
			t.Fatal(err)
		}
		streams[i] = s.(*cuda.Stream)
	}
	var o order
	waits := 0
	for i, on := range []int{0, 0, 1, 1, 0, 1} {
		enqueued := 0
		switches := i > 0 && streams[on] != o.stream
		if err := o.on(streams[on], func() error {
			enqueued = driver.Calls("cuStreamWaitEvent")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if switches {
			waits++
		}
		if enqueued != waits {
			t.Errorf("sum %d was enqueued behind %d waits, want %d", i, enqueued, waits)
		}
	}
	if n := driver.Live()["events"]; n > 2 {
		t.Errorf("%d events are alive after 6 sums", n)
	}
	broken := errors.New("a peer is gone")
	streams[1].Fail(broken)
	if err := o.on(streams[0], streams[0].Err); !errors.Is(err, broken) {
		t.Errorf("a sum behind one on a failed stream has the error %v", err)
	}
}

// Kernels stand back where NCCL can make the call, and make what nobody else can.
func TestKernelsBesideNCCL(t *testing.T) {
	kernelsBesideNCCL = false
	defer func() { kernelsBesideNCCL = true }()
	small := &call{Call: transport.Call{Header: transport.Header{Kind: transport.AllReduce, Op: Sum, DType: dtype.F32, Count: 256}}}
	for _, c := range []struct {
		under gpuEngine
		want  Algorithm
	}{{new(overNCCL), ""}, {nil, Kernels}} {
		b := &byPeers{under: c.under, size: 2, team: new(dma.Team)}
		if got := b.choose(small); got != c.want {
			t.Errorf("over %T: %q, want %q", c.under, got, c.want)
		}
	}
}
