package cudnn

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// onGPU is cuDNN's attention on the first GPU, and a stream there. The test is
// skipped without a GPU, and where the GPU or its libraries do not serve.
func onGPU(t testing.TB) (*SDPA, *nv.Env, *cuda.Stream) {
	t.Helper()
	env, s := gputest.Env(t)
	a, err := Open(env)
	if err != nil {
		testenv.Skip(t, "cudnn", err.Error())
	}
	t.Cleanup(func() {
		if err := kerntest.Sync(s); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("cuDNN %s, %s, on %s", a.Version(), a.lib.path, env.Device.Name())
	return a, env, s
}

// problem is one call's tensors on the host and on the GPU.
type problem struct {
	shape
	host struct{ qkv, do tensor.Tensor } // f32, of bf16 values
	call
}

// pose uploads inputs: normal numbers, then what change makes of them.
func pose(t testing.TB, s *cuda.Stream, sh shape, change func(qkv tensor.Tensor)) problem {
	t.Helper()
	B, T, H, E, D := int(sh.B), int(sh.T), int(sh.H), int(sh.H+2*sh.K), int(sh.D)
	p := problem{shape: sh}
	r := kerntest.Rand(uint64(T + H))
	p.host.qkv, p.host.do = kerntest.Normal(r, 1, B, T, E, D), kerntest.Normal(r, 1, B, T, H, D)
	if change != nil {
		change(p.host.qkv)
	}
	gputest.BF16(p.host.qkv)
	gputest.BF16(p.host.do)
	p.qkv, p.do = gputest.Upload(t, s, p.host.qkv, dtype.BF16), gputest.Upload(t, s, p.host.do, dtype.BF16)
	p.o, p.lse = gputest.New(t, s, dtype.BF16, B, T, H, D), gputest.New(t, s, dtype.F32, B, H, T)
	p.dqkv = gputest.New(t, s, dtype.BF16, B, T, E, D)
	return p
}

// run runs both passes twice, each time with poisoned outputs and scratch memory,
// demands equal bits and returns o, lse and dqkv.
func (p problem) run(t testing.TB, a *SDPA, env *nv.Env, s *cuda.Stream) []tensor.Tensor {
	t.Helper()
	return gputest.Twice(t, s, func() {
		a.Forward(s, p.o, p.lse, p.qkv)
		poisonScratch(t, a, env, s)
		a.Backward(s, p.dqkv, p.do, p.o, p.lse, p.qkv)
	}, p.o, p.lse, p.dqkv)
}

// poisonScratch fills the stream's scratch memory with NaN.
func poisonScratch(t testing.TB, a *SDPA, env *nv.Env, s *cuda.Stream) {
	t.Helper()
	a.mu.Lock()
	l := a.lanes[s]
	a.mu.Unlock()
	if l == nil {
		return
	}
	b, err := env.Scratch(l.user, 0)
	if err != nil {
		t.Fatal(err)
	}
	gputest.Poison(t, s, tensor.New(b, dtype.U8, b.Len()))
}

// check holds results against f64. Where strict, element by element. Else the error
// as a whole may be three times that of the emulated run: where few rows carry most
// of the error, the worst elements of two runs that round alike differ by more.
func (p problem) check(t *testing.T, got []tensor.Tensor, strict bool) {
	t.Helper()
	qkv, do := kerntest.F64(p.host.qkv), kerntest.F64(p.host.do)
	want, emulated := refer(p.shape, qkv, do, false), refer(p.shape, qkv, do, true)
	compare := func(name string, got tensor.Tensor, want, emulated []float64) {
		t.Helper()
		if strict {
			gputest.Compare(t, name, got, want, emulated)
			return
		}
		g := gputest.Floats(got)
		if e, bound := distance(g, want), 3*distance(emulated, want); !(e <= bound) {
			worst := 0
			for i := range g {
				if d := math.Abs(g[i] - want[i]); d > math.Abs(g[worst]-want[worst]) || math.IsNaN(d) {
					worst = i
				}
			}
			t.Errorf("%s: relative error %.3g, bound %.3g; worst [%d]: got %v, want %v, emulated %v", name, e, bound, worst, g[worst], want[worst], emulated[worst])
		}
	}
	compare("o", got[0], want.o, emulated.o)
	gputest.Near(t, "lse", got[1], want.lse, 2e-6)
	// Queries, keys and values apart: their gradients differ in size.
	wide := gputest.Floats(got[2])
	for _, x := range []struct {
		name     string
		from, to int64
	}{{"dq", 0, p.H}, {"dk", p.H, p.H + p.K}, {"dv", p.H + p.K, p.H + 2*p.K}} {
		cut := func(all []float64) []float64 { return heads(all, p.E, p.D, x.from, x.to) }
		part := cut(wide)
		narrow := make([]uint16, len(part))
		for i, v := range part {
			narrow[i] = dtype.BF16From(float32(v))
		}
		compare(x.name, tensor.New(device.Of(narrow), dtype.BF16, len(part)/int(p.D), int(p.D)), cut(want.dqkv), cut(emulated.dqkv))
	}
}

// distance is |got-want|/|want|, NaN where an element of got is no number. Where
// want is zero it is |got|.
func distance(got, want []float64) float64 {
	var d, w float64
	for i := range got {
		d += (got[i] - want[i]) * (got[i] - want[i])
		w += want[i] * want[i]
	}
	if w == 0 {
		w = 1
	}
	return math.Sqrt(d / w)
}

var headsProved = []struct{ H, K, D int }{{14, 2, 64}, {12, 2, 128}, {12, 12, 64}}

func TestAgainstTheReference(t *testing.T) {
	a, env, s := onGPU(t)
	for _, h := range headsProved {
		for _, T := range []int{2, 64, 77, 128, 513, 1000, 2048} {
			B := 3
			if T > 513 {
				B = 1
			}
			t.Run(fmt.Sprintf("H%d K%d D%d T%d", h.H, h.K, h.D, T), func(t *testing.T) {
				if err := a.Supported(B, T, h.H, h.K, h.D); err != nil {
					t.Fatal(err)
				}
				p := pose(t, s, whole(B, T, h.H, h.K, h.D), nil)
				p.check(t, p.run(t, a, env, s), T >= 64)
			})
		}
	}
}

// Inputs on which other implementations have given NaN: all scores far below zero,
// with lengths of 64 more than a multiple of 128; far above; and a softmax that is
// nearly one-hot.
func TestHazards(t *testing.T) {
	a, env, s := onGPU(t)
	const H, K, D = 14, 2, 64
	// shift adds c to queries and d to keys, so that scores lie around c·d·sqrt(D).
	shift := func(c, d float32) func(tensor.Tensor) {
		return func(qkv tensor.Tensor) {
			x := qkv.F32()
			for i := range x {
				switch head := i / D % (H + 2*K); {
				case head < H:
					x[i] += c
				case head < H+K:
					x[i] += d
				}
			}
		}
	}
	for _, c := range []struct {
		name   string
		change func(tensor.Tensor)
	}{
		{"scores near -200", shift(20, -1.25)}, // keys near zero: dq does not cancel
		{"scores near +200", shift(20, 1.25)},
		{"scores near -200, keys alike", shift(5, -5)},
		{"scores near -1800, keys alike", shift(15, -15)},
		{"one-hot", func(qkv tensor.Tensor) {
			for i := range qkv.F32() {
				qkv.F32()[i] *= 8
			}
		}},
		{"no queries and keys", func(qkv tensor.Tensor) {
			for i := range qkv.F32() {
				if i/D%(H+2*K) < H+K {
					qkv.F32()[i] = 0
				}
			}
		}},
	} {
		for _, T := range []int{64, 192, 576} {
			t.Run(fmt.Sprintf("%s, T%d", c.name, T), func(t *testing.T) {
				p := pose(t, s, whole(2, T, H, K, D), c.change)
				p.check(t, p.run(t, a, env, s), false)
			})
		}
	}
}

// Slices of sequences and of heads give the bits of the whole.
func TestSlicesHaveTheSameBits(t *testing.T) {
	a, env, s := onGPU(t)
	for _, sh := range []shape{whole(4, 1000, 14, 2, 64), whole(4, 513, 12, 12, 64), whole(2, 1024, 28, 4, 128)} {
		a.limit = 8 << 30
		p := pose(t, s, sh, nil)
		want := p.run(t, a, env, s)
		for part := sh; ; {
			limit := part.scratch() - 1 // one byte less than this slice needs: the next smaller one
			next, ok := sh.part(limit)
			if !ok {
				break
			}
			part = next
			a.limit = limit
			got := p.run(t, a, env, s)
			what := fmt.Sprintf("dqkv of %+v by slices of %d sequences and %d heads of keys", sh, part.B, part.K)
			kerntest.Equal(t, what, got[2], want[2])
			t.Logf("%s: %d bytes of scratch memory", what, part.scratch())
		}
	}
}

// A plan that was read from disk gives the bits of the one that was made.
func TestRestoredPlansHaveTheSameBits(t *testing.T) {
	folder := t.TempDir()
	var want []tensor.Tensor
	for i, from := range []string{"engine", "the cache"} {
		a, env, s := onGPU(t)
		a.cache.folder = folder
		p := pose(t, s, whole(2, 640, 14, 2, 64), nil)
		got := p.run(t, a, env, s)
		for key, plan := range a.lanes[s].plans {
			if len(plan.from) < len(from) || plan.from[:len(from)] != from {
				t.Errorf("pass %d: the plan of %+v comes from %s, not from %s", i, key, plan.from, from)
			}
		}
		if want == nil {
			want = got
			continue
		}
		for j, name := range []string{"o", "lse", "dqkv"} {
			kerntest.Equal(t, name, got[j], want[j])
		}
	}
}

// Two streams at once give what one gives.
func TestTwoStreams(t *testing.T) {
	a, env, one := onGPU(t)
	d, err := env.Device.NewStream("second")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	two := nv.Stream(d)
	sh := whole(2, 512, 14, 2, 64)
	p, q := pose(t, one, sh, nil), pose(t, two, sh, nil)
	want := p.run(t, a, env, one)
	gputest.Poison(t, one, p.o, p.lse, p.dqkv)
	for range 10 {
		a.Forward(one, p.o, p.lse, p.qkv)
		a.Forward(two, q.o, q.lse, q.qkv)
		a.Backward(one, p.dqkv, p.do, p.o, p.lse, p.qkv)
		a.Backward(two, q.dqkv, q.do, q.o, q.lse, q.qkv)
	}
	for i, x := range []struct{ a, b tensor.Tensor }{{p.o, q.o}, {p.lse, q.lse}, {p.dqkv, q.dqkv}} {
		kerntest.Equal(t, fmt.Sprintf("output %d, first stream", i), gputest.Download(t, one, x.a), want[i])
		kerntest.Equal(t, fmt.Sprintf("output %d, second stream", i), gputest.Download(t, two, x.b), want[i])
	}
}
