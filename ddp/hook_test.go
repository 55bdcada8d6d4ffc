package ddp

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// matrices is a model some of whose parameters PowerSGD makes smaller.
func matrices() []*param.Param {
	return append(seven(), &param.Param{Name: "wide", Shape: []int{20, 31}, DType: dtype.F32}, &param.Param{Name: "tall", Shape: []int{50, 9}, DType: dtype.F32})
}

func compressor(t *testing.T, o compress.Options) *compress.Compressor {
	c, err := compress.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var squeezing = []compress.Options{
	{Scheme: compress.FP16}, {Scheme: compress.BF16}, {Scheme: compress.Int8}, {Scheme: compress.TopK, Fraction: 0.2}, {Scheme: compress.PowerSGD, Rank: 2},
}

// onHost says that the rank's gradients lie where every scheme works.
func (w *worker) onHost() bool { return w.gpu == nil }

// Of gradients that a scheme holds exactly the sum over ranks and micro-steps is exact,
// before and after the rebuild, in any type.
func TestCompressedGradientsAreTheSum(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4} {
		for _, accumulate := range []int{1, 3} {
			for _, o := range []Options{
				{PlanOptions: small}, {PlanOptions: small, Op: comm.Avg, NoOverlap: true}, {}, {PlanOptions: PlanOptions{GradDType: dtype.F16, FirstBucket: 64}},
				{PlanOptions: small, FindUnused: true, StaticGraph: true},
			} {
				for _, c := range []compress.Options{{Scheme: compress.FP16}, {Scheme: compress.TopK, Fraction: 1}, {Scheme: compress.PowerSGD, Start: 100}} {
					t.Run(fmt.Sprintf("ranks=%d accumulate=%d %s %s %s", n, accumulate, c.Scheme, o.Op, o.GradDType), func(t *testing.T) {
						ranks(t, n, matrices, func(w *worker) {
							if !w.onHost() && (c.Scheme != compress.FP16 || o.Op == comm.Avg) {
								return
							}
							mine := o
							mine.Compress = compressor(t, c)
							w.sums(mine, accumulate)
						})
					})
				}
			}
		}
	}
}

// sums makes steps of whole numbers, and compares the sums.
func (w *worker) sums(o Options, accumulate int) {
	value := func(r, step, micro, i, e int) int { return 3 * ((r+i+step)%4 - micro%2 + e%3) }
	if !w.start(o) {
		return
	}
	for step := range 3 {
		for micro := range accumulate {
			if !w.ok("StepBegin", w.ddp.StepBegin(micro == accumulate-1)) {
				return
			}
			for k := range w.params {
				i := (len(w.params) - 1 - k + w.rank*(step+1)) % len(w.params)
				if p := w.params[i]; !p.Frozen {
					w.give(p, func(e int) float32 { return float32(value(w.rank, step, micro, i, e)) })
				}
			}
			if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
				return
			}
		}
		if !w.synchronize() {
			return
		}
		for i, p := range w.params {
			if p.Frozen {
				continue
			}
			w.holds(p.Name, w.ddp.Grad(p), func(e int) float64 {
				sum := 0
				for r := range w.size {
					for micro := range accumulate {
						sum += value(r, step, micro, i, e)
					}
				}
				if o.Op == comm.Avg {
					return float64(dtype.F16To(dtype.F16From(float32(sum) / float32(w.size))))
				}
				return float64(sum)
			})
		}
	}
}

// Replicas have the same bits; and over steps, with the rebuild among them, what was
// applied and what the ranks owe is together what they gave.
func TestCompressedReplicasAgreeAndLoseNothing(t *testing.T) {
	const n, steps = 3, 4
	given := func(r, step, i, e int) float32 {
		return float32(math.Sin(float64(7*r+11*step+13*i)+float64(e)*0.7)) * float32(1+i)
	}
	for _, o := range squeezing {
		measured := make([]stats, n)
		sums, owed := make([]map[string][]float64, n), make([]map[string][]float64, n)
		add := func(to map[string][]float64, name string, v func(e int) float64, count int) {
			if to[name] == nil {
				to[name] = make([]float64, count)
			}
			for e := range count {
				to[name][e] += v(e)
			}
		}
		ranks(t, n, matrices, func(w *worker) {
			if !w.onHost() && o.Scheme != compress.FP16 && o.Scheme != compress.BF16 {
				return
			}
			sums[w.rank], owed[w.rank] = map[string][]float64{}, map[string][]float64{}
			c := compressor(t, o)
			if !w.start(Options{PlanOptions: small, Compress: c}) {
				return
			}
			for step := range steps {
				if !w.ok("StepBegin", w.ddp.StepBegin(true)) {
					return
				}
				for k := range w.params {
					i := (2*k + 1 + len(w.params)/2) % len(w.params) // not the order of the first plan
					if p := w.params[i]; !p.Frozen {
						w.give(p, func(e int) float32 { return given(w.rank, step, i, e) })
					}
				}
				if !w.ok("Finish", w.ddp.Finish(w.ctx)) || !w.synchronize() {
					return
				}
				for _, p := range w.params {
					if !p.Frozen {
						add(sums[w.rank], p.Name, loader(w.see(w.ddp.Grad(p))), p.Numel())
					}
				}
				c.Stats() // of a GPU's memory, it sees the last step
			}
			for _, s := range c.State() {
				add(owed[w.rank], s.Name, loader(s.Tensor), s.Numel())
			}
			measured[w.rank].put(w, c.Stats())
			s, err := w.ddp.Stats(w.ctx)
			if want := c.Cost(w.ddp.Plan().Layout(n)); !w.ok("Stats", err) || s.Sent != want.Sent || s.Sent == 0 || c.Stats().Sent < want.Sent {
				t.Errorf("%s: %d bytes were sent, the layout says %+v", o.Scheme, s.Sent, want)
			}
		})
		if t.Failed() {
			return
		}
		for r, m := range measured {
			if host := m["comm"]; !(host.Given > 0 && host.Lost > 0) || m["gpu"] != (compress.Stats{}) && m["gpu"] != host {
				t.Errorf("%s: rank %d has measured %+v", o.Scheme, r, m)
			}
		}
		for i, p := range matrices() {
			for e := range p.Numel() {
				if p.Frozen {
					continue
				}
				want, got := 0.0, sums[0][p.Name][e]
				for r := range n {
					if sums[r][p.Name][e] != got {
						t.Fatalf("%s: %s[%d] is %v on rank %d, and %v on rank 0", o.Scheme, p.Name, e, sums[r][p.Name][e], r, got)
					}
					for step := range steps {
						want += float64(given(r, step, i, e))
					}
				}
				tolerance := map[compress.Scheme]float64{compress.FP16: 1e-3, compress.BF16: 1e-2}[o.Scheme] * n * steps * float64(1+i)
				for r := range n {
					if v := owed[r]["error."+p.Name]; v != nil {
						got += v[e]
					}
				}
				if !(math.Abs(got-want) <= tolerance+1e-4*float64(1+i)) {
					t.Fatalf("%s: %s[%d]: %v have arrived or are owed of %v", o.Scheme, p.Name, e, got, want)
				}
			}
		}
	}
}

// stats is what was measured, by the kind of group.
type stats map[string]compress.Stats

func (s *stats) put(w *worker, x compress.Stats) {
	if *s == nil {
		*s = stats{}
	}
	kind := "comm"
	if w.gpu != nil {
		kind = "gpu"
	}
	(*s)[kind] = x
}

// A NaN of one rank is in the norm of all; the step that is taken back leaves nothing.
func TestACompressedNaNReachesAllRanks(t *testing.T) {
	for _, o := range squeezing {
		ranks(t, 3, matrices, func(w *worker) {
			if !w.onHost() && o.Scheme != compress.FP16 && o.Scheme != compress.BF16 {
				return
			}
			c := compressor(t, o)
			if !w.start(Options{PlanOptions: small, Compress: c}) {
				return
			}
			value := func(e int) float32 { return float32(math.Sin(float64(e + w.rank))) }
			step := func(bad bool) (norm float64) {
				w.ok("StepBegin", w.ddp.StepBegin(true))
				for _, p := range slices.Backward(w.params) {
					if p.Frozen {
						continue
					}
					w.give(p, func(e int) float32 {
						if bad && w.rank == 1 && p.Name == "wide" && e == 100 {
							return float32(math.NaN())
						}
						return value(e)
					})
				}
				if !w.ok("Finish", w.ddp.Finish(w.ctx)) || !w.synchronize() {
					return 0
				}
				for _, b := range w.ddp.Buckets() {
					load := loader(w.see(b.Flat))
					for e := range b.Flat.Numel() {
						norm += load(e) * load(e)
					}
				}
				return norm
			}
			step(false)
			// Only the last window is taken back: what was owed before it still is.
			step(true)
			c.Discard()
			if list := states(c); len(list) > 0 && !slices.ContainsFunc(list, func(v []float32) bool { return slices.Max(v) > 0 }) {
				t.Errorf("%s: rank %d owes nothing", o.Scheme, w.rank)
			}
			before := fmt.Sprint(states(c))
			if norm := step(true); Finite(norm) {
				t.Errorf("%s: rank %d has norm %v", o.Scheme, w.rank, norm)
			}
			c.Discard()
			if fmt.Sprint(states(c)) != before {
				t.Errorf("%s: rank %d keeps something of the skipped step", o.Scheme, w.rank)
			}
			if norm := step(false); !Finite(norm) {
				t.Errorf("%s: rank %d has norm %v a step later", o.Scheme, w.rank, norm)
			}
		})
	}
}

func states(c *compress.Compressor) (all [][]float32) {
	for _, s := range c.State() {
		all = append(all, s.F32())
	}
	return all
}

// A rank that has run out of data gives zeros, and what it owes.
func TestARankWithoutDataPaysItsDebts(t *testing.T) {
	ranks(t, 2, matrices, func(w *worker) {
		if !w.onHost() {
			return
		}
		c := compressor(t, compress.Options{Scheme: compress.TopK, Fraction: 0.5})
		if !w.start(Options{PlanOptions: small, Compress: c}) {
			return
		}
		for round := range 2 {
			more := w.rank == 0 || round == 0
			if _, err := w.ddp.Join(w.ctx, more); !w.ok("Join", err) || !w.ok("StepBegin", w.ddp.StepBegin(true)) {
				return
			}
			for _, p := range slices.Backward(w.params) {
				if more && !p.Frozen {
					w.give(p, constant(1))
				}
			}
			if !w.ok("Finish", w.ddp.Finish(w.ctx)) || !w.synchronize() {
				return
			}
		}
		if w.rank == 1 {
			for i, v := range states(c) {
				for e, x := range v {
					if x != 0 {
						t.Fatalf("%s[%d]: %v is still owed", c.State()[i].Name, e, x)
					}
				}
			}
		}
	})
}

func TestWhatCannotBeCompressedIsRefused(t *testing.T) {
	int8s := compress.Options{Scheme: compress.Int8}
	ranks(t, 3, seven, func(w *worker) {
		o := Options{Compress: compressor(t, int8s)}
		if w.gpu != nil {
			w.wants(w.new(o), "ddp: rank ", "Options.Compress, int8: ", "works on host memory, and gradients lie in memory of cuda:0: use fp16 or bf16")
			return
		}
		if w.rank == 1 {
			o.Compress = compressor(t, compress.Options{Scheme: compress.TopK, Fraction: 0.1})
		}
		w.wants(w.new(o), "Options.Compress: ranks 0, 2 have int8, rank 1 has topk 0.1")
	})
	for want, o := range map[string]Options{
		"ReduceDType is f64 beside Compress, int8, which decides what travels": {ReduceDType: dtype.F64},
		"FindUnused beside Compress, int8: a parameter that no rank uses":      {FindUnused: true},
	} {
		ranks(t, 2, seven, func(w *worker) {
			mine := o
			mine.Compress = compressor(t, int8s)
			w.wants(w.new(mine), want)
		})
	}
	ranks(t, 2, func() []*param.Param {
		p := seven()
		p[2].DType = dtype.F64
		return p
	}, func(w *worker) {
		if w.onHost() {
			w.wants(w.new(Options{Compress: compressor(t, int8s)}), "gradients of a.b in f64: int8 takes f32, bf16 or f16")
		}
	})
}
