package zero

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

func compressor(t *testing.T, o compress.Options) *compress.Compressor {
	c, err := compress.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// squeezing are the schemes, and how far they may lead from an uncompressed run: AdamW
// moves a weight by at most 0.01 a step, and they mostly move it in the same direction.
var squeezing = []struct {
	compress.Options
	tolerance float64
}{
	{compress.Options{Scheme: compress.FP16}, 1e-3},
	{compress.Options{Scheme: compress.BF16}, 1e-2},
	{compress.Options{Scheme: compress.Int8}, 2e-2},
	{compress.Options{Scheme: compress.TopK, Fraction: 0.3}, 0.1},
	{compress.Options{Scheme: compress.PowerSGD, Rank: 2, Start: 2}, 0.1},
}

// Where a scheme keeps everything, every stage trains as plain data parallelism does:
// bit by bit where sums are made in the same order, which top-k of all elements does.
func TestTrainingWithAllElementsEqualsDDP(t *testing.T) {
	for _, n := range []int{1, 3} {
		for _, accumulate := range []int{1, 2} {
			want := trainDDP(t, "comm", n, accumulate, trainSteps, toyF32, ddpOptions)
			for _, o := range caps {
				for o.Stage = 1; o.Stage <= 3; o.Stage++ {
					t.Run(fmt.Sprintf("ranks=%d accumulate=%d cap=%d stage=%d", n, accumulate, o.BucketCap, o.Stage), func(t *testing.T) {
						ranks(t, n, toyF32, func(w *worker) {
							mine := o
							mine.Compress = compressor(t, compress.Options{Scheme: compress.TopK, Fraction: 1})
							if !w.start(Options{PlanOptions: mine}) {
								return
							}
							r := w.train(accumulate)
							if !r.load() || !r.steps(trainSteps) {
								return
							}
							tolerance := 0.0
							if o.Stage > 1 && accumulate > 1 {
								tolerance = 1e-5
							}
							equal(t, fmt.Sprintf("rank %d", w.rank), outcome{r.weights(), r.norms}, want, tolerance)
						}, "comm")
					})
				}
			}
		}
	}
}

// With each scheme, the weights of every stage stay near those of an uncompressed run,
// and all ranks and a communication stream that is late come to the same bits.
func TestCompressedTrainingStaysNear(t *testing.T) {
	plain := trainDDP(t, "hub", 3, 2, trainSteps, toyF32, ddpOptions)
	for _, x := range squeezing {
		for stage := 1; stage <= 3; stage++ {
			t.Run(fmt.Sprintf("%s stage=%d", x.Scheme, stage), func(t *testing.T) {
				ranks(t, 3, toyF32, func(w *worker) {
					if w.gpu != nil && x.Scheme != compress.FP16 && x.Scheme != compress.BF16 {
						return
					}
					var seen [2]outcome
					for run := range seen {
						prompt := w.group
						if run == 1 {
							open := make(chan struct{})
							close(open)
							w.group = lateAll{late{prompt, &open, rand.New(rand.NewPCG(uint64(w.rank), uint64(stage)))}}
						}
						started := w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003, Compress: compressor(t, x.Options)}})
						w.group = prompt
						if !started {
							return
						}
						r := w.train(2)
						if !r.load() || !r.steps(trainSteps) {
							return
						}
						seen[run] = outcome{r.weights(), r.norms}
					}
					equal(t, fmt.Sprintf("rank %d, late against prompt", w.rank), seen[1], seen[0], 0)
					worst := 0.0
					for name, v := range plain.weights {
						for e := range v {
							worst = max(worst, math.Abs(float64(v[e]-seen[0].weights[name][e])))
						}
					}
					if !(worst <= x.tolerance) || worst == 0 {
						t.Errorf("rank %d: a weight is off by %v", w.rank, worst)
					}
				})
			})
		}
	}
}

// lateAll is late with what hooks need.
type lateAll struct{ late }

func (g lateAll) AllToAll(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work {
	g.delay(s)
	return g.Group.(compress.Group).AllToAll(s, dst, src, dt)
}

// What is sent and held is what the plan says, and the transport counts.
func TestCompressedBytesAndMemoryAreThePlans(t *testing.T) {
	const layers, micro = 4, 3
	for _, x := range squeezing {
		for stage := 1; stage <= 3; stage++ {
			t.Run(fmt.Sprintf("%s stage=%d", x.Scheme, stage), func(t *testing.T) {
				ranks(t, 3, func() []*param.Param { return deep(layers, dtype.F32) }, func(w *worker) {
					o := x.Options
					o.Start = 0
					c := compressor(t, o)
					if !w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 1, BucketCap: 200 << 10, Compress: c}}) {
						return
					}
					z, plan := w.zero, w.zero.Plan()
					before := w.transported()
					for i := range micro {
						if !w.ok("StepBegin", z.StepBegin(i == micro-1)) {
							return
						}
						w.pass(layers)
						if !w.ok("Finish", z.Finish(w.ctx)) {
							return
						}
					}
					s, err := z.Stats(w.ctx)
					if !w.ok("Stats", err) || !w.ok("comm", w.comm.Synchronize(w.ctx)) {
						return
					}
					want := plan.Sent(micro)
					if s.Sent.ReduceScatter != want.ReduceScatter || c.Stats().Sent != want.ReduceScatter {
						t.Errorf("rank %d: %d bytes of gradients sent, the hook counts %d, the plan says %d", w.rank, s.Sent.ReduceScatter, c.Stats().Sent, want.ReduceScatter)
					}
					if got := w.transported() - before; stage < 3 && math.Abs(float64(got-want.ReduceScatter)) > 0.005*float64(got)+200 {
						t.Errorf("rank %d: the transport sent %d bytes, the plan says %d", w.rank, got, want.ReduceScatter)
					}
					if got, want := s.Memory.Compress, plan.Memory().Compress; got != want || got == 0 {
						t.Errorf("rank %d: compression takes %d bytes, the plan says %d", w.rank, got, want)
					}
				}, "comm")
			})
		}
	}
}

// A NaN on one rank is in every rank's norm. The window is taken back: no master
// changes, and nothing that is owed.
func TestACompressedNaNIsSkippedByAll(t *testing.T) {
	for _, x := range squeezing {
		for stage := 1; stage <= 3; stage++ {
			ranks(t, 3, toyF32, func(w *worker) {
				if w.gpu != nil && x.Scheme != compress.FP16 && x.Scheme != compress.BF16 {
					return
				}
				c := compressor(t, x.Options)
				if !w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003, Compress: c}}) {
					return
				}
				r := w.train(2)
				if !r.load() || !r.steps(3) {
					return
				}
				kept := func() (all [][]float32) {
					for _, s := range c.State() {
						all = append(all, append([]float32{}, s.F32()...))
					}
					return all
				}
				weights, owed := r.weights(), kept()
				r.model.value = func(sample, e int, weight, mean float64) float64 {
					if sample == 20 && e == 2 { // of rank 1
						return math.NaN()
					}
					return gradient(sample, e, weight, mean)
				}
				if !r.enqueue() || !w.ok("Gather", w.zero.Gather()) || !w.synchronize() {
					return
				}
				c.Discard()
				if n := r.norms[len(r.norms)-1]; !math.IsNaN(n) && !math.IsInf(n, 0) {
					t.Errorf("%s, stage %d, rank %d: the norm is %v", x.Scheme, stage, w.rank, n)
				}
				if !reflect.DeepEqual(r.weights(), weights) || !reflect.DeepEqual(kept(), owed) {
					t.Errorf("%s, stage %d, rank %d: the skipped step has changed something", x.Scheme, stage, w.rank)
				}
				r.model.value = nil
				if r.steps(1) && !(r.norms[len(r.norms)-1] > 0) {
					t.Errorf("%s, stage %d, rank %d: the norm behind it is %v", x.Scheme, stage, w.rank, r.norms[len(r.norms)-1])
				}
			})
		}
	}
}

func TestWhatCannotBeCompressedIsRefused(t *testing.T) {
	ranks(t, 2, toyF32, func(w *worker) {
		o := Options{PlanOptions: PlanOptions{Stage: 2, Compress: compressor(t, compress.Options{Scheme: compress.TopK, Fraction: 0.5})}}
		if w.gpu != nil {
			w.wants(w.new(o), "zero: rank ", "Options.Compress, topk 0.5: ", "works on host memory, and gradients lie in memory of cuda:0: use fp16 or bf16")
			return
		}
		if w.rank == 1 {
			o.Compress = compressor(t, compress.Options{Scheme: compress.PowerSGD, Rank: 3})
		}
		w.wants(w.new(o), "Options.Compress: rank 0 has topk 0.5, rank 1 has powersgd rank 3")
	})
	ranks(t, 2, toyF32, func(w *worker) {
		w.wants(w.new(Options{PlanOptions: PlanOptions{Stage: 2, ReduceDType: dtype.BF16, Compress: compressor(t, compress.Options{Scheme: compress.Int8})}}),
			"ReduceDType is bf16 beside Compress, int8, which decides what travels")
	})
}
