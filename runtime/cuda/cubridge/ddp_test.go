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

// inArena is a group whose gradients lie in memory of cu's.
type inArena struct {
	*comm.Group
	arena *Arena
}

func (g inArena) Alloc(n int) (device.Buffer, error) { return g.arena.Alloc(n) }

// Two ranks with a GPU each: cu writes gradients on its own stream, into memory that
// it has allocated itself, and reads their sums there.
func TestDDPOverMemoryOfCu(t *testing.T) {
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	const ranks = 2
	on(t, ranks)
	contexts := []cu.CUContext{primary(t, 0), primary(t, 1)}
	options := make([]comm.Options, ranks)
	for r, c := range contexts {
		d := must(BorrowContext(c))(t)
		options[r] = comm.Options{Device: d, Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}
		defer func() { check(t, d.Close()) }()
	}
	groups := must(comm.Local(ranks, options...))(t)
	ctx := deadline(t)
	var wg sync.WaitGroup
	for r, g := range groups {
		wg.Go(func() {
			if err := trainOnCu(ctx, g, options[r].Device.(*cuda.Device)); err != nil {
				t.Errorf("rank %d: %v", r, err)
				g.Abort(err)
			}
			if err := g.Close(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
}

// trainOnCu is a program of cu's as one rank: it makes a few steps and checks the sum
// of each element, which is an integer.
func trainOnCu(ctx context.Context, g *comm.Group, d *cuda.Device) (err error) {
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
	comms, err := d.NewStream("comm")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, comms.Close()) }()

	params := []*param.Param{
		{Name: "embed", Shape: []int{300, 7}, DType: dtype.F32},
		{Name: "w", Shape: []int{40, 40}, DType: dtype.F32},
		{Name: "b", Shape: []int{3}, DType: dtype.F32},
	}
	plans := ddp.PlanOptions{FirstBucket: 4 << 10, BucketCap: 1 << 10}
	plan, err := ddp.NewPlan(params, plans)
	if err != nil {
		return err
	}
	memory, err := cu.MemAlloc(int64(plan.Bytes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cu.MemFree(memory)) }()
	arena, err := NewArena(d, memory, int64(plan.Bytes))
	if err != nil {
		return err
	}
	sink, err := ddp.New(ctx, inArena{g, arena}, compute, comms, params, ddp.Options{PlanOptions: plans})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, compute.Synchronize(ctx), comms.Synchronize(ctx), sink.Close())
	}()

	value := func(rank, step, p, i int) float32 { return float32((rank+1)*(1000*step+100*p) + i) }
	for step := range 4 { // the plan is rebuilt after the first, in this order
		if err := sink.StepBegin(true); err != nil {
			return err
		}
		for k, p := range params {
			grad, _ := sink.Get(p)
			at := LendMemory(grad.Buf)
			if at < memory || at+cu.DevicePtr(grad.Buf.Len()) > memory+cu.DevicePtr(plan.Bytes) {
				return fmt.Errorf("the gradient of %s is at %v, outside of cu's %d bytes at %v", p.Name, at, plan.Bytes, memory)
			}
			values := make([]float32, p.Numel())
			for i := range values {
				values[i] = value(g.Rank(), step, k, i)
			}
			if err := cu.MemcpyHtoDAsync(at, pointer(values), int64(4*len(values)), stream); err != nil {
				return err
			}
			sink.Ready(p)
		}
		if err := sink.Finish(ctx); err != nil {
			return err
		}
		for k, p := range params {
			sum := make([]float32, p.Numel())
			if err := cu.MemcpyDtoHAsync(pointer(sum), LendMemory(sink.Grad(p).Buf), int64(4*len(sum)), stream); err != nil {
				return err
			}
			if err := stream.Synchronize(); err != nil {
				return err
			}
			for i, got := range sum {
				var want float32
				for r := range g.Size() {
					want += value(r, step, k, i)
				}
				if got != want {
					return fmt.Errorf("step %d: gradient %d of %s is %v, want %v", step, i, p.Name, got, want)
				}
			}
		}
	}
	return compute.Err()
}
