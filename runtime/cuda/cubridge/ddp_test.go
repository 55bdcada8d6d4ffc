//go:build cu

package cubridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
	"gorgonia.org/cu"
)

// An arena hands out its memory once, zeroed, in aligned pieces.
func TestArena(t *testing.T) {
	on(t, 1)
	d := must(BorrowContext(primary(t, 0)))(t)
	defer d.Bind()()
	const n = 1000
	p := must(cu.MemAlloc(n))(t)
	ones := slices.Repeat([]byte{1}, n)
	check(t, cu.MemcpyHtoD(p, pointer(ones), n))
	a := must(NewArena(d, p, n))(t)
	for _, c := range []struct{ n, at int }{{100, 0}, {0, 256}, {257, 256}, {200, 768}} {
		b := must(a.Alloc(c.n))(t)
		if c.n > 0 && LendMemory(b) != p+cu.DevicePtr(c.at) || b.Len() != c.n {
			t.Errorf("%d bytes at %v, want %d at +%d of %v", b.Len(), LendMemory(b), c.n, c.at, p)
		}
	}
	if _, err := a.Alloc(33); err == nil {
		t.Error("the arena gave more than it had")
	}
	got := make([]byte, n)
	check(t, cu.MemcpyDtoH(pointer(got), p, n))
	want := slices.Concat(make([]byte, 100), ones[:156], make([]byte, 257), ones[:255], make([]byte, 200), ones[:32])
	if !slices.Equal(got, want) {
		t.Error("something else was zeroed than what was handed out")
	}
	check(t, cu.MemFree(p))
	check(t, d.Close())
}

// rank is a program of cu's as one rank: a GPU, and a stream that cu made and gorun
// borrowed.
type rank struct {
	group   *comm.Group
	dev     *cuda.Device
	stream  cu.Stream
	compute *cuda.Stream
}

// ranks runs do as n ranks, a goroutine and a GPU each, with the GPU's context current.
func ranks(t *testing.T, n int, do func(ctx context.Context, r rank) error) {
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	on(t, n)
	devices, options := make([]*cuda.Device, n), make([]comm.Options, n)
	for i := range n {
		devices[i] = must(BorrowContext(primary(t, i)))(t)
		options[i] = comm.Options{Device: devices[i], Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}
	}
	groups := must(comm.Local(n, options...))(t)
	ctx := deadline(t)
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() {
			err := run(ctx, g, devices[i], do)
			if err != nil {
				g.Abort(err)
			}
			if err := errors.Join(err, g.Close(), devices[i].Close()); err != nil {
				t.Errorf("rank %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

func run(ctx context.Context, g *comm.Group, d *cuda.Device, do func(ctx context.Context, r rank) error) (err error) {
	defer d.Bind()()
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Destroy()) }()
	compute, err := BorrowStream(d, "compute", stream)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, compute.Close()) }()
	return do(ctx, rank{g, d, stream, compute})
}

// write writes this rank's gradient of parameter k in a step to p, by cu: integers.
func (r rank) write(p cu.DevicePtr, step, k, n int) error {
	values := make([]float32, n)
	for i := range values {
		values[i] = gradient(r.group.Rank(), step, k, i)
	}
	return cu.MemcpyHtoDAsync(p, pointer(values), int64(4*n), r.stream)
}

func gradient(rank, step, k, i int) float32 { return float32((rank+1)*(1000*step+100*k) + i) }

// holds reads what is at p, by cu: the sum of all ranks' gradients.
func (r rank) holds(p cu.DevicePtr, step, k, n int) error {
	got := make([]float32, n)
	if err := cu.MemcpyDtoHAsync(pointer(got), p, int64(4*n), r.stream); err != nil {
		return err
	}
	if err := r.stream.Synchronize(); err != nil {
		return err
	}
	for i := range got {
		var want float32
		for other := range r.group.Size() {
			want += gradient(other, step, k, i)
		}
		if got[i] != want {
			return fmt.Errorf("step %d: element %d of gradient %d is %v, want %v", step, i, k, got[i], want)
		}
	}
	return r.compute.Err()
}

const steps = 4 // the buckets are laid out anew after the first

// params are what the tests train.
func params() []*param.Param {
	return []*param.Param{
		{Name: "embed", Shape: []int{300, 7}, DType: dtype.F32},
		{Name: "w", Shape: []int{40, 40}, DType: dtype.F32},
		{Name: "b", Shape: []int{3}, DType: dtype.F32},
	}
}

// inArena is a group whose gradients lie in memory of cu's.
type inArena struct {
	*comm.Group
	arena *Arena
}

func (g inArena) Alloc(n int) (device.Buffer, error) { return g.arena.Alloc(n) }

// cu writes gradients on its own stream, into buckets in memory that it has allocated
// itself, and reads their sums there.
func TestBucketsInMemoryOfCu(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint("ranks=", n), func(t *testing.T) { ranks(t, n, inBuckets) })
	}
}

func inBuckets(ctx context.Context, r rank) (err error) {
	comms, err := r.dev.NewStream("comm")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, comms.Close()) }()
	params, plans := params(), ddp.PlanOptions{FirstBucket: 4 << 10, BucketCap: 1 << 10}
	plan, err := ddp.NewPlan(params, plans)
	if err != nil {
		return err
	}
	memory, err := cu.MemAlloc(int64(plan.Bytes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cu.MemFree(memory)) }()
	arena, err := NewArena(r.dev, memory, int64(plan.Bytes))
	if err != nil {
		return err
	}
	sink, err := ddp.New(ctx, inArena{r.group, arena}, r.compute, comms, params, ddp.Options{PlanOptions: plans})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, r.compute.Synchronize(ctx), comms.Synchronize(ctx), sink.Close())
	}()
	for step := range steps {
		if err := sink.StepBegin(true); err != nil {
			return err
		}
		for k, p := range params {
			grad, _ := sink.Get(p)
			at := LendMemory(grad.Buf)
			if inside := at >= memory && at+cu.DevicePtr(grad.Buf.Len()) <= memory+cu.DevicePtr(plan.Bytes); !inside && r.group.Size() > 1 {
				return fmt.Errorf("the gradient of %s is at %v, outside of cu's %d bytes at %v", p.Name, at, plan.Bytes, memory)
			}
			if err := r.write(at, step, k, p.Numel()); err != nil {
				return err
			}
			sink.Ready(p)
		}
		if err := sink.Finish(ctx); err != nil {
			return err
		}
		for k, p := range params {
			if err := r.holds(LendMemory(sink.Grad(p).Buf), step, k, p.Numel()); err != nil {
				return err
			}
		}
	}
	return nil
}

// Gradients and weights stay where cu has allocated each; all ranks get rank 0's
// weights.
func TestGradientsInMemoryOfCu(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint("ranks=", n), func(t *testing.T) { ranks(t, n, inPlace) })
	}
}

func inPlace(ctx context.Context, r rank) (err error) {
	var vars []param.Var
	var grads []cu.DevicePtr
	for k, p := range params() {
		tensors := make([]tensor.Tensor, 2)
		for i := range tensors {
			at, err := cu.MemAlloc(int64(4 * p.Numel()))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cu.MemFree(at)) }()
			b, err := BorrowMemory(r.dev, at, int64(4*p.Numel()))
			if err != nil {
				return err
			}
			tensors[i] = tensor.New(b, p.DType, p.Shape...)
		}
		vars = append(vars, param.Var{Name: p.Name, Weight: tensors[0], Grad: tensors[1]})
		grads = append(grads, LendMemory(tensors[1].Buf))
		first := slices.Repeat([]float32{float32(10*r.group.Rank() + k)}, p.Numel())
		if err := cu.MemcpyHtoD(LendMemory(tensors[0].Buf), pointer(first), int64(4*len(first))); err != nil {
			return err
		}
	}
	model, err := ddp.WrapOn(ctx, r.group, r.compute, vars, ddp.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	for k, v := range vars {
		got := make([]float32, v.Weight.Numel())
		if err := cu.MemcpyDtoH(pointer(got), LendMemory(v.Weight.Buf), int64(4*len(got))); err != nil {
			return err
		}
		if got[len(got)-1] != float32(k) {
			return fmt.Errorf("weight %s is %v, rank 0's is %d", v.Name, got[len(got)-1], k)
		}
	}
	for step := range steps {
		if err := model.StepBegin(true); err != nil {
			return err
		}
		for k := len(vars) - 1; k >= 0; k-- {
			if err := r.write(grads[k], step, k, vars[k].Grad.Numel()); err != nil {
				return err
			}
			model.Ready(k)
		}
		if err := model.Finish(ctx); err != nil {
			return err
		}
		for k, v := range vars {
			if err := r.holds(grads[k], step, k, v.Grad.Numel()); err != nil {
				return err
			}
		}
	}
	return nil
}
