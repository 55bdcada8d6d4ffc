package compress

import (
	"fmt"
	"hash/fnv"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// powerSGD sends in the place of a matrix M two thin ones whose product is near it
// (Vogels, Karimireddy, Jaggi, NeurIPS 2019). With Q of the step before:
//
//	P = sum over the ranks of M Q, orthonormalised
//	Q = sum over the ranks of M^T P
//	the sum of M is about P Q^T
//
// What a rank leaves behind is M - P (M^T P)^T, with its own M alone. P and Q are stored
// as their columns, one after another.
type powerSGD struct {
	rank    int
	minRate float64
	start   int
	step    int // of the window, from 0
}

func (x *powerSGD) String() string {
	return fmt.Sprintf("%s rank %d, at least %gx, from step %d on", PowerSGD, x.rank, x.minRate, x.start+1)
}

// matrix is the shape of p as a matrix; worth says that it is sent as two.
func (x *powerSGD) matrix(p *param.Param) (rows, cols int, worth bool) {
	if len(p.Shape) < 2 {
		return 0, 0, false
	}
	rows, cols = p.Shape[0], tensor.Numel(p.Shape[1:])
	return rows, cols, float64((rows+cols)*x.rank)*x.minRate < float64(rows*cols)
}

func (x *powerSGD) keeps(p *param.Param) []shape {
	_, cols, worth := x.matrix(p)
	if !worth {
		return nil
	}
	return []shape{{"error." + p.Name, p.Shape}, {"q." + p.Name, []int{x.rank, cols}}}
}

func (*powerSGD) counter() shape { return shape{"steps", []int{1}} }

func (x *powerSGD) begin(k *kept) {
	old, next := k.named["steps"].turn()
	x.step = int(old[0])
	next[0] = old[0] + 1 // which stops at 2^24
}

// elements counts those of a bucket: of all P, of all Q, and of what is sent whole.
func (x *powerSGD) elements(b *Bucket) (p, q, whole int) {
	for _, y := range b.Params {
		rows, cols, worth := x.matrix(y)
		if worth {
			p += rows * x.rank
			q += cols * x.rank
		} else {
			whole += y.Numel()
		}
	}
	return p, q, whole
}

func (x *powerSGD) sizes(l Layout, b *Bucket) sizes {
	p, q, whole := x.elements(b)
	if p == 0 {
		return sizes{}
	}
	// Each Q is there twice more: the rank's own, and that of the step before.
	return sizes{send: 4 * (whole + p), recv: 4 * q, work: 4 * (b.Numel + q)}
}

func (x *powerSGD) sent(l Layout, b *Bucket) int64 {
	p, q, whole := x.elements(b)
	if p == 0 {
		return l.plain(b)
	}
	return 2 * int64(l.Ranks-1) * 4 * int64(whole+p+q) / int64(l.Ranks)
}

// low is a matrix of a bucket and its factors.
type low struct {
	*param.Param
	offset, rows, cols int
	p, q, own          []float32 // own is the rank's share of q
	oldQ, nextQ        []float32
}

func (x *powerSGD) reduce(c *Compressor, on device.Stream, i int, flat tensor.Tensor) (none tensor.Tensor, sent int64) {
	l, b, e := c.layout, &c.layout.Buckets[i], c.env
	p, q, whole := x.elements(b)
	s := on.(hostStream)
	if p == 0 || x.step < x.start {
		s.Do("compress: measure", func() error {
			c.measure(b.squares(flat), 0)
			return nil
		})
		return none, 0
	}
	first, second := floats(c.send, whole+p), floats(c.recv, q)
	work, own := floats(c.work, b.Numel+q)[:b.Numel], floats(c.work, b.Numel+q)[b.Numel:]
	d := c.debts(i)
	list := x.matrices(c, b, first[whole:], second, own)

	s.Do("compress: P", func() error {
		b.load(work, flat, d)
		x.wholes(b, func(from, to, at int) { copy(first[at:], work[from:to]) })
		for _, m := range list {
			copy(m.q, m.oldQ)
			orthonormalise(m.q, x.rank, seed(m.Name))
			m.timesQ(work[m.offset:], x.rank)
		}
		return nil
	})
	e.Group.AllReduce(s, device.Of(first), dtype.F32, e.Op)
	s.Do("compress: Q", func() error {
		for _, m := range list {
			orthonormalise(m.p, x.rank, seed(m.Name)+1)
			m.timesP(work[m.offset:], x.rank)
			copy(m.own, m.q)
		}
		return nil
	})
	e.Group.AllReduce(s, device.Of(second), dtype.F32, e.Op)
	result, lo, hi := flat, 0, b.Numel
	if l.Scatter {
		part := l.part(b)
		lo, hi = e.Group.Rank()*part, (e.Group.Rank()+1)*part
		result = tensor.New(device.Of(work[:part]), dtype.F32, part)
	}
	s.Do("compress: P times Q", func() error {
		x.settle(c, b, list, work, d)
		sums := work
		if l.Scatter {
			sums = work[:hi-lo]
		}
		clear(sums)
		x.wholes(b, func(from, to, at int) {
			if f, t := max(from, lo), min(to, hi); f < t {
				copy(sums[f-lo:t-lo], first[at+f-from:])
			}
		})
		for _, m := range list {
			if f, t := max(m.offset, lo), min(m.offset+m.Numel(), hi); f < t {
				m.addProduct(sums[f-lo:t-lo], f-m.offset, m.q, x.rank, 1)
			}
		}
		if !l.Scatter {
			b.store(flat, work)
		}
		return nil
	})
	return result, x.sent(l, b)
}

// matrices lists those of b, with their factors' places.
func (x *powerSGD) matrices(c *Compressor, b *Bucket, p, q, own []float32) (list []low) {
	for j, y := range b.Params {
		rows, cols, worth := x.matrix(y)
		if !worth {
			continue
		}
		m := low{Param: y, offset: b.Offsets[j], rows: rows, cols: cols}
		np, nq := rows*x.rank, cols*x.rank
		m.p, p = p[:np], p[np:]
		m.q, q = q[:nq], q[nq:]
		m.own, own = own[:nq], own[nq:]
		m.oldQ, m.nextQ = c.kept.named["q."+y.Name].turn()
		list = append(list, m)
	}
	return list
}

// wholes calls f with the elements [from, to) of each parameter that is sent whole, and
// its place among them.
func (x *powerSGD) wholes(b *Bucket, f func(from, to, at int)) {
	at := 0
	for j, p := range b.Params {
		if _, _, worth := x.matrix(p); !worth {
			f(b.Offsets[j], b.Offsets[j]+p.Numel(), at)
			at += p.Numel()
		}
	}
}

// settle keeps what the rank leaves behind, and every Q.
func (x *powerSGD) settle(c *Compressor, b *Bucket, list []low, work []float32, d debts) {
	given := squares(work)
	for _, m := range list {
		m.addProduct(work[m.offset:m.offset+m.Numel()], 0, m.own, x.rank, -1)
		keep(m.nextQ, m.q, m.oldQ)
	}
	d.keep(work)
	c.measure(given, d.squares())
}

// timesQ writes P = M Q.
func (m *low) timesQ(x []float32, rank int) {
	for i := range m.rows {
		row := x[i*m.cols : (i+1)*m.cols]
		for k := range rank {
			m.p[k*m.rows+i] = float32(dot(row, m.q[k*m.cols:(k+1)*m.cols]))
		}
	}
}

// timesP writes Q = M^T P.
func (m *low) timesP(x []float32, rank int) {
	clear(m.q)
	for i := range m.rows {
		row := x[i*m.cols : (i+1)*m.cols]
		for k := range rank {
			addTimes(m.q[k*m.cols:(k+1)*m.cols], row, m.p[k*m.rows+i])
		}
	}
}

// addProduct adds f P Q^T, for the given Q, to x: the elements by rows from the given
// one on.
func (m *low) addProduct(x []float32, from int, q []float32, rank int, f float32) {
	for len(x) > 0 {
		i, j := from/m.cols, from%m.cols
		n := min(m.cols-j, len(x))
		for k := range rank {
			addTimes(x[:n], q[k*m.cols+j:], f*m.p[k*m.rows+i])
		}
		x, from = x[n:], from+n
	}
}

// seed is a number for a parameter, the same on all ranks and in all runs.
func seed(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// addTimes adds f x to y.
func addTimes(y, x []float32, f float32) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] += float32(v * f)
	}
}

// dot is the product of x and y, in float64.
func dot(x, y []float32) float64 {
	y = y[:len(x)]
	var a, b, c, d float64
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += float64(float64(x[i]) * float64(y[i]))
		b += float64(float64(x[i+1]) * float64(y[i+1]))
		c += float64(float64(x[i+2]) * float64(y[i+2]))
		d += float64(float64(x[i+3]) * float64(y[i+3]))
	}
	for ; i < len(x); i++ {
		a += float64(float64(x[i]) * float64(y[i]))
	}
	return a + b + c + d
}
