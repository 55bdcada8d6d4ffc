package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"golang.org/x/sync/errgroup"
)

func nanValue() float64 { return math.NaN() }

// problem is a call's inputs, whose values bf16 holds exactly. docs is nil for one
// document a sequence.
type problem struct {
	shape
	qkv, do tensor.Tensor // f32
	docs    []int32
	known   *[2]*result // what reference found, exactly and in bf16
}

// newProblem has scores near logits; with docs, documents of random length.
func newProblem(s shape, docs bool, logits float64) problem {
	p := problem{shape: s, known: new([2]*result)}
	r := kerntest.Rand(uint64(s.T*1000 + s.D*10 + s.H))
	p.qkv = kerntest.Normal(r, 1, s.B, s.T, s.heads(), s.D)
	shift := math.Sqrt(math.Abs(logits) / math.Sqrt(float64(s.D)))
	for i := range p.qkv.F32() {
		switch h := i / s.D % s.heads(); {
		case h < s.H:
			p.qkv.F32()[i] += float32(shift)
		case h < s.H+s.K:
			p.qkv.F32()[i] += float32(math.Copysign(shift, logits))
		}
	}
	p.do = kerntest.Normal(r, 1, s.B, s.T, s.H, s.D)
	gputest.BF16(p.qkv)
	gputest.BF16(p.do)
	if docs {
		p.docs = documents(r, s.B, s.T)
	}
	return p
}

// documents is the first position of each token's document: some of one token, some
// of several tiles.
func documents(r *rand.Rand, b, t int) []int32 {
	docs := make([]int32, 0, b*t)
	for range b {
		for start := 0; start < t; {
			n := 1 + r.IntN([]int{3, 90, 400}[r.IntN(3)])
			for i := start; i < min(start+n, t); i++ {
				docs = append(docs, int32(start))
			}
			start += n
		}
	}
	return docs
}

// docsTensor is docs as the operations take them.
func (p problem) docsTensor() tensor.Tensor {
	if p.docs == nil {
		return tensor.Tensor{}
	}
	return kerntest.IDs(p.docs...).Reshape(p.B, p.T)
}

// result is what both passes write, in f64.
type result struct{ o, lse, dqkv []float64 }

// reference is attention in f64. Where bf16 is set, what the kernels hold in bf16 is
// rounded: probabilities before they meet v, gradients of scores, and outputs.
func (p problem) reference(bf16 bool) result {
	known, round := &p.known[0], func(x float64) float64 { return x }
	if bf16 {
		known = &p.known[1]
		round = func(x float64) float64 { return float64(dtype.BF16To(dtype.BF16From(float32(x)))) }
	}
	if *known != nil {
		return **known
	}
	r := result{make([]float64, p.do.Numel()), make([]float64, p.B*p.H*p.T), make([]float64, p.qkv.Numel())}
	qkv, do := kerntest.F64(p.qkv), kerntest.F64(p.do)
	// Heads of queries run side by side, each with a dk and dv of its own.
	own := make([][2][]float64, p.B*p.H)
	var all errgroup.Group
	for at := range own {
		own[at] = [2][]float64{make([]float64, p.T*p.D), make([]float64, p.T*p.D)}
		all.Go(func() error {
			for t := range p.T {
				p.row(r, own[at], qkv, do, round, at/p.H, at%p.H, t)
			}
			return nil
		})
	}
	_ = all.Wait() // none fails
	for at, head := range own {
		b, kh := at/p.H, at%p.H/(p.H/p.K)
		for t := range p.T {
			add(p.head(r.dqkv, b, t, p.H+kh), 1, head[0][t*p.D:][:p.D])
			add(p.head(r.dqkv, b, t, p.H+p.K+kh), 1, head[1][t*p.D:][:p.D])
		}
	}
	for i, x := range r.dqkv {
		r.dqkv[i] = round(x)
	}
	*known = &r
	return r
}

// head is one head of one position of a packed tensor.
func (p problem) head(x []float64, b, t, h int) []float64 {
	return x[((b*p.T+t)*p.heads()+h)*p.D:][:p.D]
}

// row is one query: its o, lse and dq, and what it adds to its head's dk and dv.
func (p problem) row(r result, dkv [2][]float64, qkv, do []float64, round func(float64) float64, b, h, t int) {
	first, kh, scale := 0, h/(p.H/p.K), 1/math.Sqrt(float64(p.D))
	if p.docs != nil {
		first = int(p.docs[b*p.T+t])
	}
	q, out := p.head(qkv, b, t, h), ((b*p.T+t)*p.H+h)*p.D
	o, g := r.o[out:out+p.D], do[out:out+p.D]
	prob, top := make([]float64, t+1), math.Inf(-1)
	for j := first; j <= t; j++ {
		prob[j] = dot(q, p.head(qkv, b, j, p.H+kh)) * scale
		top = max(top, prob[j])
	}
	var sum float64
	for j := first; j <= t; j++ {
		e := math.Exp(prob[j] - top)
		sum += e
		add(o, round(e), p.head(qkv, b, j, p.H+p.K+kh))
	}
	for i := range o {
		o[i] = round(o[i] / sum)
	}
	lse := top + math.Log(sum)
	r.lse[(b*p.H+h)*p.T+t] = lse

	delta, dq := dot(o, g), p.head(r.dqkv, b, t, h)
	for j := first; j <= t; j++ {
		k, v := p.head(qkv, b, j, p.H+kh), p.head(qkv, b, j, p.H+p.K+kh)
		pr := math.Exp(prob[j] - lse)
		ds := round(pr * (dot(g, v) - delta))
		add(dq, ds*scale, k)
		add(dkv[0][j*p.D:][:p.D], ds*scale, q)
		add(dkv[1][j*p.D:][:p.D], round(pr), g)
	}
}

// dot has four sums, for one waits for itself.
func dot(x, y []float64) float64 {
	var a, b, c, d float64
	y = y[:len(x)]
	for ; len(x) >= 4; x, y = x[4:], y[4:] {
		a, b, c, d = a+x[0]*y[0], b+x[1]*y[1], c+x[2]*y[2], d+x[3]*y[3]
	}
	for i, v := range x {
		a += v * y[i]
	}
	return (a + b) + (c + d)
}

func add(y []float64, a float64, x []float64) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += a * v
	}
}

// split is dq, dk and dv of a packed gradient, each contiguous.
func (p problem) split(dqkv []float64) (parts [3][]float64) {
	for at := 0; at < len(dqkv); at += p.D {
		switch h := at / p.D % p.heads(); {
		case h < p.H:
			parts[0] = append(parts[0], dqkv[at:at+p.D]...)
		case h < p.H+p.K:
			parts[1] = append(parts[1], dqkv[at:at+p.D]...)
		default:
			parts[2] = append(parts[2], dqkv[at:at+p.D]...)
		}
	}
	return parts
}

// The reference of the GPU's tests is held against the CPU operation, and its
// rounding is seen to cost what bf16 costs.
func TestReference(t *testing.T) {
	for _, s := range []shape{
		{B: 2, T: 130, H: 4, K: 2, D: 16}, {B: 1, T: 65, H: 7, K: 1, D: 64}, {B: 1, T: 1, H: 2, K: 2, D: 8},
	} {
		for _, docs := range []bool{false, true} {
			p := newProblem(s, docs, 0)
			exact, rounded := p.reference(false), p.reference(true)
			c, st := newCPU(t, 2, "gonum")
			o, lse, dqkv := kerntest.New(p.do.Shape...), kerntest.New(s.B, s.H, s.T), kerntest.New(p.qkv.Shape...)
			c.Attention(st, o, lse, p.qkv, p.docsTensor())
			c.AttentionBackward(st, dqkv, p.do, o, lse, p.qkv, p.docsTensor())
			kerntest.Wait(t, st)
			kerntest.Near(t, "o", o, exact.o, 1e-5)
			kerntest.Near(t, "lse", lse, exact.lse, 1e-5)
			kerntest.Near(t, "dqkv", dqkv, exact.dqkv, 1e-5)
			if s.T == 1 {
				continue
			}
			want, got := p.split(exact.dqkv), p.split(rounded.dqkv)
			for i, name := range []string{"o", "dq", "dk", "dv"} {
				a, b := exact.o, rounded.o
				if i > 0 {
					a, b = want[i-1], got[i-1]
				}
				if e := relative(b, a); e < 1e-3 || e > 4e-3 {
					t.Errorf("%+v, docs %v: rounding moves %s by %.3g", s, docs, name, e)
				}
			}
		}
	}
}

// relative is ‖got-want‖/‖want‖.
func relative(got, want []float64) float64 {
	var d, n float64
	for i, w := range want {
		d += (got[i] - w) * (got[i] - w)
		n += w * w
	}
	return math.Sqrt(d / n)
}

// accuracy is a line of the errors beside those that rounding explains.
func accuracy(name string, got, want, emulated []float64) string {
	return fmt.Sprintf("%s %.2e/%.2e", name, relative(got, want), relative(emulated, want))
}
