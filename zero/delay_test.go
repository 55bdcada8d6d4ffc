package zero

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// late is a group whose collectives come late: none begins before the rank's gate
// is open, and each then lets others run a random number of times.
type late struct {
	Group
	gate *chan struct{}
	rng  *rand.Rand
}

func (g late) delay(s device.Stream) {
	gate, yields := *g.gate, g.rng.IntN(300)
	s.(hostStream).Do("delay", func() error {
		<-gate
		for range yields {
			runtime.Gosched()
		}
		return nil
	})
}

func (g late) ReduceScatter(s device.Stream, dst, src device.Buffer, dt dtype.DType, op comm.Op) *comm.Work {
	g.delay(s)
	return g.Group.ReduceScatter(s, dst, src, dt, op)
}

func (g late) AllGather(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work {
	g.delay(s)
	return g.Group.AllGather(s, dst, src, dt)
}

func (g late) AllReduce(s device.Stream, buf device.Buffer, dt dtype.DType, op comm.Op) *comm.Work {
	g.delay(s)
	return g.Group.AllReduce(s, buf, dt, op)
}

// A communication stream that is late by a whole step and more changes nothing but
// time. As nothing moves before the host has enqueued a step, the host waits for no
// device either.
func TestDelaysChangeNothingButTime(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		for stage := 1; stage <= 3; stage++ {
			for i := range 6 {
				accumulate := []int{1, 2, 4}[i/2]
				o := Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003}, NoOverlap: i%2 == 1}
				if dt == dtype.BF16 {
					o.ReduceDType = dtype.F32
				}
				if accumulate > 1 {
					o.Tied = toyTied
				}
				t.Run(fmt.Sprintf("%s stage=%d accumulate=%d overlap=%t", dt, stage, accumulate, !o.NoOverlap), func(t *testing.T) {
					ranks(t, 3, paramsOf(dt), func(w *worker) {
						var seen [2]outcome
						for run := range seen {
							prompt := w.group
							gate := make(chan struct{})
							close(gate)
							if run == 1 {
								w.group = late{prompt, &gate, rand.New(rand.NewPCG(uint64(w.rank), uint64(stage)))}
							}
							started := w.start(o)
							w.group = prompt
							if !started {
								return
							}
							r := w.train(accumulate)
							ok := r.load()
							for step := 0; step < 4 && ok; step++ {
								gate = make(chan struct{})
								ok = r.enqueue() && w.ok("Gather", w.zero.Gather())
								close(gate)
							}
							if !ok || !w.synchronize() {
								return
							}
							seen[run] = outcome{r.weights(), r.norms}
						}
						equal(w.t, fmt.Sprintf("rank %d, late against prompt", w.rank), seen[1], seen[0], 0)
					}, "gpu", "comm")
				})
			}
		}
	}
}

// The second half of the backward pass is held back until the first bucket is
// reduced on every rank. If that bucket left any later, nothing would go on.
func TestBucketsLeaveDuringTheBackwardPass(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		ranks(t, 3, toyF32, func(w *worker) {
			if !w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 1, BucketCap: 1}}) || !w.ok("StepBegin", w.zero.StepBegin(true)) {
				return
			}
			for k := range w.params {
				p := w.params[len(w.params)-1-k]
				if k == len(w.params)/2 {
					first := w.zero.current.buckets[0].done
					if first == nil {
						w.t.Errorf("rank %d: the first bucket has not left before %s", w.rank, p.Name)
						w.group.Abort(fmt.Errorf("the test has failed"))
						return
					}
					w.compute.Wait(first)
				}
				if !p.Frozen {
					w.zero.Get(p)
					w.zero.Ready(p)
				}
			}
			if !w.ok("Finish", w.zero.Finish(w.ctx)) {
				return
			}
			s, err := w.zero.Stats(w.ctx)
			if !w.ok("Stats", err) {
				return
			}
			if s.Buckets[0].Done > s.End || s.Buckets[0].Start < s.Buckets[0].Ready || s.Exposed < 0 {
				w.t.Errorf("rank %d: %+v", w.rank, s)
			}
		})
	}
}
