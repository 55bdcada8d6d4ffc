package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// member is what a rank tells the others about itself.
type member struct {
	Host   string
	Key    string // equal where ranks can share memory
	Net    string // equal where loopback joins them
	Agreed string // options that all ranks must share
	PID    int    // of its process
	GPU    string // its UUID
	// Where NCCL is wanted: its release, or why there is none.
	NCCL, NoNCCL string
	RDMA         rdma.Near // the ports that it would use
	NoRDMA       string    // or why there is none
}

// New joins this process to a group as rank o.Rank. It returns when all ranks have
// joined and can reach each other, or when ctx ends (without a deadline:
// o.Timeout).
func New(ctx context.Context, o Options) (*Group, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	prefix := "comm/" + o.Name + "/"
	me := member{Host: o.Host, Key: o.hostKey, Net: o.netKey, Agreed: o.agreed(), PID: os.Getpid()}
	o.lookForRDMA(&me)
	var lib *nccl.Library
	if o.wantsNCCL() {
		var err error
		if lib, err = nccl.Load(); err != nil {
			me.NoNCCL = err.Error()
		} else {
			me.NCCL = lib.Version.String()
			if err := errors.Join(o.sameInterface(lib), o.sameTopology(lib)); err != nil {
				return nil, fmt.Errorf("comm: rank %d on %s: %w", o.Rank, o.Host, err)
			}
		}
	}
	if o.gpu != nil {
		me.GPU = o.gpu.UUID()
	}
	members, err := meet(ctx, &o, prefix, me)
	if err == nil && o.Engine == "nccl" {
		err = ncclProblem(members)
	}
	if err != nil {
		return nil, fmt.Errorf("comm: rank %d of %d on %s cannot join group %s: %w", o.Rank, o.Size, o.Host, o.Name, err)
	}
	g := &Group{o: o, members: members, pairs: make([]pairSeq, o.Size), subs: map[string]int{}, dead: make(chan struct{}), maker: goroutineID()}
	id := fnv.New32a()
	fmt.Fprintf(id, "%s %d", o.Name, o.Size)
	g.id = id.Sum32()
	g.tuned.level = slog.LevelDebug
	if o.Rank == 0 && o.nccl.talks() {
		g.tuned.level = slog.LevelInfo
	}
	g.alarm = newAlarm(g, o.Store, prefix)
	if err := g.wireTogether(ctx, prefix, lib); err != nil {
		return nil, fmt.Errorf("comm: rank %d of %d on %s, group %s: %w", o.Rank, o.Size, o.Host, o.Name, err)
	}
	if o.Rank == 0 && o.tuned == nil { // once for each job, not for parts of a group
		g.tellVariables(ctx)
	}
	if g.gpu != nil {
		g.watch()
	}
	g.alarm.start()
	stop := context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == context.Canceled {
			g.Abort(context.Canceled)
		}
	})
	defer stop()
	if err := g.hello(ctx); err != nil {
		g.Close() // its error is err
		return nil, fmt.Errorf("comm: rank %d of %d on %s, group %s: the ranks met, but do not reach each other: %w", o.Rank, o.Size, o.Host, o.Name, err)
	}
	if err := g.tune(ctx); err != nil {
		g.Close() // its error is err
		return nil, fmt.Errorf("comm: rank %d of %d on %s, group %s: %w", o.Rank, o.Size, o.Host, o.Name, err)
	}
	return g, nil
}

// wireTogether makes the engines. If it fails on one rank, the others need not wait.
func (g *Group) wireTogether(ctx context.Context, prefix string, lib *nccl.Library) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	var other error   // what another rank failed with
	watch.Go(func() { // ends with ctx
		if b, err := g.o.Store.Wait(ctx, prefix+"verdict"); err == nil {
			other = parseVerdict(b)
			cancel(other)
		}
	})
	ex := exchangeUnder{g.o.Store, prefix}
	over, err := g.wire(ctx, ex, &g.wires)
	if err == nil {
		g.engine = over
		err = g.wireGPU(ctx, ex, lib)
	}
	cancel(nil)
	watch.Wait()
	if err == nil {
		return nil
	}
	if other == nil {
		other = g.alarm.raise(&CallError{Rank: g.o.Rank, Host: g.o.Host, Err: err})
	} // else err is what became of this rank when it was told
	if g.engine != nil { // not earlier: to peers that were not told, a rank that closes its links has left
		if e := g.engine.close(); e != nil {
			g.o.Logger.Debug("comm: closing what was wired", "rank", g.o.Rank, "err", e)
		}
	}
	last, cancelLast := context.WithTimeout(context.Background(), agreeWithin)
	defer cancelLast()
	if e := g.alarm.halted(last); e != nil {
		g.o.Logger.Debug("comm: cannot say that this rank has given up", "rank", g.o.Rank, "err", e)
	}
	return other
}

// meet tells the other ranks about this one and waits for them.
func meet(ctx context.Context, o *Options, prefix string, me member) ([]member, error) {
	b, err := json.Marshal(me)
	if err != nil {
		return nil, err
	}
	key := func(rank int) string { return fmt.Sprintf("%smember/%d", prefix, rank) }
	there, first, err := o.Store.CompareAndSet(ctx, key(o.Rank), nil, b)
	if err != nil {
		return nil, err
	}
	if !first {
		return nil, fmt.Errorf("another process is rank %d already: %s", o.Rank, there)
	}
	members := make([]member, o.Size)
	for r := range members {
		b, err := o.Store.Wait(ctx, key(r))
		if err != nil {
			return nil, fmt.Errorf("rank %d has not joined: %w", r, err)
		}
		m := &members[r]
		if err := json.Unmarshal(b, m); err != nil {
			return nil, fmt.Errorf("rank %d's entry %q: %w", r, b, err)
		}
		if m.Agreed != me.Agreed {
			return nil, fmt.Errorf("rank %d on %s has other options: %s; this rank has: %s", r, m.Host, m.Agreed, me.Agreed)
		}
	}
	return members, nil
}

// hello is a barrier under ctx's deadline. It makes the first connections.
func (g *Group) hello(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	h := transport.Header{Group: g.id, Kind: transport.Barrier, DType: dtype.U8, Root: -1}
	c := call{Call: transport.Call{Header: h, Deadline: deadline}, wire: h}
	if err := g.engine.run(&c); err != nil {
		return g.fail(g.explain(&c, err))
	}
	if g.gpu == nil {
		return nil
	}
	if err := g.gpu.hello(ctx); err != nil {
		return g.fail(&CallError{Rank: g.o.Rank, Host: g.o.Host, Err: err})
	}
	return nil
}

// Sub makes a group of some of the ranks, numbered in the given order. All of
// these ranks call it, with the same list; the others do not. It blocks until all
// have, at most Options.Timeout.
func (g *Group) Sub(ranks []int) (*Group, error) {
	me := slices.Index(ranks, g.o.Rank)
	if me < 0 {
		return nil, fmt.Errorf("comm: rank %d is none of the ranks %v of the new group", g.o.Rank, ranks)
	}
	var list strings.Builder
	for i, r := range ranks {
		if r < 0 || r >= g.o.Size || slices.Contains(ranks[:i], r) {
			return nil, fmt.Errorf("comm: %v are no ranks of a group of %d, each named once", ranks, g.o.Size)
		}
		fmt.Fprintf(&list, "-%d", r)
	}
	g.order.Lock()
	g.subs[list.String()]++
	nth := g.subs[list.String()]
	g.order.Unlock()
	o := g.o
	o.Rank, o.Size = me, len(ranks)
	o.Name = fmt.Sprintf("%s/sub%s.%d", g.o.Name, list.String(), nth)
	o.release = nil
	o.tuned = g.tunedOver()
	if o.Algo == TwoLevel {
		o.Algo = Auto // the ranks may share a host; where they do not, it is what auto takes
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.o.Timeout)
	defer cancel()
	return New(ctx, o)
}
