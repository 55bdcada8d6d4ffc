package attention

import (
	"math"

	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/vec"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host, in f32, with the sums of the softmax in f64. It
// takes blocks of query rows, whose scores against all their keys are one matrix
// product; a worker's scratch is blockQ*Tk scores forward and twice that backward.
type CPU struct {
	pool    *workers.Pool
	mul     gemm.Backend
	scratch [][]float32 // by worker, grown as needed
}

// NewCPU computes with mul on the workers of pool.
func NewCPU(pool *workers.Pool, mul gemm.Backend) *CPU {
	return &CPU{pool: pool, mul: mul, scratch: make([][]float32, pool.Threads())}
}

const blockQ = 64

// Attention writes o[B,Tq,H,D] = softmax(q·kᵀ/sqrt(D))·v, query t seeing keys
// 0..Tk-Tq+t, and lse[B,H,Tq], the logarithm of the sum of exponentials of the
// scaled scores. q as o, k and v [B,Tk,K,D], query head h reading head h/(H/K).
// All f32. The work is split by head and block of queries.
func (c *CPU) Attention(s device.Stream, o, lse, q, k, v tensor.Tensor) {
	const op = "attention"
	d := dims(op, q, k, v, lse)
	check.Like(op, "o", o, "q", q)
	p := pass{shape: d, mul: c.mul, o: o.F32(), lse: lse.F32(), q: q.F32(), k: k.F32(), v: v.F32()}
	workers.Enqueue(s, op, func() error {
		blocks := (d.Tq + blockQ - 1) / blockQ
		c.pool.Run(d.B*d.H*blocks, func(worker, task int) {
			head, block := task/blocks, task%blocks
			p.forward(head/d.H, head%d.H, block*blockQ, c.buffer(worker, blockQ*d.Tk))
		})
		return nil
	})
}

// AttentionBackward overwrites dq, dk and dv, shaped as q, k and v, from do and
// what the forward pass wrote; Tq must be Tk. The work is split by key head, and
// one worker adds up all contributions to a head's dk and dv, in the order of
// query heads and rows.
func (c *CPU) AttentionBackward(s device.Stream, dq, dk, dv, do, o, lse, q, k, v tensor.Tensor) {
	const op = "attention backward"
	d := dims(op, q, k, v, lse)
	check.Like(op, "o", o, "q", q)
	check.Like(op, "do", do, "q", q)
	check.Like(op, "dq", dq, "q", q)
	check.Like(op, "dk", dk, "k", k)
	check.Like(op, "dv", dv, "v", v)
	if d.Tq != d.Tk {
		check.Fail(op, "q %v and k %v differ in length", q, k)
	}
	p := pass{shape: d, mul: c.mul, o: o.F32(), lse: lse.F32(), q: q.F32(), k: k.F32(), v: v.F32(),
		dq: dq.F32(), dk: dk.F32(), dv: dv.F32(), do: do.F32()}
	workers.Enqueue(s, op, func() error {
		c.pool.Run(d.B*d.K, func(worker, task int) {
			p.backward(task/d.K, task%d.K, c.buffer(worker, 2*blockQ*d.Tk))
		})
		return nil
	})
}

// buffer is n elements of the worker's scratch.
func (c *CPU) buffer(worker, n int) []float32 {
	if len(c.scratch[worker]) < n {
		c.scratch[worker] = make([]float32, n)
	}
	return c.scratch[worker][:n]
}

// pass is one call's tensors.
type pass struct {
	shape
	mul            gemm.Backend
	o, lse         []float32
	q, k, v        []float32
	dq, dk, dv, do []float32
}

// query is the offset of row t of head h, key that of a key head.
func (p *pass) query(b, t, h int) int { return ((b*p.Tq+t)*p.H + h) * p.D }
func (p *pass) key(b, t, kh int) int  { return ((b*p.Tk+t)*p.K + kh) * p.D }
func (p *pass) scale() float32        { return float32(1 / math.Sqrt(float64(p.D))) }
func (p *pass) visible(t int) int     { return p.Tk - p.Tq + t + 1 }

// forward computes rows [t0, t0+blockQ) of one head.
func (p *pass) forward(b, h, t0 int, scores []float32) {
	rows := min(blockQ, p.Tq-t0)
	keys := p.visible(t0 + rows - 1)
	qAt, kAt := p.query(b, t0, h), p.key(b, 0, h/(p.H/p.K))
	ldq, ldk := p.H*p.D, p.K*p.D
	p.mul.Gemm(false, true, rows, keys, p.D, p.q[qAt:], ldq, p.k[kAt:], ldk, false, scores, keys)
	var inverse [blockQ]float32
	for r := range rows {
		row, seen := scores[r*keys:(r+1)*keys], p.visible(t0+r)
		clear(row[seen:])
		// The largest exponent, up to rounding: the exponentials are at most about 1.
		top := vec.Max(row[:seen]) * p.scale()
		sum := vec.ExpSum(row[:seen], p.scale(), top)
		p.lse[(b*p.H+h)*p.Tq+t0+r] = float32(float64(top) + math.Log(sum))
		inverse[r] = float32(1 / sum)
	}
	p.mul.Gemm(false, false, rows, p.D, keys, scores, keys, p.v[kAt:], ldk, false, p.o[qAt:], ldq)
	for r := range rows {
		out := p.o[qAt+r*ldq : qAt+r*ldq+p.D]
		for i := range out {
			out[i] *= inverse[r]
		}
	}
}

// backward computes dk and dv of one key head and dq of its query heads.
func (p *pass) backward(b, kh int, scratch []float32) {
	kAt, ldq, ldk := p.key(b, 0, kh), p.H*p.D, p.K*p.D
	for t := range p.Tk {
		at := p.key(b, t, kh)
		clear(p.dk[at : at+p.D])
		clear(p.dv[at : at+p.D])
	}
	group := p.H / p.K
	for h := kh * group; h < (kh+1)*group; h++ {
		for t0 := 0; t0 < p.Tq; t0 += blockQ {
			rows := min(blockQ, p.Tq-t0)
			keys := t0 + rows
			qAt := p.query(b, t0, h)
			prob, dprob := scratch[:rows*keys], scratch[rows*keys:2*rows*keys]
			p.mul.Gemm(false, true, rows, keys, p.D, p.q[qAt:], ldq, p.k[kAt:], ldk, false, prob, keys)
			p.mul.Gemm(false, true, rows, keys, p.D, p.do[qAt:], ldq, p.v[kAt:], ldk, false, dprob, keys)
			for r := range rows {
				at, seen := qAt+r*ldq, t0+r+1
				lse := p.lse[(b*p.H+h)*p.Tq+t0+r]
				p.scores(prob[r*keys:(r+1)*keys], dprob[r*keys:(r+1)*keys], seen, lse, p.o[at:at+p.D], p.do[at:at+p.D])
			}
			p.mul.Gemm(true, false, keys, p.D, rows, prob, keys, p.do[qAt:], ldq, true, p.dv[kAt:], ldk)
			p.mul.Gemm(false, false, rows, p.D, keys, dprob, keys, p.k[kAt:], ldk, false, p.dq[qAt:], ldq)
			p.mul.Gemm(true, false, keys, p.D, rows, dprob, keys, p.q[qAt:], ldq, true, p.dk[kAt:], ldk)
		}
	}
}

// scores turns one row of scores q·k into probabilities, and of do·v into the
// gradient of the scores: ds = p*(dp - o·do)*scale. Keys from seen on are hidden.
func (p *pass) scores(prob, dprob []float32, seen int, lse float32, o, do []float32) {
	mean := float32(vec.Dot(o, do))
	vec.SoftmaxGrad(prob[:seen], dprob[:seen], p.scale(), lse, mean)
	clear(prob[seen:])
	clear(dprob[seen:])
}
