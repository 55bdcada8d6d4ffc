package attention

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// probe is one comparison of the self-test.
type probe struct {
	shape
	// logits is the mean of all scores. Near -200 they make lse so low that its
	// exponential is 0: an attention that takes it anyway gives NaN.
	logits float64
}

// probes are small shapes with lengths that are no multiple of any tile, and one
// that is 64 more than a multiple of 128.
func probes(headDim int) []probe {
	return []probe{
		{shape{B: 2, T: 128, H: 4, K: 2, D: headDim}, 0},
		{shape{B: 2, T: 77, H: 7, K: 1, D: headDim}, 0},
		{shape{B: 1, T: 513, H: 2, K: 2, D: headDim}, 0},
		{shape{B: 1, T: 192, H: 4, K: 2, D: headDim}, -200},
	}
}

// selfTest compares f with the native kernels, for heads of one size. It runs on a
// stream of its own and waits for it.
func selfTest(n *native, f fused, headDim int) error {
	d := n.env.Device
	s, err := d.NewPriorityStream("attention self-test", false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, fmt.Errorf("%s: not done after a minute", d))
	defer cancel()
	for _, p := range probes(headDim) {
		if err = p.run(ctx, n, f, s); err != nil {
			err = fmt.Errorf("%d sequences of %d, %d/%d heads of %d, scores near %v: %w", p.B, p.T, p.H, p.K, p.D, p.logits, err)
			break
		}
	}
	if closing := s.Close(); err == nil {
		err = closing
	}
	return err
}

// outputs is what both passes write.
type outputs struct {
	o, lse, dqkv tensor.Tensor
}

func (p probe) run(ctx context.Context, n *native, f fused, s *cuda.Stream) (err error) {
	d := n.env.Device
	var held []device.Buffer
	defer func() {
		for _, b := range held {
			if e := d.Free(b); err == nil {
				err = e
			}
		}
	}()
	alloc := func(dt dtype.DType, shape ...int) tensor.Tensor {
		if err != nil {
			return tensor.Tensor{}
		}
		var x tensor.Tensor
		if x, err = tensor.Alloc(d, dt, shape...); err == nil {
			held = append(held, x.Buf)
		}
		return x
	}
	qkv, do := alloc(dtype.BF16, p.B, p.T, p.heads(), p.D), alloc(dtype.BF16, p.B, p.T, p.H, p.D)
	var outs [2]outputs
	for i := range outs {
		outs[i] = outputs{alloc(dtype.BF16, p.B, p.T, p.H, p.D), alloc(dtype.F32, p.B, p.H, p.T), alloc(dtype.BF16, p.B, p.T, p.heads(), p.D)}
	}
	if err != nil {
		return err
	}
	host := p.random()
	s.Copy(qkv.Buf, device.Of(host[0]))
	s.Copy(do.Buf, device.Of(host[1]))
	own, other := outs[0], outs[1]
	if err := n.attend(s, p.shape, own.o, own.lse, qkv, tensor.Tensor{}); err != nil {
		return err
	}
	if err := n.differentiate(s, p.shape, own.dqkv, do, own.o, own.lse, qkv, tensor.Tensor{}); err != nil {
		return err
	}
	f.Forward(s, other.o, other.lse, qkv)
	f.Backward(s, other.dqkv, do, other.o, other.lse, qkv)

	var got [2]hostOutputs
	for i, x := range outs {
		got[i] = hostOutputs{make([]uint16, x.o.Numel()), make([]float32, x.lse.Numel()), make([]uint16, x.dqkv.Numel())}
		s.Copy(device.Of(got[i].o), x.o.Buf)
		s.Copy(device.Of(got[i].lse), x.lse.Buf)
		s.Copy(device.Of(got[i].dqkv), x.dqkv.Buf)
	}
	if err := s.Synchronize(ctx); err != nil {
		return err
	}
	return p.compare(got[0], got[1])
}

// random is qkv and do in bf16, the same in every process.
func (p probe) random() (x [2][]uint16) {
	r := rand.New(rand.NewPCG(uint64(p.T), uint64(p.D)))
	// A shift of every component of q, and the same of k but for the sign, moves the
	// scores by D*shift²/sqrt(D).
	shift := math.Sqrt(math.Abs(p.logits) / math.Sqrt(float64(p.D)))
	for i := range p.B * p.T * p.heads() * p.D {
		v := r.NormFloat64()
		switch h := i / p.D % p.heads(); {
		case h < p.H:
			v += shift
		case h < p.H+p.K:
			v += math.Copysign(shift, p.logits)
		}
		x[0] = append(x[0], dtype.BF16From(float32(v)))
	}
	for range p.B * p.T * p.H * p.D {
		x[1] = append(x[1], dtype.BF16From(float32(r.NormFloat64())))
	}
	return x
}

type hostOutputs struct {
	o    []uint16
	lse  []float32
	dqkv []uint16
}

// compare allows each implementation twice the error that bf16 explains: 2.5e-3,
// but for gradients of q and k where all scores are nearly the same, which are
// small differences of large numbers.
func (p probe) compare(a, b hostOutputs) error {
	all := func(int) bool { return true }
	if e := distance(a.o, b.o, all); !(e < 0.01) {
		return fmt.Errorf("o differs by %.3g", e)
	}
	for i := range a.lse {
		if e := math.Abs(float64(a.lse[i] - b.lse[i])); !(e < 1e-3) {
			return fmt.Errorf("lse[%d] is %v, and %v natively", i, b.lse[i], a.lse[i])
		}
	}
	for _, g := range []struct {
		name     string
		from, to int // heads of a row
		peaked   float64
	}{{"dq", 0, p.H, 0.15}, {"dk", p.H, p.H + p.K, 0.15}, {"dv", p.H + p.K, p.heads(), 0.01}} {
		allowed := 0.01
		if p.logits != 0 {
			allowed = g.peaked
		}
		of := func(i int) bool { h := i / p.D % p.heads(); return h >= g.from && h < g.to }
		if e := distance(a.dqkv, b.dqkv, of); !(e < allowed) {
			return fmt.Errorf("%s differs by %.3g", g.name, e)
		}
	}
	return nil
}

// distance is ‖a-b‖/‖a‖ over the elements that of selects; NaN where one is NaN.
func distance(a, b []uint16, of func(i int) bool) float64 {
	var diff, norm float64
	for i := range a {
		if !of(i) {
			continue
		}
		x, y := float64(dtype.BF16To(a[i])), float64(dtype.BF16To(b[i]))
		diff += (x - y) * (x - y)
		norm += x * x
	}
	return math.Sqrt(diff / norm)
}
