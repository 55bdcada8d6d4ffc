package comm_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport/rdma/rdmatest"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// couriers carries what fake cards move from GPU to GPU: all but the card is real there,
// the streams that wait for words, the kernels, and the memory.
type couriers struct {
	mu     sync.Mutex // guards what follows
	gpus   []device.Buffer
	stream *cuda.Stream
}

// fabric is fake cards that register memory of the GPUs, as a module would have them.
func (c *couriers) fabric(t *testing.T) *verbs.API {
	f := rdmatest.New(t)
	inMemory := f.Move
	f.Move = func(to, from uintptr, n int) {
		if !c.onGPU(to) && !c.onGPU(from) {
			inMemory(to, from, n)
			return
		}
		if !c.onGPU(to) || !c.onGPU(from) {
			t.Errorf("%d bytes between a GPU and the host", n)
			return
		}
		c.stream.Copy(device.At(to, n), device.At(from, n))
		if err := c.stream.Synchronize(ctx); err != nil {
			t.Error(err)
		}
	}
	api := f.API()
	register := api.Register
	api.Register = func(pd verbs.PD, addr uintptr, n int, access verbs.Access) (verbs.Region, error) {
		if access&verbs.RemoteRead != 0 {
			c.mu.Lock()
			c.gpus = append(c.gpus, device.At(addr, n))
			c.mu.Unlock()
		}
		return register(pd, addr, n, access)
	}
	return api
}

func (c *couriers) onGPU(addr uintptr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.gpus {
		if addr >= b.Addr() && addr < b.Addr()+uintptr(b.Len()) {
			return true
		}
	}
	return false
}

// Real GPUs behind fake cards: every collective, type, operation and aliasing, and large
// arrays in the slots that they have. It is no test of a card.
func TestGPUDirectOnGPUs(t *testing.T) {
	hosts := []string{"a", "b"}
	needGPUs(t, len(hosts))
	devices := openGPUs(t, len(hosts))
	var c couriers
	on, err := devices[0].NewStream("courier")
	if err != nil {
		t.Fatal(err)
	}
	c.stream = on.(*cuda.Stream)
	for i, d := range devices {
		gpu := d.(*cuda.Device)
		ordering, err1 := gpu.Attribute(cuda.WritesOrdering)
		options, err2 := gpu.Attribute(cuda.FlushOptions)
		bus, err3 := gpu.BusID()
		t.Logf("%s at %s: ordering of writes %d, flush options %d; %v", d, bus, ordering, options, fmt.Sprint(err1, err2, err3))
		if i == 0 && options&1 != 0 {
			if err := gpu.FlushWrites(); err != nil {
				t.Error(err)
			}
		}
	}
	o := comm.Options{Engine: "ring", Transport: "rdma", Timeout: time.Minute}
	o.OverCards(c.fabric(t), peermem(t))
	groups, err := comm.LocalOn(hosts, optionsOf(devices, o)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { commtest.Close(groups) })
	wholeMatrix(t, groups, devices, 0, 1, 13, 4097, 1<<17, 1<<20+3)
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		const count, rounds = 16 << 20, 4
		x, err := g.Alloc(4 * count)
		if err != nil {
			return err
		}
		if err := sumLarge(g, s, x, make([]int32, 1<<20)); err != nil {
			return err
		}
		begin := time.Now()
		for range rounds {
			g.AllReduce(s, x, dtype.F32, comm.Sum)
		}
		enqueued := time.Since(begin)
		if err := s.Synchronize(ctx); err != nil {
			return err
		}
		t.Logf("rank %d: %d sums of 64 MB enqueued in %s, done after %s", g.Rank(), rounds, enqueued, time.Since(begin))
		return nil
	})
	t.Log(groups[0].GPUEngine())
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
	if err := c.stream.Close(); err != nil {
		t.Error(err)
	}
}
