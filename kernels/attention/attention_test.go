package attention

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCPU(t testing.TB, threads int, backend string) (*CPU, device.Stream) {
	mul, _, err := gemm.Choose(backend)
	if err != nil {
		t.Fatal(err)
	}
	return NewCPU(kerntest.Pool(t, threads), mul), kerntest.Stream(t)
}

// sizes are those of attention between tensors that lie apart: Tq queries that end
// where the Tk keys end.
type sizes struct{ B, Tq, Tk, H, K, D int }

// naive is attention in f64, a position at a time.
func naive(d sizes, q, k, v []float64) (o, lse []float64) {
	o, lse = make([]float64, len(q)), make([]float64, d.B*d.H*d.Tq)
	for b := range d.B {
		for h := range d.H {
			kh := h / (d.H / d.K)
			for t := range d.Tq {
				query := q[((b*d.Tq+t)*d.H+h)*d.D:][:d.D]
				seen := d.Tk - d.Tq + t + 1
				s, top := make([]float64, seen), math.Inf(-1)
				for j := range s {
					s[j] = kerntest.Dot(query, k[((b*d.Tk+j)*d.K+kh)*d.D:][:d.D]) / math.Sqrt(float64(d.D))
					top = max(top, s[j])
				}
				var sum float64
				for j := range s {
					s[j] = math.Exp(s[j] - top)
					sum += s[j]
				}
				lse[(b*d.H+h)*d.Tq+t] = top + math.Log(sum)
				out := o[((b*d.Tq+t)*d.H+h)*d.D:][:d.D]
				for j := range s {
					for i, x := range v[((b*d.Tk+j)*d.K+kh)*d.D:][:d.D] {
						out[i] += s[j] / sum * x
					}
				}
			}
		}
	}
	return o, lse
}

// naiveBackward differentiates naive by hand: softmax's rule, written out in f64.
func naiveBackward(d sizes, do, q, k, v []float64) (dq, dk, dv []float64) {
	dq, dk, dv = make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	_, lse := naive(d, q, k, v)
	scale := 1 / math.Sqrt(float64(d.D))
	for b := range d.B {
		for h := range d.H {
			kh := h / (d.H / d.K)
			for t := range d.Tq {
				at := ((b*d.Tq+t)*d.H + h) * d.D
				seen := d.Tk - d.Tq + t + 1
				p, dp := make([]float64, seen), make([]float64, seen)
				for j := range seen {
					kt := ((b*d.Tk+j)*d.K + kh) * d.D
					p[j] = math.Exp(kerntest.Dot(q[at:at+d.D], k[kt:])*scale - lse[(b*d.H+h)*d.Tq+t])
					dp[j] = kerntest.Dot(do[at:at+d.D], v[kt:])
				}
				mean := kerntest.Dot(p, dp)
				for j := range seen {
					kt := ((b*d.Tk+j)*d.K + kh) * d.D
					ds := p[j] * (dp[j] - mean) * scale
					for i := range d.D {
						dq[at+i] += ds * k[kt+i]
						dk[kt+i] += ds * q[at+i]
						dv[kt+i] += p[j] * do[at+i]
					}
				}
			}
		}
	}
	return dq, dk, dv
}

// run is one forward pass and, where Tq is Tk, one backward pass.
type run struct{ o, lse, dq, dk, dv tensor.Tensor }

func do(t testing.TB, c *CPU, s device.Stream, d sizes, q, k, v, g tensor.Tensor) run {
	r := run{o: kerntest.New(q.Shape...), lse: kerntest.New(d.B, d.H, d.Tq)}
	if d.Tq != d.Tk {
		// The first Tk-Tq keys are those of a text that was read before.
		past := d.Tk - d.Tq
		keys, values := kerntest.New(d.Tk+3, d.K, d.D), kerntest.New(d.Tk+3, d.K, d.D)
		copy(keys.F32(), k.F32()[:past*d.K*d.D])
		copy(values.F32(), v.F32()[:past*d.K*d.D])
		tail := func(t tensor.Tensor) tensor.Tensor {
			return t.Reshape(d.Tk, d.K, d.D).Rows(past, d.Tk).Reshape(1, d.Tq, d.K, d.D)
		}
		c.AttentionNext(s, r.o, keys, values, pack(q, tail(k), tail(v)), past)
		kerntest.Wait(t, s)
		kerntest.Equal(t, "keys", keys.Rows(0, d.Tk), k.Reshape(d.Tk, d.K, d.D))
		kerntest.Equal(t, "values", values.Rows(0, d.Tk), v.Reshape(d.Tk, d.K, d.D))
		return r
	}
	qkv := pack(q, k, v)
	dqkv := kerntest.New(qkv.Shape...)
	c.Attention(s, r.o, r.lse, qkv, tensor.Tensor{})
	c.AttentionBackward(s, dqkv, g, r.o, r.lse, qkv, tensor.Tensor{})
	kerntest.Wait(t, s)
	r.dq, r.dk, r.dv = unpack(dqkv, d.H)
	return r
}

// pack lays the heads of q[B,T,H,D], k and v[B,T,K,D] side by side.
func pack(q, k, v tensor.Tensor) tensor.Tensor {
	b, t, d := q.Shape[0], q.Shape[1], q.Shape[3]
	e := q.Shape[2] + 2*k.Shape[2]
	out := kerntest.New(b, t, e, d)
	for row := range b * t {
		at := row * e * d
		for _, x := range []tensor.Tensor{q, k, v} {
			n := x.Shape[2] * d
			copy(out.F32()[at:at+n], x.F32()[row*n:])
			at += n
		}
	}
	return out
}

// unpack is pack's inverse for h query heads.
func unpack(qkv tensor.Tensor, h int) (q, k, v tensor.Tensor) {
	b, t, e, d := qkv.Shape[0], qkv.Shape[1], qkv.Shape[2], qkv.Shape[3]
	kv := (e - h) / 2
	q, k, v = kerntest.New(b, t, h, d), kerntest.New(b, t, kv, d), kerntest.New(b, t, kv, d)
	for row := range b * t {
		at := row * e * d
		for _, x := range []tensor.Tensor{q, k, v} {
			n := x.Shape[2] * d
			copy(x.F32()[row*n:(row+1)*n], qkv.F32()[at:])
			at += n
		}
	}
	return q, k, v
}

func inputs(d sizes, seed uint64, dev float64) (q, k, v, g tensor.Tensor) {
	r := kerntest.Rand(seed)
	q = kerntest.Normal(r, dev, d.B, d.Tq, d.H, d.D)
	k = kerntest.Normal(r, dev, d.B, d.Tk, d.K, d.D)
	v = kerntest.Normal(r, 1, d.B, d.Tk, d.K, d.D)
	g = kerntest.Normal(r, 1, d.B, d.Tq, d.H, d.D)
	return
}

func TestAttentionAgainstNaive(t *testing.T) {
	shapes := []sizes{
		{B: 1, Tq: 1, Tk: 1, H: 1, K: 1, D: 1},
		{B: 2, Tq: 7, Tk: 7, H: 3, K: 3, D: 5},
		{B: 1, Tq: 63, Tk: 63, H: 2, K: 1, D: 16},
		{B: 1, Tq: 64, Tk: 64, H: 2, K: 2, D: 32},
		{B: 2, Tq: 65, Tk: 65, H: 4, K: 2, D: 8},
		{B: 1, Tq: 129, Tk: 129, H: 7, K: 1, D: 64}, // GQA 7:1, as Qwen2.5
		{B: 2, Tq: 191, Tk: 191, H: 14, K: 2, D: 4},
		{B: 1, Tq: 1, Tk: 70, H: 4, K: 2, D: 8}, // decoding
		{B: 1, Tq: 5, Tk: 66, H: 4, K: 4, D: 3}, // continuing a prompt
		{B: 1, Tq: 65, Tk: 130, H: 2, K: 1, D: 48},
		{B: 0, Tq: 3, Tk: 3, H: 1, K: 1, D: 2},
	}
	for _, backend := range gemm.Names() {
		for _, d := range shapes {
			t.Run(fmt.Sprintf("%s/%+v", backend, d), func(t *testing.T) {
				c, s := newCPU(t, 2, backend)
				q, k, v, g := inputs(d, 3, 1)
				got := do(t, c, s, d, q, k, v, g)
				q64, k64, v64, g64 := kerntest.F64(q), kerntest.F64(k), kerntest.F64(v), kerntest.F64(g)
				o, lse := naive(d, q64, k64, v64)
				// f32 dot products of up to 191 terms: a few units in the last place times sqrt(terms).
				kerntest.Near(t, "o", got.o, o, 3e-6)
				if d.Tq == d.Tk {
					kerntest.Near(t, "lse", got.lse, lse, 3e-6)
					dq, dk, dv := naiveBackward(d, g64, q64, k64, v64)
					kerntest.Near(t, "dq", got.dq, dq, 1e-5)
					kerntest.Near(t, "dk", got.dk, dk, 1e-5)
					kerntest.Near(t, "dv", got.dv, dv, 1e-5)
				}
			})
		}
	}
}

// The hand-written derivative is itself held against central differences.
func TestAttentionAgainstDifferences(t *testing.T) {
	d := sizes{B: 2, Tq: 6, Tk: 6, H: 4, K: 2, D: 3}
	q, k, v, g := inputs(d, 5, 1)
	q64, k64, v64, g64 := kerntest.F64(q), kerntest.F64(k), kerntest.F64(v), kerntest.F64(g)
	loss := func() float64 {
		o, _ := naive(d, q64, k64, v64)
		return kerntest.Dot(o, g64)
	}
	c, s := newCPU(t, 1, "gonum")
	got := do(t, c, s, d, q, k, v, g)
	dq, dk, dv := naiveBackward(d, g64, q64, k64, v64)
	for _, x := range []struct {
		name  string
		got   tensor.Tensor
		naive []float64
		diff  []float64
	}{
		{"dq", got.dq, dq, kerntest.Gradient(q64, loss)},
		{"dk", got.dk, dk, kerntest.Gradient(k64, loss)},
		{"dv", got.dv, dv, kerntest.Gradient(v64, loss)},
	} {
		kerntest.Near(t, x.name, x.got, x.diff, 3e-6)
		if msg := kerntest.Compare(x.naive, x.diff, 1e-8); msg != "" {
			t.Errorf("naive %s: %s", x.name, msg)
		}
	}
}

// Scores far outside exp's range, on both sides, change nothing: the maximum is
// taken off first.
func TestAttentionLargeScores(t *testing.T) {
	d := sizes{B: 1, Tq: 70, Tk: 70, H: 2, K: 1, D: 16}
	for _, offset := range []float32{-200, 200} {
		q, k, v, g := inputs(d, 7, 1)
		// One component of q and k moves all scores of a row by offset, and keeps softmax.
		for i := 0; i < len(q.F32()); i += d.D {
			q.F32()[i] = offset / 4
		}
		for i := 0; i < len(k.F32()); i += d.D {
			k.F32()[i] = 16
		}
		c, s := newCPU(t, 1, "gonum")
		got := do(t, c, s, d, q, k, v, g)
		o, lse := naive(d, kerntest.F64(q), kerntest.F64(k), kerntest.F64(v))
		if m := got.lse.F32()[5]; (m < -150) != (offset < 0) {
			t.Fatalf("lse %v with offset %v: the test's inputs do not reach", m, offset)
		}
		dq, dk, dv := naiveBackward(d, kerntest.F64(g), kerntest.F64(q), kerntest.F64(k), kerntest.F64(v))
		// Scores of 200 in f32 are known to 1.5e-5, and so are the probabilities.
		kerntest.Near(t, "o", got.o, o, 1e-4)
		kerntest.Near(t, "lse", got.lse, lse, 1e-6)
		kerntest.Near(t, "dq", got.dq, dq, 1e-4)
		kerntest.Near(t, "dk", got.dk, dk, 1e-4)
		kerntest.Near(t, "dv", got.dv, dv, 1e-4)
	}
	// One score of 1e4 takes all.
	q, k, v, g := inputs(d, 8, 30)
	c, s := newCPU(t, 1, "gonum")
	got := do(t, c, s, d, q, k, v, g)
	o, _ := naive(d, kerntest.F64(q), kerntest.F64(k), kerntest.F64(v))
	kerntest.Near(t, "o", got.o, o, 2e-3)
}

// A bad query spoils its own row, a bad key or value every row that sees it.
// Hidden keys of a row's own block are multiplied by 0, so a NaN there may show
// too; earlier blocks stay clean.
func TestAttentionPassesNaNOn(t *testing.T) {
	d := sizes{B: 1, Tq: 2*blockQ + 5, Tk: 2*blockQ + 5, H: 1, K: 1, D: 2}
	const at = blockQ + 7
	for _, backend := range gemm.Names() {
		for arg := range 3 {
			q, k, v, g := inputs(d, 9, 1)
			[]tensor.Tensor{q, k, v}[arg].F32()[at*d.D] = float32(math.NaN())
			c, s := newCPU(t, 1, backend)
			got := do(t, c, s, d, q, k, v, g)
			for pos := range d.Tq {
				o := got.o.F32()[pos*d.D]
				bad := pos == at || arg > 0 && pos > at
				clean := pos < blockQ || arg < 2 && pos < at
				if bad && o == o || clean && o != o {
					t.Fatalf("%s: NaN in argument %d at %d: o[%d] = %v", backend, arg, at, pos, o)
				}
			}
		}
	}
}

func TestAttentionBitsDoNotDependOnThreads(t *testing.T) {
	d := sizes{B: 2, Tq: 130, Tk: 130, H: 6, K: 2, D: 24}
	q, k, v, g := inputs(d, 11, 1)
	for _, backend := range gemm.Names() {
		if backend == "openblas" {
			continue // promises it for equal thread counts only
		}
		var first run
		for i, threads := range kerntest.Threads {
			c, s := newCPU(t, threads, backend)
			got := do(t, c, s, d, q, k, v, g)
			if i == 0 {
				first = got
				continue
			}
			what := fmt.Sprintf("%s, %d threads: ", backend, threads)
			kerntest.Equal(t, what+"o", first.o, got.o)
			kerntest.Equal(t, what+"lse", first.lse, got.lse)
			kerntest.Equal(t, what+"dq", first.dq, got.dq)
			kerntest.Equal(t, what+"dk", first.dk, got.dk)
			kerntest.Equal(t, what+"dv", first.dv, got.dv)
		}
	}
}

// Decoding a token at a time against cached keys gives what one pass gives.
func TestAttentionDecodesAsItReads(t *testing.T) {
	d := sizes{B: 1, Tq: 9, Tk: 9, H: 4, K: 2, D: 8}
	q, k, v, g := inputs(d, 13, 1)
	c, s := newCPU(t, 1, "gonum")
	whole := do(t, c, s, d, q, k, v, g)
	for pos := range d.Tq {
		one := sizes{B: 1, Tq: 1, Tk: pos + 1, H: 4, K: 2, D: 8}
		rows := func(x tensor.Tensor, from, to, heads int) tensor.Tensor {
			return x.Reshape(9, heads, 8).Rows(from, to).Reshape(1, to-from, heads, 8)
		}
		got := do(t, c, s, one, rows(q, pos, pos+1, 4), rows(k, 0, pos+1, 2), rows(v, 0, pos+1, 2), rows(g, pos, pos+1, 4))
		kerntest.Near(t, "o", got.o, kerntest.F64(rows(whole.o, pos, pos+1, 4)), 1e-6)
	}
}

func TestRoPE(t *testing.T) {
	const b, pos, h, turning, d, p = 2, 3, 3, 2, 6, 12
	for _, n := range []int{1, 9} {
		r := kerntest.Rand(15)
		x, angle := kerntest.Normal(r, 1, b, n, h, d), kerntest.Normal(r, 3, p, d/2)
		cos, sin := kerntest.New(p, d/2), kerntest.New(p, d/2)
		for i, a := range angle.F32() {
			cos.F32()[i], sin.F32()[i] = float32(math.Cos(float64(a))), float32(math.Sin(float64(a)))
		}
		x64, want := kerntest.F64(x), kerntest.F64(x)
		for i := range b * n * h {
			at := (pos + i/h%n) * (d / 2)
			for j := range d / 2 {
				if i%h >= turning {
					continue // values have no positions
				}
				// A turn in the complex plane.
				turned := complex(x64[i*d+j], x64[i*d+j+d/2]) *
					complex(float64(cos.F32()[at+j]), float64(sin.F32()[at+j]))
				want[i*d+j], want[i*d+j+d/2] = real(turned), imag(turned)
			}
		}
		for _, threads := range kerntest.Threads {
			c, s := newCPU(t, threads, "gonum")
			y := kerntest.Clone(x)
			c.RoPE(s, y, cos, sin, turning, pos, false)
			kerntest.Wait(t, s)
			kerntest.Near(t, "turned", y, want, 2e-7)
			c.RoPE(s, y, cos, sin, turning, pos, true)
			kerntest.Wait(t, s)
			kerntest.Near(t, "turned back", y, x64, 5e-7)
		}
		// The gradient of <rope(x), g> is rope of g, inverted: an orthogonal map.
		g := kerntest.Normal(r, 1, b, n, h, d)
		c, s := newCPU(t, 1, "gonum")
		y, dx := kerntest.Clone(x), kerntest.Clone(g)
		c.RoPE(s, y, cos, sin, turning, pos, false)
		c.RoPE(s, dx, cos, sin, turning, pos, true)
		kerntest.Wait(t, s)
		if a, b := kerntest.Dot(kerntest.F64(y), kerntest.F64(g)), kerntest.Dot(x64, kerntest.F64(dx)); math.Abs(a-b) > 1e-5 {
			t.Errorf("<rope(x), g> = %v, <x, rope⁻¹(g)> = %v", a, b)
		}
	}
}

// A document attends as it would alone.
func TestAttentionStaysInDocuments(t *testing.T) {
	const n = 200
	whole := sizes{B: 2, Tq: n, Tk: n, H: 4, K: 2, D: 8}
	q, k, v, g := inputs(whole, 17, 1)
	starts := [][]int{{0, 1, 70, 128, 129}, {0, 63, 190}} // of documents, in each sequence
	docs := make([]int32, 2*n)
	for b, list := range starts {
		for at := range n {
			for _, from := range list {
				if from <= at {
					docs[b*n+at] = int32(from)
				}
			}
		}
	}
	c, s := newCPU(t, 2, "gonum")
	qkv := pack(q, k, v)
	o, lse, dqkv := kerntest.New(q.Shape...), kerntest.New(2, 4, n), kerntest.New(qkv.Shape...)
	where := tensor.New(device.Of(docs), dtype.I32, 2, n)
	c.Attention(s, o, lse, qkv, where)
	c.AttentionBackward(s, dqkv, g, o, lse, qkv, where)
	kerntest.Wait(t, s)
	for b, list := range starts {
		for i, from := range list {
			to := n
			if i+1 < len(list) {
				to = list[i+1]
			}
			part := func(x tensor.Tensor) tensor.Tensor {
				return x.Reshape(2*n, x.Shape[2], 8).Rows(b*n+from, b*n+to).Reshape(1, to-from, x.Shape[2], 8)
			}
			one := sizes{B: 1, Tq: to - from, Tk: to - from, H: 4, K: 2, D: 8}
			alone := do(t, c, s, one, part(q), part(k), part(v), part(g))
			kerntest.Near(t, "o", part(o), kerntest.F64(alone.o), 2e-6)
			dq, dk, dv := unpack(part(dqkv), 4)
			kerntest.Near(t, "dq", dq, kerntest.F64(alone.dq), 1e-5)
			kerntest.Near(t, "dk", dk, kerntest.F64(alone.dk), 1e-5)
			kerntest.Near(t, "dv", dv, kerntest.F64(alone.dv), 1e-5)
		}
	}
}

func TestAttentionRefusesShapes(t *testing.T) {
	c, s := newCPU(t, 1, "gonum")
	n, none := kerntest.New, tensor.Tensor{}
	kerntest.Panics(t, func() { c.Attention(s, n(1, 2, 3, 4), n(1, 3, 2), n(1, 2, 7, 4), none) }, "attention", "multiple")
	kerntest.Panics(t, func() { c.Attention(s, n(1, 2, 3, 4), n(1, 3, 2), n(1, 2, 6, 4), none) }, "attention", "as many heads of keys")
	kerntest.Panics(t, func() { c.Attention(s, n(1, 2, 4, 4), n(1, 4, 2), n(1, 3, 8, 4), none) }, "o is f32[1 2 4 4]", "f32[1 3 4 4]")
	kerntest.Panics(t, func() { c.Attention(s, n(1, 2, 4, 4), n(1, 4, 2), n(1, 2, 8, 4), n(1, 2)) }, "docs is f32[1 2]")
	kerntest.Panics(t, func() { c.AttentionNext(s, n(1, 2, 4, 4), n(6, 2, 4), n(6, 2, 4), n(1, 2, 8, 4), 5) }, "positions 5 to 7")
	kerntest.Panics(t, func() { c.RoPE(s, n(1, 2, 2, 3), n(4, 1), n(4, 1), 2, 0, false) }, "rope", "odd")
	kerntest.Panics(t, func() { c.RoPE(s, n(1, 2, 2, 4), n(4, 2), n(4, 2), 2, 3, false) }, "rope", "positions 3 to 5")
	kerntest.Panics(t, func() { c.RoPE(s, n(1, 2, 2, 4), n(4, 2), n(4, 2), 3, 0, false) }, "rope", "3 heads")
}
