package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

const (
	u8  = dtype.U8
	i64 = dtype.I64
)

// placement is where dst lies.
type placement int

const (
	outOfPlace placement = iota
	inPlace
)

// runner is one rank of a benchmark. One goroutine uses it.
type runner struct {
	parsed
	ctx     context.Context
	o       Options
	group   *comm.Group
	stream  *device.CPUStream
	sizes   []size
	pattern pattern

	src, dst device.Buffer // as large as the largest size needs
}

// measured is one size, timed and verified.
type measured struct {
	size
	results [2]*result // by placement; nil where there is no such form
}

type result struct {
	seconds   float64 // of one call
	wrong     int64   // elements on all ranks, in all verified calls
	algorithm comm.Algorithm
}

func newRunner(ctx context.Context, group *comm.Group, o Options) (_ *runner, err error) {
	r := &runner{ctx: ctx, o: o, group: group}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if r.parsed, err = o.parse(); err != nil {
		return nil, err
	}
	ranks := group.Size()
	if r.sizes, err = o.sizes(r.parsed, ranks); err != nil {
		return nil, err
	}
	if r.kind.rooted && (o.Root < 0 || o.Root >= ranks) {
		return nil, fmt.Errorf("--root %d: with %d ranks it is 0 to %d", o.Root, ranks, ranks-1)
	}
	r.pattern = pattern{ranks: ranks, dt: r.dt, op: r.op, reduces: r.kind.reduces}
	if o.Checks > 0 {
		if err := r.pattern.verifiable(); err != nil {
			return nil, err
		}
	}
	r.stream = device.NewCPUStream("bench", nil)
	defer func() {
		if err != nil {
			r.close() // the stream's error is err
		}
	}()
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if err := r.agree(string(text)); err != nil {
		return nil, err
	}
	largest := r.sizes[len(r.sizes)-1]
	if r.src, err = r.alloc(r.srcBytes(largest)); err != nil {
		return nil, err
	}
	r.dst, err = r.alloc(r.dstBytes(largest))
	return r, err
}

func (r *runner) close() error { return r.stream.Close() }

// alloc is collective for the arena.
func (r *runner) alloc(n int) (device.Buffer, error) {
	if r.o.Buffers == Arena {
		return r.group.Alloc(n)
	}
	return device.NewCPU().Alloc(n)
}

func (r *runner) srcBytes(s size) int { return r.bytes(s, r.kind.manySrc) }
func (r *runner) dstBytes(s size) int { return r.bytes(s, r.kind.manyDst) }

func (r *runner) bytes(s size, parts bool) int {
	n := s.count * r.dt.Size()
	if parts {
		n *= r.group.Size()
	}
	return n
}

func (r *runner) placements() []placement {
	var all []placement
	if r.kind.outOfPlace {
		all = append(all, outOfPlace)
	}
	if r.kind.inPlace {
		all = append(all, inPlace)
	}
	return all
}

// buffers are the arguments of a call. In place the smaller one is this rank's
// part of the larger.
func (r *runner) buffers(pl placement, s size) (dst, src device.Buffer) {
	dst, src = r.dst.Slice(0, r.dstBytes(s)), r.src.Slice(0, r.srcBytes(s))
	if pl == outOfPlace {
		return dst, src
	}
	part := s.count * r.dt.Size()
	own := r.group.Rank() * part
	switch {
	case r.kind.manySrc:
		return src.Slice(own, own+part), src
	case r.kind.manyDst:
		return dst, dst.Slice(own, own+part)
	}
	return dst, dst
}

// measure times and verifies one size.
func (r *runner) measure(s size) (measured, error) {
	m := measured{size: s}
	for _, pl := range r.placements() {
		res := &result{}
		var err error
		if res.seconds, res.algorithm, err = r.time(pl, s); err != nil {
			return m, err
		}
		for k := range r.o.Checks {
			n, err := r.check(pl, s, k+1)
			if err != nil {
				return m, err
			}
			res.wrong += n
		}
		sum := []int64{res.wrong}
		if err := r.combine(sum, comm.Sum); err != nil {
			return m, err
		}
		res.wrong = sum[0]
		m.results[pl] = res
	}
	return m, nil
}

// time returns how long a call takes.
func (r *runner) time(pl placement, s size) (seconds float64, a comm.Algorithm, err error) {
	dst, src := r.buffers(pl, s)
	content := r.pattern.source(r.group.Rank(), 0)
	write := func() error {
		content.fill(src.Bytes(), 0)
		return nil
	}
	timed := r.timeOnStream
	if r.o.Blocking {
		timed = r.timeOnHost
	}
	if _, _, err := timed(r.o.Warmup, write, dst, src); err != nil {
		return 0, "", err
	}
	took, a, err := timed(r.o.Iterations, write, dst, src)
	if err != nil {
		return 0, "", err
	}
	seconds, err = r.typical(took)
	return seconds, a, err
}

// typical is the median over the calls of the slowest rank's nanoseconds, in seconds.
func (r *runner) typical(took []int64) (seconds float64, err error) {
	if err := r.combine(took, comm.Max); err != nil {
		return 0, err
	}
	return median(took) / 1e9, nil
}

// batch is how many iterations are enqueued at once: the stream's queue holds so
// many, and the host need not run beside them.
const batch = 512

// timeOnStream enqueues n iterations and returns the nanoseconds of each.
func (r *runner) timeOnStream(n int, write func() error, dst, src device.Buffer) (took []int64, a comm.Algorithm, err error) {
	for len(took) < n {
		k := min(n-len(took), batch)
		begin, end, works := make([]device.Event, k), make([]device.Event, k), make([]*comm.Work, k)
		enqueued := make(chan struct{})
		r.stream.Do("wait for the host", func() error {
			<-enqueued
			return nil
		})
		for i := range k {
			r.stream.Do("write", write)
			r.group.Barrier(r.stream)
			begin[i] = r.stream.Record()
			works[i] = r.kind.call(r, dst, src)
			end[i] = r.stream.Record()
		}
		close(enqueued)
		if err := r.sync(); err != nil {
			return nil, "", err
		}
		for i := range k {
			d, err := end[i].Since(begin[i])
			if err != nil {
				return nil, "", err
			}
			took = append(took, d.Nanoseconds())
		}
		a = works[k-1].Result().Algorithm
	}
	return took, a, nil
}

// timeOnHost makes n calls, each after the other, and returns the nanoseconds of
// each as the caller sees them.
func (r *runner) timeOnHost(n int, write func() error, dst, src device.Buffer) (took []int64, a comm.Algorithm, err error) {
	for range n {
		r.stream.Do("write", write)
		r.group.Barrier(r.stream)
		if err := r.sync(); err != nil {
			return nil, "", err
		}
		start := time.Now()
		work := r.kind.call(r, dst, src)
		if err := work.Wait(r.ctx); err != nil {
			return nil, "", err
		}
		took = append(took, time.Since(start).Nanoseconds())
		a = work.Result().Algorithm
	}
	return took, a, nil
}

// check makes one call and returns how many elements of this rank's dst are wrong.
func (r *runner) check(pl placement, s size, seed int) (wrong int64, err error) {
	rank := r.group.Rank()
	dst, src := r.buffers(pl, s)
	r.poison(dst.Bytes())
	if !r.kind.rooted || rank == r.o.Root {
		r.pattern.source(rank, seed).fill(src.Bytes(), 0)
	}
	r.kind.call(r, dst, src)
	if err := r.sync(); err != nil {
		return 0, err
	}
	out := dst.Bytes()
	part := s.count * r.dt.Size()
	for p := 0; len(out) > 0; p++ {
		from, at := r.kind.origin(rank, p, s.count, r.o.Root)
		wrong += r.pattern.source(from, seed).wrong(out[:part], at)
		out = out[part:]
	}
	return wrong, nil
}

// poison writes what no result contains: -1, 255 in u8.
func (r *runner) poison(x []byte) {
	block{appendValue(nil, r.dt, -1), r.dt.Size()}.fill(x, 0)
}

// combine reduces values over all ranks.
func (r *runner) combine(values []int64, op comm.Op) error {
	if len(values) > 0 {
		r.group.AllReduce(r.stream, device.Of(values), i64, op)
	}
	return r.sync()
}

// sync waits for the stream. The calls' own deadlines bound it.
func (r *runner) sync() error { return r.stream.Synchronize(r.ctx) }

// median of an odd number is the middle, else the mean of the two in the middle.
func median(v []int64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (float64(v[(len(v)-1)/2]) + float64(v[len(v)/2])) / 2
}
