package comm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/tune"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// gpuFormula is the version of what tables of GPUs correct: ways.expected and its figures,
// and how measurements are made.
const gpuFormula = 1

// gpuTuneSizes are measured one after another, as far as there is time and room.
var gpuTuneSizes = []int{8 << 10, 256 << 10, 4 << 20, 64 << 20}

// peersBench measures the ways that byPeers has, by the GPU's time of calls in a row.
type peersBench struct {
	u    *gpu
	e    *byPeers
	ex   exchangeUnder
	turn int
}

func (b *peersBench) over() string {
	s := "PCIe"
	if b.e.team.NVLinked() {
		s = "NVLink"
	}
	if b.e.under != nil {
		s += " beside NCCL " + b.u.lib.Version.String()
	}
	return s
}

func (b *peersBench) key() string {
	var cards []string
	for _, m := range b.u.g.members {
		cards = append(cards, m.GPU)
	}
	o := &b.u.g.o
	return fmt.Sprintf("gpu %s; over %s; %d ranks on %s: %s; at most %d CTAs, NCCL_ALGO %q; formula %d",
		b.u.dev.Name(), b.over(), o.Size, o.Host, strings.Join(cards, ", "), o.MaxCTAs, o.nccl.algo, gpuFormula)
}

func (b *peersBench) owns(p tune.Point) bool { return strings.HasPrefix(p.Call, gpuPrefix) }

// measure times the ways, size by size. Before each size rank 0 looks at the time.
func (b *peersBench) measure(ctx context.Context, within time.Duration) (points []tune.Point, err error) {
	room, done := b.e.team.Practice()
	defer done()
	began := time.Now()
	for i, size := range gpuTuneSizes {
		size = min(size, room.Len()) / (16 * b.e.size) * 16 * b.e.size
		// A size takes about as long as all before it: the larger it is, the fewer calls.
		more, err := b.decide(ctx, i == 0 || 2*time.Since(began) < within)
		if err != nil || !more {
			return points, err
		}
		for _, k := range measuredKinds {
			list, err := b.kind(ctx, k, room.Slice(0, size))
			if err != nil {
				return nil, err
			}
			points = append(points, list...)
		}
	}
	return points, nil
}

// decide gives every rank what rank 0 thinks.
func (b *peersBench) decide(ctx context.Context, think bool) (bool, error) {
	key := fmt.Sprintf("more/%d", b.turn)
	b.turn++
	if b.e.rank == 0 {
		return think, b.ex.Set(ctx, key, fmt.Append(nil, think))
	}
	said, err := b.ex.Wait(ctx, key)
	return string(said) == "true", err
}

// kind times all ways to make one collective on an array. Those that are expected to take
// far longer than the best are left out.
func (b *peersBench) kind(ctx context.Context, k transport.Kind, array device.Buffer) (points []tune.Point, err error) {
	best := math.Inf(1)
	c := b.call(k, array)
	list := b.e.waysOf(gpuSized{sized{k, array.Len()}, b.e.copies(c), b.e.team.Reaches(theirs(c))})
	for _, a := range list {
		best = min(best, b.expected(k, a, array))
	}
	for _, a := range list {
		p := tune.Point{Call: onGPUs(k), Algorithm: string(a), Bytes: array.Len(), Expected: b.expected(k, a, array)}
		if p.Expected <= hopeless*best {
			if p.Seconds, err = b.time(ctx, k, a, array); err != nil {
				return nil, err
			}
		}
		points = append(points, p)
	}
	return points, nil
}

func (b *peersBench) expected(k transport.Kind, a Algorithm, array device.Buffer) float64 {
	return b.e.costs.expected(k, a, b.e.size, array.Len())
}

// call is a collective on an array, as a group's is that makes it in place.
func (b *peersBench) call(k transport.Kind, array device.Buffer) *call {
	c := &call{to: array, from: array}
	c.Kind, c.DType, c.Op, c.Root = k, dtype.F32, Sum, -1
	part := array.Len() / b.e.size
	own := array.Slice(b.e.rank*part, (b.e.rank+1)*part)
	c.Count = uint64(array.Len() / c.DType.Size())
	switch k {
	case transport.ReduceScatter:
		c.to, c.Count = own, uint64(part/c.DType.Size())
	case transport.AllGather:
		c.from, c.Count = own, uint64(part/c.DType.Size())
	case transport.Broadcast:
		c.Root = 0
	}
	return c
}

// time is what a call takes in a row of them: the shorter of two rows. The first call brings
// the ranks together, and does not count.
func (b *peersBench) time(ctx context.Context, k transport.Kind, a Algorithm, array device.Buffer) (float64, error) {
	calls := min(max(32<<20/array.Len(), 2), 20)
	s := b.u.stream
	run := func() error {
		c := b.call(k, array)
		c.algorithm = a
		if b.e.marks(c) {
			_, err := b.e.mark(s, c)
			return err
		}
		end, err := b.e.enqueue(s, c)
		if err == nil {
			end.Release()
		}
		return err
	}
	if err := run(); err != nil {
		return 0, err
	}
	const rows = 2
	places := []*cuda.Event{s.Record().(*cuda.Event)}
	for range rows {
		for range calls {
			if err := run(); err != nil {
				return 0, err
			}
		}
		places = append(places, s.Record().(*cuda.Event))
	}
	if err := b.u.await(ctx, places[rows]); err != nil {
		return 0, err
	}
	best := math.Inf(1)
	for i := range rows {
		took, err := places[i+1].Since(places[i])
		if err != nil {
			return 0, err
		}
		best = min(best, took.Seconds()/float64(calls))
	}
	for _, p := range places {
		p.Release()
	}
	if best <= 0 {
		return 0, errors.New("the GPU says that calls took no time")
	}
	return best, nil
}
