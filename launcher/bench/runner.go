package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

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

// runner is one rank of a benchmark of one engine. One goroutine uses it.
type runner struct {
	parsed
	spec    // that is being measured
	ctx     context.Context
	o       Options
	engine  Engine
	group   *comm.Group
	dev     device.Device
	stream  device.Stream     // of the collective
	host    *device.CPUStream // of what ranks tell each other; stream, on the CPU
	sizes   []size
	pattern pattern

	src, dst device.Buffer // as large as the largest size needs, and room for -u
	private  []device.Buffer
	stage    device.Buffer // of the host, as large as either; on GPUs alone
	product  product       // nil without Overlap
	rounds   int           // products that are timed together
	found    found
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
	beside    *beside // with Overlap
}

func newRunner(ctx context.Context, dev device.Device, e Engine, o Options) (_ *runner, err error) {
	r := &runner{ctx: ctx, o: o, engine: e, group: e.Group, dev: dev}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if r.parsed, err = o.parse(); err != nil {
		return nil, err
	}
	ranks := r.group.Size()
	if r.kind.rooted && (o.Root < 0 || o.Root >= ranks) {
		return nil, fmt.Errorf("--root %d: with %d ranks it is 0 to %d", o.Root, ranks, ranks-1)
	}
	for _, s := range o.specs(r.parsed, ranks) { // the largest arrays fit all
		if err := r.use(s); err != nil {
			return nil, err
		}
	}
	r.host = device.NewCPUStream("bench", nil)
	defer func() {
		if err != nil {
			r.close() // the stream's error is err
		}
	}()
	if r.stream = r.host; dev.Kind() != device.CPU {
		if r.stream, err = dev.NewStream("bench"); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if err := r.agree(string(text)); err != nil {
		return nil, err
	}
	if err := r.allocate(); err != nil {
		return nil, err
	}
	if o.Overlap > 0 {
		if err := r.prepareProduct(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// use makes s what is measured from here on.
func (r *runner) use(s spec) (err error) {
	ranks := r.group.Size()
	r.spec = s
	r.pattern = pattern{ranks: ranks, dt: s.dt, op: s.op, reduces: r.kind.reduces}
	if r.o.Checks > 0 {
		if err := r.pattern.verifiable(); err != nil {
			return err
		}
	}
	r.sizes, err = r.o.sizes(r.kind, s.dt, ranks)
	return err
}

func (r *runner) close() error {
	var errs []error
	if r.product != nil {
		errs = append(errs, r.product.close())
	}
	for _, b := range append(r.private, r.stage) {
		if b.Len() > 0 {
			errs = append(errs, r.dev.Free(b))
		}
	}
	if r.stream != nil && r.stream != device.Stream(r.host) {
		errs = append(errs, r.stream.Close())
	}
	if r.host != nil {
		errs = append(errs, r.host.Close())
	}
	return errors.Join(errs...)
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
		if r.product != nil {
			if res.beside, err = r.timeBeside(pl, s, res.seconds); err != nil {
				return m, err
			}
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

// check makes one call and returns how many elements of this rank's dst are wrong.
func (r *runner) check(pl placement, s size, seed int) (wrong int64, err error) {
	rank := r.group.Rank()
	dst, src := r.buffers(pl, s)
	// What no result contains: -1, 255 in u8.
	if err := r.write(dst, block{appendValue(nil, r.dt, -1), r.dt.Size()}); err != nil {
		return 0, err
	}
	if !r.kind.rooted || rank == r.root {
		if err := r.write(src, r.pattern.source(rank, seed)); err != nil {
			return 0, err
		}
	}
	r.kind.call(r, dst, src)
	out, err := r.read(dst)
	if err != nil {
		return 0, err
	}
	part := s.count * r.dt.Size()
	for p := 0; len(out) > 0; p++ {
		from, at := r.kind.origin(rank, p, s.count, r.root)
		wrong += r.pattern.source(from, seed).wrong(out[:part], at)
		out = out[part:]
	}
	return wrong, nil
}

// combine reduces values over all ranks.
func (r *runner) combine(values []int64, op comm.Op) error {
	if len(values) > 0 {
		r.group.AllReduce(r.host, device.Of(values), i64, op)
	}
	return r.host.Synchronize(r.ctx)
}

// sync waits for the collective's stream. The calls' own deadlines bound it.
func (r *runner) sync() error { return r.stream.Synchronize(r.ctx) }
