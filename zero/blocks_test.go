package zero

import (
	"fmt"
	"testing"
)

// While a block of stage 3 is in use the next one is gathered: in the direction of
// travel, and from the second step on the one that followed last time, which at the
// turn is the tied head's.
func TestTheNextBlockIsGatheredBesideTheOneInUse(t *testing.T) {
	ranks(t, 2, toyF32, func(w *worker) {
		if !w.start(Options{PlanOptions: PlanOptions{Stage: 3}}) {
			return
		}
		z := w.zero
		travel := []int{0, 1, 2, 3, 0, 3, 2, 1, 0}
		surprises := map[int]int{}
		for step := range 3 {
			if !w.ok("Gather", z.Gather()) {
				return
			}
			for i, block := range travel {
				if z.blocks[block].space == nil {
					surprises[step]++
				}
				z.Use(block)
				if next := i + 1; (step > 0 || i < 3) && next < len(travel) && z.blocks[travel[next]].space == nil {
					w.t.Errorf("step %d: block %d is not on its way while %d is in use", step, travel[next], block)
				}
				z.Done(block)
			}
		}
		// The turn is not known in the first step, nor what follows the last block.
		if surprises[1] > 1 || surprises[2] != 0 {
			w.t.Errorf("rank %d: blocks that nothing had asked for: %v", w.rank, surprises)
		}
		w.synchronize()
	})
}

// Two buffers rotate through all buckets, and those of tied weights, which stay open
// from the beginning of the backward pass to its end, have their own: as much as was
// planned, and no bucket waits for another. Tied weights that nobody has named get
// theirs when they are written.
func TestBuffersRotate(t *testing.T) {
	for stage := 2; stage <= 3; stage++ {
		for _, tied := range [][]string{toyTied, nil} {
			t.Run(fmt.Sprintf("stage=%d tied=%v", stage, tied), func(t *testing.T) {
				ranks(t, 2, toyF32, func(w *worker) {
					if !w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 1, BucketCap: 1, Tied: tied}}) {
						return
					}
					for range 3 {
						if !w.ok("StepBegin", w.zero.StepBegin(true)) {
							return
						}
						w.give(-1)
						if !w.ok("Finish", w.zero.Finish(w.ctx)) {
							return
						}
					}
					if n := len(w.zero.buffers); n != 2 {
						w.t.Errorf("rank %d: %d buffers for %d buckets, one after another", w.rank, n, len(w.zero.buckets))
					}
					r := w.train(1)
					if !r.load() || !r.steps(3) {
						return
					}
					s, err := w.zero.Stats(w.ctx)
					if !w.ok("Stats", err) {
						return
					}
					planned := w.zero.plan.Memory().Buffers
					if n := len(w.zero.buffers); tied != nil && (n != 2 || s.Memory.Buffers != planned) {
						w.t.Errorf("rank %d: %d buffers of %d bytes, %d bytes are planned", w.rank, n, s.Memory.Buffers, planned)
					} else if tied == nil && (n == 2 || s.Memory.Buffers <= planned) {
						w.t.Errorf("rank %d: %d buffers of %d bytes, and more are written at a time", w.rank, n, s.Memory.Buffers)
					}
				})
			})
		}
	}
}

// However small a model, and however large its buckets may be, the buffers are no
// larger than two of its buckets, and those of its tied weights.
func TestBuffersAreNoLargerThanTheModel(t *testing.T) {
	for _, o := range caps {
		o.Stage, o.Tied = 2, []string{"embed"}
		plan := mustPlan(t, toyF32(), 2, o)
		model, largest, tied := 0, 0, 0
		for i := range plan.Buckets {
			n := plan.Buckets[i].gradBytes()
			model += n
			if plan.Buckets[i].Tied {
				tied += n
			} else {
				largest = max(largest, n)
			}
		}
		if got := int(plan.Memory().Buffers); got > 2*largest+tied || got > 2*model || tied == 0 {
			t.Errorf("%+v: buffers of %d bytes, for a model of %d in buckets of at most %d, and %d that are tied", o, got, model, largest, tied)
		}
	}
}

// Options.Reduced sees the buckets in order, each reduced, with all of the shards.
func TestReducedSeesEachBucket(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		ranks(t, 3, toyF32, func(w *worker) {
			var buckets []int
			var sums []float64
			pieces := 0
			o := Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003}}
			o.Reduced = func(i int, shards []Shard) {
				buckets = append(buckets, i)
				pieces += len(shards)
				w.compute.Do("sum", func() error {
					for _, s := range shards {
						for _, g := range w.see(s.Grad).F32() {
							sums = append(sums, float64(g))
						}
					}
					return nil
				})
			}
			if !w.start(o) {
				return
			}
			r := w.train(1)
			r.model.value = func(_, _ int, _, _ float64) float64 { return 1 }
			if !r.load() || !w.ok("step", r.model.step(w.ctx, w.zero, w.rank, w.size, 1)) || !w.synchronize() {
				return
			}
			if len(buckets) != len(w.zero.buckets) || buckets[0] != 0 || pieces != len(w.zero.Shards()) {
				w.t.Errorf("rank %d: buckets %v with %d pieces", w.rank, buckets, pieces)
			}
			for i, g := range sums {
				if g != samples && g != 2*samples { // embed has two writers
					w.t.Errorf("rank %d: gradient %d is %v before its reduction", w.rank, i, g)
					return
				}
			}
		})
	}
}
