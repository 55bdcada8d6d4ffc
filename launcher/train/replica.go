package train

import (
	"context"
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// replicated is plain data parallelism: every rank holds all weights and moments, and
// gradients are reduced by ddp.
type replicated struct {
	*ddp.DDP
	j      *job
	params []*param.Param // trainable
	slots  map[*param.Param]adamw.Slot
	list   []adamw.Slot // of a step, made anew in each
}

var (
	_ reducer = (*replicated)(nil)
	_ keeper  = (*replicated)(nil)
)

// replicate makes the weights, the moments and the gradient buckets.
func (j *job) replicate(ctx context.Context, order []string) error {
	params, p, c := j.model.Params(), j.cfg.Parallel, j.cfg.Comm
	w, err := param.NewReplica(j.device, params)
	if err != nil {
		return err
	}
	r := &replicated{j: j, slots: map[*param.Param]adamw.Slot{}}
	if err := r.alloc(w); err != nil {
		return err
	}
	r.DDP, err = ddp.New(ctx, j.group, j.compute, j.comms, params, ddp.Options{
		PlanOptions: bucketOptions(j.cfg, j.arch.on, order), NoOverlap: !c.Overlap, FindUnused: p.FindUnusedParameters, StaticGraph: p.StaticGraph,
		ReduceDType: typeNamed(p.ReduceDType), Compress: j.arch.compression.hook(), Reduced: r.addNorm, Rows: true,
	})
	if err != nil {
		return err
	}
	j.weights, j.forward, j.sink, j.reducer, j.keeper = w, w, r.DDP, r, r
	j.onClose(r.Close)
	return nil
}

// alloc allocates the moments, and master weights in f32 where the model computes in
// another type. Frozen weights have neither.
func (r *replicated) alloc(w *param.Replica) error {
	var rounded []*param.Param
	for _, p := range r.j.model.Params() {
		r.slots[p] = adamw.Slot{W: w.Weight(p), Decay: !p.NoDecay}
		if !p.Frozen {
			r.params = append(r.params, p)
		}
		if p.DType != dtype.F32 && !p.Frozen {
			rounded = append(rounded, p)
		}
	}
	for _, x := range []struct {
		what   string
		params []*param.Param
		set    func(s *adamw.Slot, t tensor.Tensor)
	}{
		{"master weights", rounded, func(s *adamw.Slot, t tensor.Tensor) { s.Master = t }},
		{"first moments", r.params, func(s *adamw.Slot, t tensor.Tensor) { s.M = t }},
		{"second moments", r.params, func(s *adamw.Slot, t tensor.Tensor) { s.V = t }},
	} {
		if len(x.params) == 0 {
			continue
		}
		list, err := tensor.Pack(r.j.states(), dtype.F32, param.Shapes(x.params))
		if err != nil {
			return fmt.Errorf("%s: %w", x.what, err)
		}
		for i, p := range x.params {
			s := r.slots[p]
			x.set(&s, list[i])
			r.slots[p] = s
		}
	}
	return nil
}

func bucketOptions(c *config.Config, on device.Kind, order []string) ddp.PlanOptions {
	return ddp.PlanOptions{
		BucketCap: mebibytes(c.Parallel.BucketCapMB), FirstBucket: mebibytes(c.Parallel.FirstBucketMB), Order: order,
		GradDType: gradType(c, on),
	}
}

// addNorm adds a bucket to the square of the gradients' norm, while later ones may
// still be on their way.
func (r *replicated) addNorm(i int, b ddp.Bucket) {
	r.j.ops.SumSquares(r.j.compute, r.j.scalars.norm2, b.Flat, i > 0)
}

func (r *replicated) Update(complete device.Event, lr float64) error {
	r.j.compute.Wait(r.addLosses(complete))
	r.list = r.list[:0]
	for _, p := range r.params {
		t := r.slots[p]
		if t.G = r.Grad(p); !t.G.None() { // else no rank used the parameter in this step
			r.list = append(r.list, t)
		}
	}
	r.j.optim.step(r.j.compute, r.j.ops, r.list, r.j.scalars, lr)
	return nil
}

// addLosses adds up the ranks' losses, which are complete at the given event, so
// that every rank's optimizer knows of one that is not finite. It comes behind all
// buckets: among them, its place would depend on when a rank's gradients are ready.
func (r *replicated) addLosses(complete device.Event) (done device.Event) {
	r.j.comms.Wait(complete)
	r.j.group.AllReduce(r.j.comms, r.j.scalars.lossSum.Buf, dtype.F64, comm.Sum)
	return r.j.comms.Record()
}

func (r *replicated) Waits(ctx context.Context) (waits, error) {
	s, err := r.Stats(ctx)
	return waits{exposed: s.Exposed, backward: s.Within, buckets: s.Buckets}, err
}

// Sent is of everything, what is exchanged beside the gradients included.
func (r *replicated) Sent() (n int64) {
	for _, w := range r.j.group.Stats().Wires {
		n += w.Sent
	}
	return n
}

// Close frees the gradients.
func (r *replicated) Close() error {
	r.j.rest()
	return r.DDP.Close()
}

func (r *replicated) About() string {
	return fmt.Sprintf("%s, %d buckets", gradType(r.j.cfg, r.j.arch.on), len(r.Buckets()))
}

func (r *replicated) Set(ctx context.Context, p *param.Param, of firstValues) error {
	all, err := of(elements{0, p.Numel()})
	if err != nil {
		return err
	}
	t := r.master(p)
	if t.DType == dtype.F32 {
		return r.j.upload(ctx, t, device.Of(all).Bytes())
	}
	rounded := make([]byte, t.Buf.Len())
	vec.Narrow(t.DType, rounded, all)
	return r.j.upload(ctx, t, rounded)
}

// Publish rounds the masters to the weights that the model computes with.
func (r *replicated) Publish() error {
	for _, p := range r.j.model.Params() {
		if t := r.slots[p]; !t.Master.None() {
			r.j.ops.Copy(r.j.compute, t.W, t.Master)
		}
	}
	return nil
}

// master is p's weight in f32; a frozen one has the type that the model computes in.
func (r *replicated) master(p *param.Param) tensor.Tensor {
	if s := r.slots[p]; !s.Master.None() {
		return s.Master
	}
	return r.slots[p].W
}

// Compare makes sure that all ranks hold the same weights, and the same masters
// where the weights are rounded from them: those can differ for long before a weight
// does. Moments that differ show in the masters after a step.
func (r *replicated) Compare(ctx context.Context) error {
	params := r.j.model.Params()
	if err := r.CheckReplicas(ctx, params, r.j.weights.Weight); err != nil {
		return err
	}
	if !slices.ContainsFunc(params, func(p *param.Param) bool { return !r.slots[p].Master.None() }) {
		return nil
	}
	if err := r.CheckReplicas(ctx, params, r.master); err != nil {
		return fmt.Errorf("the f32 masters of the weights: %w", err)
	}
	return nil
}

// Contents is all that is trained, which all ranks have: the optimizer has run, so every
// rank holds the same bits, and each writes its share of them.
func (r *replicated) Contents() []file {
	whole := func(t tensor.Tensor) func(from, to int) store {
		flat := t.Reshape(t.Numel())
		return func(from, to int) store { return inMemory{r.j, flat.Rows(from, to)} }
	}
	weights, moments := file{kind: weightsKind}, file{kind: optimizerKind}
	for _, p := range r.params {
		weights.add("", p, elements{0, p.Numel()}, elements{}, whole(r.master(p)))
		moments.add("m.", p, elements{0, p.Numel()}, elements{}, whole(r.slots[p].M))
		moments.add("v.", p, elements{0, p.Numel()}, elements{}, whole(r.slots[p].V))
	}
	files := []file{weights, moments}
	for i := range files {
		files[i].deal(r.j.rank(), r.j.size())
	}
	return files
}
