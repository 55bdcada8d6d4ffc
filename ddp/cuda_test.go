package ddp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
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

// Gradients of every type that models have, reduced in every type, are the sums
// over ranks and micro-steps, whatever the order in which they come, before and
// after the rebuild; buffers are rank 0's.
func TestCUDAGradients(t *testing.T) {
	for _, n := range []int{1, 2} {
		for _, o := range []Options{
			{PlanOptions: three(dtype.Invalid)},
			{PlanOptions: three(dtype.Invalid), Op: comm.Avg, NoOverlap: true},
			{PlanOptions: three(dtype.Invalid), FindUnused: true},
			{PlanOptions: three(dtype.Invalid), FindUnused: true, StaticGraph: true},
			{PlanOptions: PlanOptions{GradDType: dtype.BF16}},
			{PlanOptions: three(dtype.BF16)},
			{PlanOptions: three(dtype.BF16), ReduceDType: dtype.F32},
			{PlanOptions: three(dtype.F32), ReduceDType: dtype.BF16},
			{PlanOptions: three(dtype.F16), ReduceDType: dtype.F64, Op: comm.Avg},
		} {
			t.Run(fmt.Sprintf("gpus=%d grads=%s reduce=%s op=%s overlap=%t unused=%t static=%t cap=%d", n, o.GradDType, o.ReduceDType, o.Op, !o.NoOverlap, o.FindUnused, o.StaticGraph, o.BucketCap), func(t *testing.T) {
				cards(t, n, func(c *card) { c.sums(o) })
			})
		}
	}
}

func (c *card) sums(o Options) {
	pinned, err := c.dev.AllocHost(12)
	if !c.ok("AllocHost", err) {
		return
	}
	c.memory = append(c.memory, pinned)
	seen, mean := c.alloc(dtype.I64, 1), tensor.New(pinned, dtype.F32, 3)
	o.Buffers = []Buffer{{"seen", seen}, {"mean", mean}}
	mean.F32()[1] = float32(c.rank + 5)
	if !c.start(c.group, o) {
		return
	}
	const steps, micros = 3, 3
	for step := range steps {
		for micro := range micros {
			if !c.ok("StepBegin", c.ddp.StepBegin(micro == micros-1)) {
				return
			}
			for k := range c.params {
				i := (len(c.params) - 1 - k + (c.rank+1)*(step+1)) % len(c.params)
				if p := c.params[i]; !p.Frozen && (!o.FindUnused || uses(c.rank, p.Name)) {
					c.give(i, c.input(i, step, micro, func(e int) float32 { return gradient(c.rank, step, micro, i, e) }))
				}
			}
			if !c.ok("Finish", c.ddp.Finish(c.ctx)) {
				return
			}
		}
		for i, p := range c.params {
			users := 0
			for r := range c.size {
				if !o.FindUnused || uses(r, p.Name) {
					users++
				}
			}
			switch {
			case p.Frozen:
			case users == 0:
				if !c.ddp.Grad(p).None() {
					c.t.Errorf("rank %d, step %d: %s is used nowhere, and has a gradient", c.rank, step, p.Name)
				}
			default:
				c.holds(fmt.Sprintf("step %d, %s", step, p.Name), c.ddp.Grad(p), func(e int) float64 {
					sum := 0.0
					for r := range c.size {
						for micro := range micros {
							if !o.FindUnused || uses(r, p.Name) {
								sum += float64(gradient(r, step, micro, i, e))
							}
						}
					}
					if o.Op == comm.Avg {
						sum /= float64(c.size)
					}
					return sum
				})
			}
		}
		s, err := c.ddp.Stats(c.ctx)
		if !c.ok("Stats", err) {
			return
		}
		for i, b := range s.Buckets {
			if b.Start < b.Ready || b.Done < b.Start || s.End+s.Exposed < b.Done {
				c.t.Errorf("rank %d, step %d, bucket %d: %+v, the backward pass ended at %s, exposed %s", c.rank, step, i, b, s.End, s.Exposed)
			}
		}
		if step == steps-1 {
			c.t.Logf("rank %d: %d buckets, %d bytes, backward pass %s, exposed %s", c.rank, len(s.Buckets), s.Bytes, s.End, s.Exposed)
		}
	}
	if got := mean.F32()[1]; got != 5 {
		c.t.Errorf("rank %d: the buffer in host memory is %v, rank 0 had 5", c.rank, got)
	}
	if !o.FindUnused && !slices.Equal(c.ddp.Order(), []string{"embed", "head", "b.b", "b.w", "a.b", "a.w"}) {
		c.t.Errorf("rank %d: order %v, want rank 0's in the first step", c.rank, c.ddp.Order())
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

// Delays on either stream change nothing but time: the gradients have the same
// bits; and what they cost the compute stream is measured.
func TestCUDADelaysChangeNothingButTime(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint("gpus=", n), func(t *testing.T) {
			cards(t, n, func(c *card) { c.delays() })
		})
	}
}

func (c *card) delays() {
	const steps, micros, long = 3, 2, 5 * time.Millisecond
	spin := c.spinner()
	if spin.f == nil {
		return
	}
	value := func(r, step, micro, i, e int) float32 {
		return float32(math.Sin(float64(1000*r + 100*step + 17*micro + 7*i + e)))
	}
	for _, o := range []Options{
		{PlanOptions: three(dtype.Invalid)},
		{PlanOptions: three(dtype.BF16), ReduceDType: dtype.F32},
	} {
		var want [][]float64
		for _, delay := range []struct {
			name                   string
			before, after, compute time.Duration
		}{
			{name: "none"},
			{name: "before each reduction", before: long},
			{name: "after each reduction", after: long},
			{name: "in the backward pass", compute: long},
			{name: "everywhere", before: long / time.Duration(1+c.rank), after: long, compute: long / time.Duration(2-c.rank%2)},
		} {
			if !c.start(late{c.group, spin, delay.before, delay.after}, o) {
				return
			}
			var got [][]float64
			for step := range steps {
				for micro := range micros {
					if !c.ok("StepBegin", c.ddp.StepBegin(micro == micros-1)) {
						return
					}
					for i := len(c.params) - 1; i >= 0; i-- {
						if !c.params[i].Frozen {
							x := c.input(i, step, micro, func(e int) float32 { return value(c.rank, step, micro, i, e) })
							spin.spin(c.compute, delay.compute)
							c.give(i, x)
						}
					}
					if !c.ok("Finish", c.ddp.Finish(c.ctx)) {
						return
					}
				}
				s, err := c.ddp.Stats(c.ctx)
				if !c.ok("Stats", err) {
					return
				}
				c.t.Logf("rank %d, grads %s, delay %s, step %d: backward pass %s, exposed %s", c.rank, o.GradDType, delay.name, step, s.End, s.Exposed)
				// The globaltimer of a GPU may tick only every microsecond or so.
				if least := (delay.before + delay.after) * 9 / 10; c.size > 1 && s.Exposed < least {
					c.t.Errorf("rank %d, delay %s, step %d: exposed %s, and the last reduction alone takes %s more", c.rank, delay.name, step, s.Exposed, least)
				}
				if least := delay.compute * 6 * 9 / 10; s.End < least {
					c.t.Errorf("rank %d, delay %s, step %d: the backward pass took %s, want at least %s", c.rank, delay.name, step, s.End, least)
				}
				for _, p := range c.params {
					if !p.Frozen {
						got = append(got, c.read(c.ddp.Grad(p)))
					}
				}
			}
			if want == nil {
				want = got
			}
			for i := range want {
				for e := range want[i] {
					if got[i][e] != want[i][e] {
						c.t.Errorf("rank %d, grads %s, delay %s: gradient %d, element %d is %v, and %v without delays", c.rank, o.GradDType, delay.name, i, e, got[i][e], want[i][e])
						return
					}
				}
			}
		}
	}
}

// The host enqueues steps while the compute stream stands still: nothing in a step
// waits for the device, the agreements on the order and on unused parameters
// included.
func TestCUDATheHostWaitsForNoDevice(t *testing.T) {
	for _, n := range []int{1, 2} {
		for _, unused := range []bool{false, true} {
			t.Run(fmt.Sprintf("gpus=%d unused=%t", n, unused), func(t *testing.T) {
				cards(t, n, func(c *card) { c.gated(unused) })
			})
		}
	}
}

func (c *card) gated(unused bool) {
	o := Options{PlanOptions: three(dtype.Invalid), FindUnused: unused, ReduceDType: dtype.BF16}
	word, err := c.dev.AllocHost(4)
	if !c.ok("AllocHost", err) {
		return
	}
	c.memory = append(c.memory, word)
	if !c.start(c.group, o) {
		return
	}
	value := func(i int) tensor.Tensor {
		return c.input(i, 0, 0, func(e int) float32 { return float32((c.rank+1)*(i+1) + e%3) })
	}
	for i := range c.params {
		value(i)
	}
	warm := c.alloc(dtype.F32, 1024) // what an engine sets up at its first call
	c.group.AllReduce(c.comm, warm.Buf, dtype.F32, comm.Sum)
	if !c.ok("first reduction", c.comm.Synchronize(c.ctx)) {
		return
	}
	c.compute.WaitValue32(word.Addr(), 1)
	for range 3 {
		if !c.ok("StepBegin", c.ddp.StepBegin(true)) {
			break
		}
		for i := range c.params {
			if !c.params[i].Frozen {
				c.give(i, value(i))
			}
		}
		if !c.ok("Finish", c.ddp.Finish(c.ctx)) {
			break
		}
	}
	if _, err := c.compute.Record().Since(c.compute.Record()); err == nil {
		c.t.Errorf("rank %d: the compute stream did not stand still", c.rank)
	}
	device.View[uint32](word)[0] = 1
	for i, p := range c.params {
		if !p.Frozen {
			c.holds(p.Name, c.ddp.Grad(p), func(e int) float64 {
				sum := 0
				for r := range c.size {
					sum += (r+1)*(i+1) + e%3
				}
				return float64(sum)
			})
		}
	}
}

// One flipped bit of one weight on one rank is found, and root's weights make all
// alike again.
func TestCUDACheckReplicas(t *testing.T) {
	cards(t, 2, func(c *card) {
		for i, p := range c.params {
			p.DType = []dtype.DType{dtype.BF16, dtype.F32}[i%2]
		}
		weights := map[*param.Param]tensor.Tensor{}
		for i, p := range c.params {
			weights[p] = c.alloc(p.DType, p.Shape...)
			c.arith.Convert(c.compute, weights[p], c.input(i, 0, 0, func(e int) float32 { return float32(i) + float32(e)/128 }))
		}
		weight := func(p *param.Param) tensor.Tensor { return weights[p] }
		if !c.start(c.group, Options{}) || !c.ok("CheckReplicas of equal weights", c.ddp.CheckReplicas(c.ctx, c.params, weight)) {
			return
		}
		if c.rank == 1 {
			w := weights[c.params[0]].Buf
			last := make([]byte, 2)
			c.compute.Copy(device.Host(last), w.Slice(w.Len()-2, w.Len()))
			c.ok("download", c.compute.Synchronize(c.ctx))
			last[0] ^= 1
			c.compute.Copy(w.Slice(w.Len()-2, w.Len()), device.Host(last))
			c.ok("upload", c.compute.Synchronize(c.ctx))
		}
		var drift *DriftError
		if err := c.ddp.CheckReplicas(c.ctx, c.params, weight); !errors.As(err, &drift) || len(drift.Weights) != 1 || drift.Weights[0].Name != "embed" {
			c.t.Errorf("rank %d: got %v, want a drift of embed", c.rank, err)
		}
		c.ok("BroadcastWeights", c.ddp.BroadcastWeights(c.ctx, c.params, weight, 1))
		c.ok("CheckReplicas after the broadcast", c.ddp.CheckReplicas(c.ctx, c.params, weight))
	})
}

// Ranks with different amounts of data leave together.
func TestCUDAJoin(t *testing.T) {
	cards(t, 2, func(c *card) {
		if !c.start(c.group, Options{PlanOptions: three(dtype.Invalid)}) {
			return
		}
		for round := 0; ; round++ {
			more := round < 1+2*c.rank // one batch on rank 0, three on rank 1
			present, err := c.ddp.Join(c.ctx, more)
			if !c.ok("Join", err) {
				return
			}
			if present == 0 {
				if round != 3 {
					c.t.Errorf("rank %d left in round %d, want 3", c.rank, round)
				}
				return
			}
			if !c.ok("StepBegin", c.ddp.StepBegin(true)) {
				return
			}
			for i := range c.params {
				if more && !c.params[i].Frozen {
					c.give(i, c.input(i, 0, 0, func(int) float32 { return float32(1 + 9*c.rank) }))
				}
			}
			if !c.ok("Finish", c.ddp.Finish(c.ctx)) {
				return
			}
			c.holds("embed", c.ddp.Grad(c.params[0]), exactly([]float64{11, 10, 10}[round]))
		}
	})
}
