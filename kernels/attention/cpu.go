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
// product; a worker's scratch is blockQ scores a key forward and twice that backward.
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

// Attention writes o[B,T,H,D] = softmax(q·kᵀ/sqrt(D))·v from qkv[B,T,H+2K,D], and
// lse[B,H,T], the logarithm of the sum of exponentials of the scaled scores.
// docs[B,T] i32, optional, is the first position of each token's document. All
// else f32. The work is split by head and block of queries.
func (c *CPU) Attention(s device.Stream, o, lse, qkv, docs tensor.Tensor) {
	const op = "attention"
	d := dims(op, o, lse, qkv, docs)
	p := c.pass(d, o, lse, qkv, docs)
	workers.Enqueue(s, op, func() error { c.forward(p); return nil })
}

// AttentionNext continues a text of pos tokens by those of qkv[1,T,H+2K,D]: their
// keys and values go to rows pos to pos+T of keys and values [P,K,D], and
// o[1,T,H,D] is the attention of their queries to all rows up to their own. All
// f32.
func (c *CPU) AttentionNext(s device.Stream, o, keys, values, qkv tensor.Tensor, pos int) {
	const op = "attention next"
	d, _ := nextDims(op, o, keys, values, qkv, pos)
	p := pass{shape: d, mul: c.mul, past: pos, q: qkv.F32(), ldq: d.heads() * d.D, o: o.F32(),
		k: keys.F32(), v: values.F32(), ldk: d.K * d.D, lse: make([]float32, d.H*d.T)}
	workers.Enqueue(s, op, func() error {
		for t := range d.T {
			row := p.q[t*p.ldq+d.H*d.D : (t+1)*p.ldq]
			copy(p.k[(pos+t)*p.ldk:], row[:p.ldk])
			copy(p.v[(pos+t)*p.ldk:], row[p.ldk:])
		}
		c.forward(p)
		return nil
	})
}

// AttentionBackward overwrites dqkv, shaped as qkv, from do, shaped as o, and what
// the forward pass read and wrote. The work is split by key head, and one worker
// adds up all contributions to a head's keys and values, in the order of query
// heads and rows.
func (c *CPU) AttentionBackward(s device.Stream, dqkv, do, o, lse, qkv, docs tensor.Tensor) {
	const op = "attention backward"
	d := dims(op, o, lse, qkv, docs)
	check.Like(op, "do", do, "o", o)
	check.Like(op, "dqkv", dqkv, "qkv", qkv)
	p := c.pass(d, o, lse, qkv, docs)
	p.do, p.dq = do.F32(), dqkv.F32()
	p.dk, p.dv = p.dq[min(d.H*d.D, len(p.dq)):], p.dq[min((d.H+d.K)*d.D, len(p.dq)):]
	workers.Enqueue(s, op, func() error {
		c.pool.Run(d.B*d.K, func(worker, task int) {
			p.backward(task/d.K, task%d.K, c.buffer(worker, 2*blockQ*d.T))
		})
		return nil
	})
}

func (c *CPU) pass(d shape, o, lse, qkv, docs tensor.Tensor) pass {
	ld := d.heads() * d.D
	p := pass{shape: d, mul: c.mul, q: qkv.F32(), ldq: ld, ldk: ld, o: o.F32(), lse: lse.F32()}
	p.k, p.v = p.q[min(d.H*d.D, len(p.q)):], p.q[min((d.H+d.K)*d.D, len(p.q)):]
	if !docs.None() {
		p.docs = docs.I32()
	}
	return p
}

func (c *CPU) forward(p pass) {
	blocks := (p.T + blockQ - 1) / blockQ
	c.pool.Run(p.B*p.H*blocks, func(worker, task int) {
		head, block := task/blocks, task%blocks
		p.forward(head/p.H, head%p.H, block*blockQ, c.buffer(worker, blockQ*(p.past+p.T)))
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
	past           int       // keys before the first query's own
	q, k, v        []float32 // from the first head of each on
	ldq, ldk       int       // elements from one position to the next
	o, lse         []float32
	docs           []int32 // nil: one document a sequence
	dq, dk, dv, do []float32
}

// query is the offset of row t of head h in q, key that of a key head in k and v,
// out that in o.
func (p *pass) query(b, t, h int) int { return (b*p.T+t)*p.ldq + h*p.D }
func (p *pass) key(b, t, kh int) int  { return (b*p.T+t)*p.ldk + kh*p.D }
func (p *pass) out(b, t, h int) int   { return ((b*p.T+t)*p.H + h) * p.D }
func (p *pass) scale() float32        { return float32(1 / math.Sqrt(float64(p.D))) }

// first is the first key that query t sees.
func (p *pass) first(b, t int) int {
	if p.docs == nil {
		return 0
	}
	return int(p.docs[b*p.T+t])
}

// forward computes rows [t0, t0+blockQ) of one head. Scores are of keys from on.
func (p *pass) forward(b, h, t0 int, scores []float32) {
	rows := min(blockQ, p.T-t0)
	from := p.first(b, t0) // the lowest, as documents follow each other
	keys := p.past + t0 + rows - from
	at, kAt := p.out(b, t0, h), p.key(b, from, h/(p.H/p.K))
	ldo := p.H * p.D
	p.mul.Gemm(false, true, rows, keys, p.D, p.q[p.query(b, t0, h):], p.ldq, p.k[kAt:], p.ldk, false, scores, keys)
	var inverse [blockQ]float32
	for r := range rows {
		row := scores[r*keys : (r+1)*keys]
		hidden, seen := p.first(b, t0+r)-from, p.past+t0+r+1-from
		clear(row[:hidden])
		clear(row[seen:])
		row = row[hidden:seen]
		// The largest exponent, up to rounding: the exponentials are at most about 1.
		top := vec.Max(row) * p.scale()
		sum := vec.ExpSum(row, p.scale(), top)
		p.lse[(b*p.H+h)*p.T+t0+r] = float32(float64(top) + math.Log(sum))
		inverse[r] = float32(1 / sum)
	}
	p.mul.Gemm(false, false, rows, p.D, keys, scores, keys, p.v[kAt:], p.ldk, false, p.o[at:], ldo)
	for r := range rows {
		out := p.o[at+r*ldo : at+r*ldo+p.D]
		for i := range out {
			out[i] *= inverse[r]
		}
	}
}

// backward computes dk and dv of one key head and dq of its query heads.
func (p *pass) backward(b, kh int, scratch []float32) {
	ldo := p.H * p.D
	for t := range p.T {
		at := p.key(b, t, kh)
		clear(p.dk[at : at+p.D])
		clear(p.dv[at : at+p.D])
	}
	group := p.H / p.K
	for h := kh * group; h < (kh+1)*group; h++ {
		for t0 := 0; t0 < p.T; t0 += blockQ {
			rows := min(blockQ, p.T-t0)
			from := p.first(b, t0)
			keys := t0 + rows - from
			qAt, kAt, oAt := p.query(b, t0, h), p.key(b, from, kh), p.out(b, t0, h)
			prob, dprob := scratch[:rows*keys], scratch[rows*keys:2*rows*keys]
			p.mul.Gemm(false, true, rows, keys, p.D, p.q[qAt:], p.ldq, p.k[kAt:], p.ldk, false, prob, keys)
			p.mul.Gemm(false, true, rows, keys, p.D, p.do[oAt:], ldo, p.v[kAt:], p.ldk, false, dprob, keys)
			for r := range rows {
				at := oAt + r*ldo
				hidden, seen := p.first(b, t0+r)-from, t0+r+1-from
				lse := p.lse[(b*p.H+h)*p.T+t0+r]
				p.scores(prob[r*keys:(r+1)*keys], dprob[r*keys:(r+1)*keys], hidden, seen, lse, p.o[at:at+p.D], p.do[at:at+p.D])
			}
			p.mul.Gemm(true, false, keys, p.D, rows, prob, keys, p.do[oAt:], ldo, true, p.dv[kAt:], p.ldk)
			p.mul.Gemm(false, false, rows, p.D, keys, dprob, keys, p.k[kAt:], p.ldk, false, p.dq[qAt:], p.ldq)
			p.mul.Gemm(true, false, keys, p.D, rows, dprob, keys, p.q[qAt:], p.ldq, true, p.dk[kAt:], p.ldk)
		}
	}
}

// scores turns one row of scores q·k into probabilities, and of do·v into the
// gradient of the scores: ds = p*(dp - o·do)*scale. Keys before hidden and from
// seen on are not the row's.
func (p *pass) scores(prob, dprob []float32, hidden, seen int, lse float32, o, do []float32) {
	mean := float32(vec.Dot(o, do))
	vec.SoftmaxGrad(prob[hidden:seen], dprob[hidden:seen], p.scale(), lse, mean)
	for _, row := range [][]float32{prob, dprob} {
		clear(row[:hidden])
		clear(row[seen:])
	}
}
