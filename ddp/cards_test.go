package ddp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/store"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/arith"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// card is one rank of a test, with a GPU of its own.
type card struct {
	t             *testing.T
	ctx           context.Context
	rank, size    int
	group         Group
	dev           *cuda.Device
	compute, comm *cuda.Stream
	arith         *arith.Arith
	params        []*param.Param
	ddp           *DDP
	inputs        map[[3]int]tensor.Tensor // f32, see input
	memory        []device.Buffer
}

// model is what the tests on GPUs train: odd sizes, and some that fill a bucket.
func model() []*param.Param {
	params := list("embed", 300007, "a.w", 12, "a.b", 3, "b.w", 33000, "b.b", 1, "frozen", 8, "head", 70001)
	params[5].Frozen = true
	return params
}

// three makes three buckets of model.
func three(dt dtype.DType) PlanOptions {
	return PlanOptions{FirstBucket: 64 << 10, BucketCap: 96, GradDType: dt}
}

// cards runs do on n ranks, each with a GPU of this host, and waits for all.
func cards(t *testing.T, n int, do func(c *card)) {
	t.Helper()
	if have, err := cuda.Count(); err != nil {
		testenv.Skip(t, "gpu", err.Error())
	} else if have < n {
		testenv.Skip(t, fmt.Sprintf("gpu:%d", n), fmt.Sprintf("this host has %d", have))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := store.Serve(l, store.ServerOptions{Token: t.Name()})
	defer server.Close()
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			c := &card{t: t, ctx: ctx, rank: r, size: n, params: model(), inputs: map[[3]int]tensor.Tensor{}}
			if err := errors.Join(c.run(server.Addr().String(), do)...); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
}

// run makes what a rank has, calls do, and releases it again.
func (c *card) run(storeAt string, do func(c *card)) (errs []error) {
	check := func(err error) bool {
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	var err error
	if c.dev, err = cuda.Open(c.rank); !check(err) {
		return
	}
	defer func() { check(c.dev.Close()) }()
	client, err := store.Dial(c.ctx, storeAt, store.Options{Token: c.t.Name(), Job: c.t.Name()})
	if !check(err) {
		return
	}
	defer client.Close()
	group, err := comm.New(c.ctx, comm.Options{Rank: c.rank, Size: c.size, Store: client, Device: c.dev, Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	if !check(err) {
		return
	}
	defer func() { check(group.Close()) }()
	c.group = group
	if c.compute, err = c.dev.NewPriorityStream("compute", false); !check(err) {
		return
	}
	defer func() { check(c.compute.Close()) }()
	if c.comm, err = c.dev.NewPriorityStream("comm", true); !check(err) {
		return
	}
	defer func() { check(c.comm.Close()) }()
	if c.arith, err = arith.New(c.dev); !check(err) {
		return
	}
	defer func() {
		check(c.arith.Close())
		for _, b := range c.memory {
			check(c.dev.Free(b))
		}
	}()
	do(c)
	if c.t.Failed() {
		group.Abort(errors.New("the test has failed"))
	}
	c.close()
	return
}

// close ends c's DDP, if it has one.
func (c *card) close() {
	if c.ddp != nil {
		c.ok("compute stream", c.compute.Synchronize(c.ctx))
		c.ok("communication stream", c.comm.Synchronize(c.ctx))
		c.ok("Close", c.ddp.Close())
		c.ddp = nil
	}
}

func (c *card) ok(what string, err error) bool {
	if err != nil {
		c.t.Errorf("rank %d: %s: %v", c.rank, what, err)
		c.group.Abort(err)
	}
	return err == nil
}

// start makes c's DDP in place of the one before.
func (c *card) start(g Group, o Options) bool {
	c.close()
	d, err := New(c.ctx, g, c.compute, c.comm, c.params, o)
	c.ddp = d
	return c.ok("New", err)
}

func (c *card) alloc(dt dtype.DType, shape ...int) tensor.Tensor {
	x, err := tensor.Alloc(c.dev, dt, shape...)
	if err != nil {
		panic(err) // there is room for the few MB that tests take
	}
	c.memory = append(c.memory, x.Buf)
	return x
}

// input is f32 values for parameter i on the device, written before anything that
// the compute stream does next, and the same in later calls.
func (c *card) input(i, step, micro int, value func(e int) float32) tensor.Tensor {
	key := [3]int{i, step, micro}
	if x, ok := c.inputs[key]; ok {
		return x
	}
	x := c.alloc(dtype.F32, c.params[i].Shape...)
	values := make([]float32, x.Numel())
	for e := range values {
		values[e] = value(e)
	}
	c.compute.Copy(x.Buf, device.Of(values))
	c.ok("upload", c.compute.Synchronize(c.ctx))
	c.inputs[key] = x
	return x
}

// give is a backward pass's part for parameter i.
func (c *card) give(i int, value tensor.Tensor) {
	grad, add := c.ddp.Get(c.params[i])
	if grad.Buf.Addr()%256 != 0 {
		c.t.Errorf("rank %d: the gradient of %s lies at %#x", c.rank, c.params[i].Name, grad.Buf.Addr())
	}
	if add {
		c.arith.Add(c.compute, grad, value)
	} else {
		c.arith.Convert(c.compute, grad, value)
	}
	c.ddp.Ready(c.params[i])
}

// read is x's elements behind the compute stream.
func (c *card) read(x tensor.Tensor) []float64 {
	host := tensor.New(device.Host(make([]byte, x.Buf.Len())), x.DType, x.Shape...)
	c.compute.Copy(host.Buf, x.Buf)
	c.ok("compute stream", c.compute.Synchronize(c.ctx))
	return elements(host)
}

// holds checks every element of a gradient.
func (c *card) holds(what string, grad tensor.Tensor, want func(e int) float64) {
	c.t.Helper()
	if grad.None() {
		c.t.Errorf("rank %d: %s: no gradient", c.rank, what)
		return
	}
	wrong := 0
	for e, got := range c.read(grad) {
		if !(got == want(e)) {
			if wrong++; wrong <= 3 {
				c.t.Errorf("rank %d: %s: %v[%d] is %v, want %v", c.rank, what, grad, e, got, want(e))
			}
		}
	}
	if wrong > 3 {
		c.t.Errorf("rank %d: %s: %d of %d elements are wrong", c.rank, what, wrong, grad.Numel())
	}
}

// spinText makes a kernel that keeps its stream busy for so many nanoseconds.
const spinText = `
extern "C" __global__ void spin(unsigned long long ns) {
	unsigned long long start, now;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < ns);
}`

// spinner delays streams of one device.
type spinner struct{ f *cuda.Function }

func (c *card) spinner() spinner {
	m, err := nvrtc.Module(c.dev, "spin.cu", spinText)
	if !c.ok("spin.cu", err) {
		return spinner{}
	}
	f, err := m.Function("spin")
	c.ok("spin", err)
	return spinner{f}
}

func (s spinner) spin(on *cuda.Stream, d time.Duration) {
	one := cuda.Dim{X: 1}
	args := struct{ ns uint64 }{uint64(d)}
	cuda.Launch(on, s.f, cuda.Grid{Blocks: one, Threads: one}, &args)
}

// late is a group whose reductions come late.
type late struct {
	Group
	spinner
	before, after time.Duration
}

func (g late) AllReduce(s device.Stream, buf device.Buffer, dt dtype.DType, op comm.Op) *comm.Work {
	if s, ok := s.(*cuda.Stream); ok {
		g.spin(s, g.before)
		defer g.spin(s, g.after)
	}
	return g.Group.AllReduce(s, buf, dt, op)
}
