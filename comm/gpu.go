package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// gpu is the part of a group that moves the memory of its GPU. Calls are enqueued on
// the caller's stream at once, by the caller; routineWatch sees them end.
//
// They are numbered with the calls on host memory, but the two do not wait for each
// other: each kind is in order for itself.
type gpu struct {
	g      *Group
	dev    *cuda.Device
	engine gpuEngine // nil: none can be had
	why    error     // why none can
	lib    *nccl.Library
	stream *cuda.Stream // for what the group does for itself

	wake  chan struct{} // holds a token when flights is no longer empty
	done  chan struct{} // closed by routineWatch
	moved transport.Traffic

	// Guarded by g.mu.
	flights []*flight        // calls that have not ended, in their order
	making  *underWay        // the call that NCCL is putting on its stream, or could not
	ended   transport.Header // the latest call that has ended
	landed  bool             // routineWatch is about to end: nobody looks at flights any more
	noted   note             // for whom the copies of a call wait

	asked time.Time // when noted was made; routineWatch's alone

	memory []chunk     // what alloc gave; guarded by g.order
	latest *cuda.Event // the place behind the latest call; guarded by g.order
}

// gpuEngine enqueues collectives on streams of one GPU.
type gpuEngine interface {
	algorithm(c *call) Algorithm
	String() string // how the GPUs reach each other
	// enqueue returns the place behind the call, for whoever asks to release.
	enqueue(s *cuda.Stream, c *call) (*cuda.Event, error)
	// failed is an error that was met after a call was enqueued.
	failed() error
	// abort makes enqueued calls leave the GPU. Later ones fail.
	abort() error
	// close releases everything, once the enqueued calls have ended.
	close() error
}

// placed is the place behind a call that was made, unless that failed.
func placed(s *cuda.Stream, err error) (*cuda.Event, error) {
	if err != nil {
		return nil, err
	}
	return s.Record().(*cuda.Event), s.Err()
}

// wireGPU makes the engine for GPU memory, where the group has a GPU.
func (g *Group) wireGPU(ctx context.Context, ex exchangeUnder, lib *nccl.Library) error {
	if g.o.gpu == nil {
		return nil
	}
	s, err := g.o.gpu.NewStream("comm " + g.o.Name)
	if err != nil {
		return err
	}
	u := &gpu{g: g, dev: g.o.gpu, lib: lib, stream: s.(*cuda.Stream), wake: make(chan struct{}, 1), done: make(chan struct{})}
	switch problem := ncclProblem(g.members); {
	case g.o.Size == 1 && g.o.Engine != "nccl":
		u.engine = alone{}
	case g.o.Engine == "ring" || problem != nil:
		if err := u.joinOwn(ctx, ex, problem); err != nil {
			return errors.Join(err, u.stream.Close())
		}
	default:
		under, err := joinNCCL(ctx, g, ex, lib)
		if err != nil {
			return errors.Join(err, u.stream.Close())
		}
		u.engine = under
		if g.o.Engine == "auto" {
			var why error
			if u.engine, why = joinPeers(ctx, g, ex, under); why != nil {
				g.tellWhyNoPeers(ctx, why)
			}
		}
	}
	if u.why != nil {
		g.o.Logger.Warn("comm: calls on GPU memory will fail: "+u.why.Error(), "group", g.o.Name, "rank", g.o.Rank)
	}
	g.gpu = u
	go u.routineWatch()
	return nil
}

// joinOwn makes the engine where NCCL is not to be had, or not wanted: the GPUs themselves,
// else the host moves their memory, or nobody.
func (u *gpu) joinOwn(ctx context.Context, ex exchangeUnder, noNCCL error) (err error) {
	g := u.g
	u.lib = nil
	var why error
	if u.engine, why = joinPeers(ctx, g, ex, nil); why == nil {
		return nil
	}
	if g.o.Engine == "ring" {
		why = fmt.Errorf("engine ring moves GPU memory within a host, between GPUs that reach each other's: %w", why)
	} else {
		why = fmt.Errorf("%d ranks on GPUs need NCCL: %w; and without it: %w", g.o.Size, noNCCL, why)
	}
	if err := handsOver(ctx, g, ex, u.stream); err != nil {
		u.why = fmt.Errorf("%w; and through the host: %w", why, err)
		return nil
	}
	e, err := joinStaged(ctx, g, ex, why)
	if err != nil {
		return err
	}
	u.engine = e
	cards, noCards, err := joinGPUDirect(ctx, g, ex, e)
	if err != nil {
		return errors.Join(err, e.close())
	}
	if e.noCards = noCards; cards != nil {
		u.engine = cards
	}
	return nil
}

// tellWhyNoPeers says why NCCL makes all calls. That GPUs lie is said loudly.
func (g *Group) tellWhyNoPeers(ctx context.Context, why error) {
	level := slog.LevelDebug // what each rank has to say differs little
	switch {
	case errors.Is(why, dma.ErrWrongData):
		level = slog.LevelWarn
	case g.o.Rank == 0:
		level = slog.LevelInfo
	}
	g.o.Logger.Log(ctx, level, "comm: all of the GPUs' calls by NCCL, none by copy engines and kernels: "+why.Error(), "group", g.o.Name, "rank", g.o.Rank)
}

// wantsNCCL reports whether the options ask for NCCL. One rank needs nobody to move
// its memory.
func (o *Options) wantsNCCL() bool {
	return o.gpu != nil && (o.Engine == "nccl" || o.Engine == "auto" && o.Size > 1)
}

// helloSize is the size in bytes of the first AllReduce, whose sums are looked at.
const helloSize = 64 << 10

// hello sees that the GPUs get each other's data, and says how.
func (u *gpu) hello(ctx context.Context) error {
	e := u.engine
	if peers, ok := e.(*byPeers); ok {
		e = peers.under // the team has made sums of its own
	}
	if u.lib != nil && e != nil {
		if err := u.firstSum(ctx, e); err != nil {
			return err
		}
	}
	if u.engine == nil || u.engine == gpuEngine(alone{}) {
		return nil
	}
	level := slog.LevelDebug // what each rank has to say differs little
	if u.g.o.Rank == 0 {
		level = slog.LevelInfo
	}
	about := []any{"group", u.g.o.Name, "rank", u.g.o.Rank}
	var why error
	switch e := u.engine.(type) {
	case *staged:
		why = e.why
		about = append(about, "why", why.Error(), "no GPUDirect", e.noCards)
	case *gpuDirect:
		why = e.under.why
		about = append(about, "why", why.Error(), "flush", e.how)
	}
	if errors.Is(why, dma.ErrWrongData) {
		level = slog.LevelWarn
	}
	u.g.o.Logger.Log(ctx, level, "comm: "+u.engine.String(), about...)
	return nil
}

// firstSum makes the first call of NCCL, which connects the GPUs, and checks its sums:
// there are machines whose GPUs reach each other's memory, as the driver says, and get
// wrong data or none.
func (u *gpu) firstSum(ctx context.Context, e gpuEngine) error {
	// Close frees these: to free memory may wait for other GPUs, and these for this rank.
	host, err := u.dev.AllocHost(helloSize)
	if err != nil {
		return err
	}
	u.memory = append(u.memory, chunk{buf: host})
	buf, err := u.dev.Alloc(helloSize)
	if err != nil {
		return err
	}
	u.memory = append(u.memory, chunk{buf: buf})
	v := device.View[int32](host)
	for i := range v {
		v[i] = int32(i + u.g.o.Rank)
	}
	c := &call{to: buf, from: buf}
	c.Kind, c.DType, c.Op, c.Root, c.Count = transport.AllReduce, i32, Sum, -1, uint64(len(v))
	u.stream.Copy(buf, host)
	end, err := e.enqueue(u.stream, c)
	if err != nil {
		return err
	}
	end.Release()
	u.stream.Copy(host, buf)
	if err := u.await(ctx, u.stream.Record().(*cuda.Event)); err != nil {
		return err
	}
	n := int32(u.g.o.Size)
	for i := range v {
		if want := n*int32(i) + n*(n-1)/2; v[i] != want {
			return fmt.Errorf("the GPUs exchange wrong data: element %d of the first sum is %d, want %d. "+
				"Where GPUs reach each other over PCIe, access control (ACS) or an IOMMU can do that: NCCL_P2P_DISABLE=1 goes around it", i, v[i], want)
		}
	}
	return nil
}

// await waits for an event of a call that no flight stands for.
func (u *gpu) await(ctx context.Context, e *cuda.Event) error {
	for wait := (lull{}); ; {
		there, err := e.Reached()
		if err == nil {
			err = u.engine.failed()
		}
		switch {
		case err != nil:
			return err
		case there:
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("calls of the GPUs are not done: %w", context.Cause(ctx))
		}
		if !wait.over(u.g.dead, false) {
			return u.g.Err()
		}
	}
}

// GPUEngine says how the group moves GPU memory: "nccl 2.28.3: 2 ranks, NVLink
// (P2P/CUMEM), 24 channels". Where it cannot, it says why, and "" without a GPU.
func (g *Group) GPUEngine() string {
	switch u := g.gpu; {
	case u == nil:
		return ""
	case u.engine == nil:
		return "none: " + u.why.Error()
	default:
		return u.engine.String()
	}
}

// patience bounds how long the end of an engine may take.
const patience = 10 * time.Second

// close releases what the group has on its GPU. The group is closed or dead.
func (u *gpu) close() error {
	<-u.done
	var errs []error
	if u.engine != nil {
		errs = append(errs, u.engine.close())
	}
	errs = append(errs, u.release())
	if u.stream.Err() == nil {
		errs = append(errs, u.stream.Close())
	} else {
		u.stream.Close() // its error is the group's
	}
	return errors.Join(errs...)
}
