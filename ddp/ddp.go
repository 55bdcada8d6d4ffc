package ddp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/arrays"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// DDP is one rank's gradient buckets and their reduction. All methods are host
// calls for one goroutine, the one that enqueues the backward pass.
//
// The first error is final: every later StepBegin and Finish returns it, and the
// group is aborted with it. The other ranks fail in the same step, or in the
// next one where the fault came behind the step's last reduction.
type DDP struct {
	group         Group
	compute, comm device.Stream
	hostComm      device.Stream // for collectives of host memory: comm, or a stream of our own where that is of a GPU
	memory        memory
	own           []device.Buffer // memory of the streams' device, freed by Close
	options       Options
	log           *slog.Logger

	plan    *Plan
	params  []*param.Param       // the trainable ones, in the order of the parameter list
	index   map[*param.Param]int // place in params, and in all slices below
	frozen  map[*param.Param]bool
	arena   device.Buffer // all buckets' memory
	wire    device.Buffer // the same in ReduceDType; empty where that is the gradients' type
	buckets []bucket
	grads   []tensor.Tensor // views of the arena
	home    []*bucket

	// One accumulation window: the micro-steps whose gradients are added up.
	window  bool    // it has begun
	written []bool  // the gradient holds something of this window
	used    []bool  // after a synced Finish: some rank wrote it in the window
	users   []int32 // how many did, on their way between ranks; nil without FindUnused

	presence presence
	buffers  []flatBuffers
	copying  [2]device.Event // on the compute stream, around the window's broadcast of buffers

	// A checksum of every weight, of 8 bytes each: on the streams' device, and
	// where the host reads them. Empty at one rank.
	sums, sumsRead device.Buffer

	// One micro-step.
	open, sync bool
	touched    []bool  // Get was called
	ready      []bool  // Ready was called
	readyOrder []int32 // the same in the order of the calls
	next       int     // the bucket that leaves next

	steps    int    // micro-steps begun
	synced   int    // synced micro-steps finished
	static   []bool // what the first micro-step used; nil before, and without StaticGraph
	settled  bool   // StaticGraph: used holds for good
	reorder  []string
	err      error
	timeline timeline
	rows     rows
}

// bucket is one message.
type bucket struct {
	Slots
	flat    tensor.Tensor // the gradients and the padding, [Padded/size]
	wire    tensor.Tensor // what travels: flat, or its copy in ReduceDType
	pending int           // parameters that are not Ready yet
	sent    int64         // bytes that this rank has sent for the last reduction
	// ready is on the compute stream, behind the last gradient; start and done
	// are on the communication stream, around the reduction.
	ready, start, done device.Event
	// before and after are on the compute stream, around its wait for done; before is
	// nil where that is the end of the backward pass, and both where it does not wait.
	before, after device.Event
}

// Bucket is one bucket as an optimizer sees it.
type Bucket struct {
	Slots
	// Flat is the bucket's memory, [Padded/size of DType]. What lies between
	// the gradients is zero, so that a norm may run over all of it.
	Flat tensor.Tensor
}

// New compares the ranks' parameter lists and options, allocates the buckets
// from the group and returns this rank's DDP. Every rank calls it with the same
// arguments; where they differ, every rank returns the same error, which names
// what differs and on whom. ctx bounds the comparison.
//
// Both streams must be of one device and should be two different ones: with a
// single stream nothing overlaps. Gradients and weights are in that device's
// memory; a group of more than one rank must be able to reduce it. Streams and
// group stay the caller's to close, behind Close, and the group last.
func New(ctx context.Context, g Group, compute, comm device.Stream, params []*param.Param, o Options) (*DDP, error) {
	d, err := prepare(g, compute, comm, params, o)
	if err != nil {
		g.Abort(fmt.Errorf("%s: %w", agree.Who(g, g.Rank()), err)) // the others may be fine, and wait
		return nil, err
	}
	if err := d.compareRanks(ctx, params); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := d.alloc(); err != nil {
		err = fmt.Errorf("ddp: %s: memory for %d bytes of gradient buckets and %d buffers: %w", agree.Who(g, g.Rank()), d.plan.Bytes, len(o.Buffers), err)
		g.Abort(err)
		return nil, errors.Join(err, d.Close())
	}
	d.layOut(d.plan)
	if err := d.openHook(); err != nil {
		g.Abort(err)
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close frees what New has made; only what came from the group stays until the
// group is closed. No stream may still be at work on gradients. Nothing else may
// be called afterwards; a second Close does nothing.
func (d *DDP) Close() error {
	var errs []error
	for _, b := range d.own {
		errs = append(errs, d.compute.Device().Free(b))
	}
	d.own = nil
	if d.memory != nil {
		errs = append(errs, d.memory.Close())
		d.memory = nil
	}
	if d.hostComm != d.comm {
		// Its error, if any, is that of a collective whose caller has waited and got it.
		d.hostComm.Close()
	}
	return errors.Join(errs...)
}

// prepare does what needs no other rank.
func prepare(g Group, compute, comm device.Stream, params []*param.Param, o Options) (*DDP, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	plan, err := NewPlan(params, o.PlanOptions)
	if err != nil {
		return nil, err
	}
	d := &DDP{group: g, compute: compute, comm: comm, hostComm: comm, options: o, log: o.Logger, plan: plan,
		index: map[*param.Param]int{}, frozen: map[*param.Param]bool{}}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	for _, p := range params {
		if p.Frozen {
			d.frozen[p] = true
			continue
		}
		d.index[p] = len(d.params)
		d.params = append(d.params, p)
	}
	n := len(d.params)
	d.grads, d.home = make([]tensor.Tensor, n), make([]*bucket, n)
	d.written, d.used, d.touched, d.ready = make([]bool, n), make([]bool, n), make([]bool, n), make([]bool, n)
	d.readyOrder = make([]int32, 0, n)
	if o.FindUnused {
		d.users = make([]int32, n)
	}
	if err := checkBuffers(o.Buffers, compute.Device()); err != nil {
		return nil, err
	}
	if d.memory = o.memory; d.memory == nil {
		if d.memory, err = arrays.Of("ddp", compute, comm); err != nil {
			return nil, fmt.Errorf("ddp: %w", err)
		}
	}
	if !d.onCPU() {
		d.hostComm = device.NewCPUStream("collectives of the host", nil)
	}
	return d, nil
}

// onCPU reports whether the streams' memory is the host's.
func (d *DDP) onCPU() bool { return d.compute.Device().Kind() == device.CPU }

// StepBegin begins a micro-step. With sync false its gradients stay on this
// rank (PyTorch's no_sync); with sync true the sum of this and all micro-steps
// since the last synced one is reduced over the ranks. Every rank must begin as
// many synced micro-steps as the others; Join is for ranks that cannot. The
// unsynced ones before are its own affair.
//
// The first micro-step of a window broadcasts Options.Buffers.
//
// The micro-step after a synced one overwrites the gradients: work that reads
// them must be enqueued on the compute stream before. It also is where the plan
// is rebuilt, once, after the first synced micro-step.
func (d *DDP) StepBegin(sync bool) error {
	if d.err != nil {
		return d.err
	}
	if d.open {
		return d.fail(errors.New("StepBegin before the last micro-step's Finish"))
	}
	if err := d.rebuild(); err != nil {
		return d.fail(err)
	}
	if !d.window {
		if d.compresses() {
			d.options.Compress.Begin()
		}
		device.Release(d.copying[:]...)
		d.copying[0], d.copying[1] = d.enqueueBuffers()
	}
	d.window, d.open, d.sync = true, true, sync
	d.steps++
	d.next = 0
	d.readyOrder = d.readyOrder[:0]
	clear(d.touched)
	clear(d.ready)
	for i := range d.buckets {
		b := &d.buckets[i]
		b.pending = len(b.Params)
	}
	if sync {
		d.forget()
		d.timeline.begin = d.compute.Record()
	}
	d.settleStaticallyUnused()
	return d.err
}

// Finish ends a micro-step. Every trainable parameter must be Ready, or unused
// under FindUnused; else the error names the missing ones.
//
// After a synced micro-step, work enqueued on the compute stream from now on
// waits for the reduction of the last bucket. Options.Reduced comes before. The
// host does not wait, except in the first synced micro-step, to learn rank 0's
// order, and under FindUnused: for the other ranks' hosts, which are at the same
// place, and not for a GPU. ctx bounds that. From the second step on nothing is
// allocated but the events and closures of the streams, about ten small objects a
// bucket.
func (d *DDP) Finish(ctx context.Context) error {
	if d.err != nil {
		return d.err
	}
	if !d.open {
		return d.fail(errors.New("Finish without StepBegin"))
	}
	if err := d.settleMissing(); err != nil {
		return d.fail(err)
	}
	d.open = false
	if !d.sync {
		return nil
	}
	if p := d.rows.promised; p != nil {
		return d.fail(fmt.Errorf("OfferRows of %s without GatherRows", p.Name))
	}
	d.timeline.end = d.compute.Record()
	d.launch()
	d.takeBuckets()
	d.synced++
	if err := d.agreeOnUse(ctx); err != nil {
		return d.fail(err)
	}
	if err := d.agreeOnOrder(ctx); err != nil {
		return d.fail(err)
	}
	clear(d.written)
	d.window = false
	return nil
}

// takeBuckets makes the compute stream wait for one bucket after the other, and
// hands each to Options.Reduced: work on the first ones fills the time until the
// last has come. Between two waits that nothing fills there is no event.
func (d *DDP) takeBuckets() {
	for i := range d.buckets {
		b := &d.buckets[i]
		if last := i == len(d.buckets)-1; d.options.Reduced != nil && d.group.Size() > 1 || last {
			if i > 0 && d.options.Reduced != nil {
				b.before = d.compute.Record()
			}
			d.compute.Wait(b.done)
			b.after = d.compute.Record()
		}
		if d.options.Reduced != nil {
			d.options.Reduced(i, Bucket{b.Slots, b.flat})
		}
	}
}

// Grad is p's gradient, shaped as p. It is reduced after a synced Finish, until
// the next StepBegin. The zero Tensor stands for a gradient that no rank has
// (FindUnused): an optimizer passes over the parameter. Views change their place
// when the plan is rebuilt: ask again in each step.
func (d *DDP) Grad(p *param.Param) tensor.Tensor {
	i := d.mustIndex(p)
	if d.options.FindUnused && !d.used[i] {
		return tensor.Tensor{}
	}
	return d.grads[i]
}

// Buckets lists the buckets in the order of reduction. They are valid as long
// as a view that Grad returns.
func (d *DDP) Buckets() []Bucket {
	list := make([]Bucket, len(d.buckets))
	for i, b := range d.buckets {
		list[i] = Bucket{b.Slots, b.flat}
	}
	return list
}

// Plan is the plan in use.
func (d *DDP) Plan() *Plan { return d.plan }

// Order names the parameters in the order that the next step's plan follows. A
// run that goes on from a checkpoint passes it as PlanOptions.Order: it then
// adds up in the same order and gives the same bits. It is the same on every
// rank after Finish.
func (d *DDP) Order() []string {
	if d.reorder != nil {
		return d.reorder
	}
	return d.plan.Order()
}

// Err is the first error, nil while there is none. Errors of collectives are
// those of the streams.
func (d *DDP) Err() error { return d.err }

// fail keeps the first error, says whose it is, and ends the group, so that the
// other ranks learn of it instead of waiting.
func (d *DDP) fail(err error) error {
	if d.err == nil {
		d.err = fmt.Errorf("ddp: %s: micro-step %d: %w", agree.Who(d.group, d.group.Rank()), d.steps, err)
		d.open = false
		d.group.Abort(d.err)
	}
	return d.err
}

// those lists the parameters that keep says yes to.
func (d *DDP) those(keep func(i int) bool) (list []*param.Param) {
	for i, p := range d.params {
		if keep(i) {
			list = append(list, p)
		}
	}
	return list
}
