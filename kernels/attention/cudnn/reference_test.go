package cudnn

import (
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// reference is attention and its gradients in f64.
type reference struct {
	shape
	qkv, do      []float64
	emulate      bool // round where a bf16 kernel does
	o, lse, dqkv []float64
}

// refer computes attention of qkv[B,T,H+2K,D] and its gradients for do[B,T,H,D].
// With emulate, probabilities, gradients of scores, gradients of keys and values by
// query head, and outputs are rounded to bf16, as a kernel's are.
func refer(sh shape, qkv, do []float64, emulate bool) *reference {
	r := &reference{shape: sh, qkv: qkv, do: do, emulate: emulate,
		o: make([]float64, sh.B*sh.T*sh.R), lse: make([]float64, sh.B*sh.H*sh.T), dqkv: make([]float64, sh.B*sh.T*sh.E)}
	type task struct{ b, k int64 }
	tasks := make(chan task)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) { // each ends when tasks is closed
		wg.Go(func() {
			for x := range tasks {
				r.keyHead(x.b, x.k)
			}
		})
	}
	for b := range sh.B {
		for k := range sh.K {
			tasks <- task{b, k}
		}
	}
	close(tasks)
	wg.Wait()
	return r
}

// round is x, or x as bf16 where that is emulated.
func (r *reference) round(x float64) float64 {
	if !r.emulate {
		return x
	}
	return float64(dtype.BF16To(dtype.BF16From(float32(x))))
}

// at is head h of row t of a tensor with rows of n elements.
func (r *reference) at(x []float64, n, b, t, h int64) []float64 {
	from := (b*r.T+t)*n + h*r.D
	return x[from : from+r.D : from+r.D]
}

// keyHead computes the queries that read one head of keys, both ways.
func (r *reference) keyHead(b, k int64) {
	scale, group := 1/math.Sqrt(float64(r.D)), r.H/r.K
	p, ds := make([]float64, r.T), make([]float64, r.T)
	dk, dv := make([]float64, r.T*r.D), make([]float64, r.T*r.D)
	dkHead, dvHead := make([]float64, r.T*r.D), make([]float64, r.T*r.D)
	acc := make([]float64, r.D)
	key := func(t int64) []float64 { return r.at(r.qkv, r.E, b, t, r.H+k) }
	value := func(t int64) []float64 { return r.at(r.qkv, r.E, b, t, r.H+r.K+k) }
	for h := k * group; h < (k+1)*group; h++ {
		clear(dkHead)
		clear(dvHead)
		for t := range r.T {
			q, o, do := r.at(r.qkv, r.E, b, t, h), r.at(r.o, r.R, b, t, h), r.at(r.do, r.R, b, t, h)
			top, sum := math.Inf(-1), 0.0
			for j := range t + 1 {
				p[j] = scale * kerntest.Dot(q, key(j))
				top = max(top, p[j])
			}
			for j := range t + 1 {
				p[j] = math.Exp(p[j] - top)
				sum += p[j]
			}
			r.lse[(b*r.H+h)*r.T+t] = top + math.Log(sum)
			clear(acc)
			for j := range t + 1 {
				p[j] /= sum
				axpy(acc, r.round(p[j]), value(j))
			}
			for i, v := range acc {
				o[i] = r.round(v)
			}
			delta := kerntest.Dot(do, o)
			clear(acc)
			for j := range t + 1 {
				ds[j] = r.round(p[j] * (kerntest.Dot(do, value(j)) - delta) * scale)
				axpy(acc, ds[j], key(j))
				axpy(dkHead[j*r.D:(j+1)*r.D], ds[j], q)
				axpy(dvHead[j*r.D:(j+1)*r.D], r.round(p[j]), do)
			}
			for i, v := range acc {
				r.at(r.dqkv, r.E, b, t, h)[i] = r.round(v)
			}
		}
		for i := range dk {
			dk[i] += r.round(dkHead[i])
			dv[i] += r.round(dvHead[i])
		}
	}
	for t := range r.T {
		for i := range r.D {
			r.at(r.dqkv, r.E, b, t, r.H+k)[i] = r.round(dk[t*r.D+i])
			r.at(r.dqkv, r.E, b, t, r.H+r.K+k)[i] = r.round(dv[t*r.D+i])
		}
	}
}

func axpy(y []float64, a float64, x []float64) {
	for i, v := range x {
		y[i] += a * v
	}
}

// heads is the heads from to to of rows of n elements.
func heads(x []float64, n, d, from, to int64) []float64 {
	var out []float64
	for row := int64(0); row < int64(len(x)); row += n {
		out = append(out, x[row+from*d:row+to*d]...)
	}
	return out
}

// The reference's gradients are those of its own outputs.
func TestReferenceDifferentiates(t *testing.T) {
	r := kerntest.Rand(1)
	for _, sh := range []shape{whole(2, 5, 4, 2, 3), whole(1, 4, 2, 2, 2)} {
		qkv, do := make([]float64, sh.B*sh.T*sh.E), make([]float64, sh.B*sh.T*sh.R)
		for _, x := range [][]float64{qkv, do} {
			for i := range x {
				x[i] = r.NormFloat64()
			}
		}
		got := refer(sh, qkv, do, false).dqkv
		want := kerntest.Gradient(qkv, func() float64 { return kerntest.Dot(refer(sh, qkv, do, false).o, do) })
		if msg := kerntest.Compare(got, want, 1e-7); msg != "" {
			t.Errorf("%+v: %s", sh, msg)
		}
		// Query 0 sees one key alone: its output is the value, its lse the score.
		one := refer(sh, qkv, do, false)
		if o, v := one.at(one.o, sh.R, 0, 0, 0), one.at(qkv, sh.E, 0, 0, sh.H+sh.K); kerntest.Compare(o, v, 1e-12) != "" {
			t.Errorf("%+v: the first output %v, value %v", sh, o, v)
		}
		if score := kerntest.Dot(one.at(qkv, sh.E, 0, 0, 0), one.at(qkv, sh.E, 0, 0, sh.H)) / math.Sqrt(float64(sh.D)); math.Abs(one.lse[0]-score) > 1e-12 {
			t.Errorf("%+v: the first lse %v, score %v", sh, one.lse[0], score)
		}
	}
}
