package ddp

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

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

// So are those that travel in 16 bits and are added up in f32.
func TestCUDACompressedGradients(t *testing.T) {
	for _, n := range []int{1, 2} {
		for _, scheme := range []compress.Scheme{compress.FP16, compress.BF16} {
			for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
				t.Run(fmt.Sprintf("gpus=%d grads=%s %s", n, dt, scheme), func(t *testing.T) {
					cards(t, n, func(c *card) {
						c.sums(Options{PlanOptions: three(dt), Compress: compressor(t, compress.Options{Scheme: scheme})})
					})
				})
			}
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
		const tick = 5 * time.Microsecond // what two measured times may be off
		for i, b := range s.Buckets {
			if b.Start+tick < b.Ready || b.Done+tick < b.Start || s.End+s.Exposed+tick < b.Done {
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
