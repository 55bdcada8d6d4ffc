package compress

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// odd is parameters around the sizes of blocks and parts: smaller than a block, than the
// number of ranks, without elements, and matrices of which some are worth two factors.
func odd() []*param.Param {
	var list []*param.Param
	for i, s := range [][]int{{1}, {3}, {0, 4}, {63}, {64}, {65}, {17, 33}, {255}, {256}, {257}, {40, 50}, {2, 2}, {3, 30, 20}, {1000}} {
		list = append(list, &param.Param{Name: fmt.Sprint("p", i), Shape: s, DType: dtype.F32})
	}
	return list
}

// layout puts params into buckets of at most limit elements, with gaps between them, and
// as zero's where scatter is true.
func layout(params []*param.Param, ranks int, scatter bool, limit int) Layout {
	l := Layout{Ranks: ranks, Scatter: scatter}
	for _, p := range params {
		if n := len(l.Buckets); n == 0 || l.Buckets[n-1].Numel+p.Numel() > limit {
			l.Buckets = append(l.Buckets, Bucket{DType: dtype.F32})
		}
		b := &l.Buckets[len(l.Buckets)-1]
		b.Params, b.Offsets = append(b.Params, p), append(b.Offsets, b.Numel)
		b.Numel += alignUp(p.Numel(), 64)
	}
	for i := range l.Buckets {
		if b := &l.Buckets[i]; scatter {
			b.Numel = alignUp(max(b.Numel, 1), 128*ranks)
		}
	}
	return l
}

// rank is one rank of a test.
type rank struct {
	t      *testing.T
	g      *comm.Group
	s      *device.CPUStream
	c      *Compressor
	l      Layout
	op     comm.Op
	flat   []tensor.Tensor // of each bucket
	sums   []tensor.Tensor // under Scatter this rank's parts, as they came
	memory int64           // that was allocated
	sent   int64
}

// host is arithmetic on host memory.
type host struct{}

func (host) Convert(s device.Stream, dst, src tensor.Tensor) {
	s.(hostStream).Do("convert", func() error {
		if dst.DType == dtype.F32 {
			vec.Widen(src.DType, dst.F32(), src.Buf.Bytes())
		} else {
			wide := make([]float32, src.Numel())
			vec.Widen(src.DType, wide, src.Buf.Bytes())
			vec.Narrow(dst.DType, dst.Buf.Bytes(), wide)
		}
		return nil
	})
}

func (host) Add(s device.Stream, dst, src tensor.Tensor) {
	s.(hostStream).Do("add", func() error {
		vec.Accumulate(src.DType, dst.F32(), src.Buf.Bytes())
		return nil
	})
}

func (r *rank) env() Env {
	get := func(n int) (device.Buffer, error) {
		r.memory += int64(n)
		return device.NewCPU().Alloc(n)
	}
	return Env{Group: r.g, Op: r.op, Device: device.NewCPU(), Memory: host{}, Private: get, Shared: get,
		Pinned: func(n int) (device.Buffer, error) { return device.NewCPU().AllocHost(n) }}
}

// onRanks opens a compressor on each of n ranks and calls f there.
func onRanks(t *testing.T, n int, o Options, op comm.Op, l Layout, f func(r *rank) error) {
	t.Helper()
	groups := commtest.Groups(t, n, comm.Options{Algo: comm.Direct}) // which sends what is computed
	defer commtest.Close(groups)                                     // a test may make many
	commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
		c, err := New(o)
		if err != nil {
			return err
		}
		r := &rank{t: t, g: g, s: s, c: c, op: op}
		if err := r.open(l); err != nil {
			return err
		}
		return f(r)
	})
}

func (r *rank) open(l Layout) error {
	r.l, r.flat = l, nil
	for _, b := range l.Buckets {
		flat, err := tensor.Alloc(device.NewCPU(), b.DType, b.Numel)
		if err != nil {
			return err
		}
		r.flat = append(r.flat, flat)
	}
	return r.c.Open(r.env(), l)
}

// gradient is element e of a parameter on a rank in a step.
type gradient func(p *param.Param, rank, step, e int) float32

// noise is gradients of very different sizes, with a part that is everybody's and stays.
func noise(p *param.Param, rank, step, e int) float32 {
	id := uint64(p.Name[len(p.Name)-1])<<40 + uint64(e)<<8
	return (0.5*uniform(id) + uniform(id+uint64(rank)+uint64(step)<<3+1)) * float32(1+e%5)
}

// uniform is a number from -1 to 1 for x, as good as random.
func uniform(x uint64) float32 {
	x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>31) * 0x94d049bb133111eb
	return float32(int32(x>>33))/(1<<30) - 1
}

// reduce makes a micro-step: it writes the gradients and reduces all buckets. What it
// returns is the sums as this rank has them, by parameter; NaN where it has not got
// them.
func (r *rank) reduce(step int, g gradient) (map[string][]float32, error) {
	r.sums = nil
	out := map[string][]float32{}
	for i, b := range r.l.Buckets {
		r.s.Do("gradients", func() error {
			wide := make([]float32, b.Numel)
			for j := range wide {
				if r.l.Scatter { // stale memory
					wide[j] = float32(nan)
				}
			}
			for j, p := range b.Params {
				for e := range p.Numel() {
					wide[b.Offsets[j]+e] = g(p, r.g.Rank(), step, e)
				}
			}
			vec.Narrow(b.DType, r.flat[i].Buf.Bytes(), wide)
			return nil
		})
		sum, sent := r.c.Reduce(r.s, i, r.flat[i])
		if sum.None() {
			r.plainly(i)
			sum = r.flat[i]
			if r.l.Scatter {
				part := b.Numel / r.l.Ranks
				sum = sum.Rows(r.g.Rank()*part, (r.g.Rank()+1)*part)
			}
		}
		r.sent += sent
		r.s.Do("read", func() error {
			wide := make([]float32, sum.Numel())
			vec.Widen(sum.DType, wide, sum.Buf.Bytes())
			from := 0
			if r.l.Scatter {
				from = r.g.Rank() * len(wide)
			}
			for j, p := range b.Params {
				v := make([]float32, p.Numel())
				for e := range v {
					v[e] = float32(nan)
					if at := b.Offsets[j] + e - from; at >= 0 && at < len(wide) {
						v[e] = wide[at]
					}
				}
				out[p.Name] = v
			}
			return r.gaps(b, wide)
		})
	}
	return out, r.s.Synchronize(r.t.Context())
}

// plainly reduces a bucket without the hook.
func (r *rank) plainly(i int) {
	if r.l.Scatter {
		part := r.flat[i].Numel() / r.l.Ranks
		r.g.ReduceScatter(r.s, r.flat[i].Rows(r.g.Rank()*part, (r.g.Rank()+1)*part).Buf, r.flat[i].Buf, r.flat[i].DType, r.op)
		return
	}
	r.g.AllReduce(r.s, r.flat[i].Buf, r.flat[i].DType, r.op)
}

// gaps makes sure that zeros between gradients are still there where a norm runs over
// them.
func (r *rank) gaps(b Bucket, wide []float32) error {
	if r.l.Scatter {
		return nil
	}
	for j, p := range b.Params {
		end := b.Numel
		if j+1 < len(b.Params) {
			end = b.Offsets[j+1]
		}
		for e := b.Offsets[j] + p.Numel(); e < end; e++ {
			if wide[e] != 0 {
				return fmt.Errorf("element %d, between gradients, is %v", e, wide[e])
			}
		}
	}
	return nil
}

// step is a window of one micro-step.
func (r *rank) step(step int, g gradient) (map[string][]float32, error) {
	r.c.Begin()
	return r.reduce(step, g)
}
