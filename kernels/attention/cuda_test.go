package attention

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// implementation is attention by the kernels of one path.
type implementation struct {
	name string
	CUDA
	*cuda.Stream
}

// implementations are the native kernels that the card gets, and where it is a
// Hopper those that other cards get.
func implementations(t testing.TB) (all []implementation) {
	env, s := gputest.Env(t)
	for _, hopper := range []bool{true, false} {
		n, err := newNative(env, hopper)
		if err != nil {
			t.Fatal(err)
		}
		if hopper && !n.hopper {
			continue // the card is none
		}
		name := "mma"
		if hopper {
			name = "wgmma"
		}
		all = append(all, implementation{name, CUDA{native: n, choice: newChoice("native", n)}, s})
	}
	return all
}

// onGPU makes both passes of p, twice, and returns host copies of o, lse and dqkv.
func (p problem) onGPU(t *testing.T, a implementation) []tensor.Tensor {
	s := a.Stream
	qkv, do := gputest.Upload(t, s, p.qkv, dtype.BF16), gputest.Upload(t, s, p.do, dtype.BF16)
	o, dqkv := gputest.New(t, s, dtype.BF16, p.do.Shape...), gputest.New(t, s, dtype.BF16, p.qkv.Shape...)
	lse := gputest.New(t, s, dtype.F32, p.B, p.H, p.T)
	var docs tensor.Tensor
	if p.docs != nil {
		docs = gputest.Upload(t, s, p.docsTensor(), dtype.I32)
	}
	return gputest.Twice(t, s, func() {
		a.Attention(s, o, lse, qkv, docs)
		a.AttentionBackward(s, dqkv, do, o, lse, qkv, docs)
	}, o, lse, dqkv)
}

// judge compares what onGPU returned with the reference. Where all scores are nearly
// the same, dq and dk are small differences of large numbers: an error there varies
// several times with the draw, and may be slack times that of the emulated run.
func (p problem) judge(t *testing.T, got []tensor.Tensor, slack float64) {
	t.Helper()
	exact, emulated := p.reference(false), p.reference(true)
	g, w, e := p.split(gputest.Floats(got[2])), p.split(exact.dqkv), p.split(emulated.dqkv)
	t.Logf("errors, got/emulated: %s %s %s %s", accuracy("o", gputest.Floats(got[0]), exact.o, emulated.o),
		accuracy("dq", g[0], w[0], e[0]), accuracy("dk", g[1], w[1], e[1]), accuracy("dv", g[2], w[2], e[2]))
	gputest.Compare(t, "o", got[0], exact.o, emulated.o)
	gputest.Near(t, "lse", got[1], exact.lse, 3e-6)
	for i, name := range []string{"dq", "dk", "dv"} {
		switch {
		case i < 2 && p.T == 1:
			// One key has all the probability: the gradients are 0 but for rounding.
			for at, x := range g[i] {
				if !(math.Abs(x) < 1e-5) {
					t.Errorf("%s[%d] of one position: %v, want 0", name, at, x)
					break
				}
			}
		case i < 2 && slack > 1:
			if r := relative(g[i], w[i]); !(r <= slack*relative(e[i], w[i])) {
				t.Errorf("%s: relative error %.3g, emulated %.3g", name, r, relative(e[i], w[i]))
			}
		default:
			gputest.Compare(t, name, tensor.New(device.Of(bf16Of(g[i])), dtype.BF16, len(g[i])), w[i], e[i])
		}
	}
}

func bf16Of(x []float64) []uint16 {
	out := make([]uint16, len(x))
	for i, v := range x {
		out[i] = dtype.BF16From(float32(v))
	}
	return out
}

func TestCUDAAttention(t *testing.T) {
	all := implementations(t)
	for _, headDim := range []int{8, 32, 64, 80, 128} {
		for _, x := range []struct{ B, T, H, K int }{
			{2, 1, 1, 1}, {2, 63, 4, 2}, {2, 64, 14, 2}, {2, 65, 12, 2}, {1, 127, 3, 3}, {2, 128, 14, 2}, {3, 129, 4, 2},
			{1, 255, 7, 1}, {2, 257, 4, 2}, {1, 1000, 28, 4}, {1, 1000, 12, 2}, {100, 66, 1, 1},
		} {
			p := newProblem(shape{B: x.B, T: x.T, H: x.H, K: x.K, D: headDim}, false, 0)
			for _, a := range all {
				t.Run(fmt.Sprintf("%s/D=%d,B=%d,T=%d,%d:%d", a.name, headDim, x.B, x.T, x.H, x.K), func(t *testing.T) {
					p.judge(t, p.onGPU(t, a), 1)
				})
			}
		}
	}
}

func TestCUDAAttentionWithDocuments(t *testing.T) {
	all := implementations(t)
	for _, headDim := range []int{24, 64, 80, 128} {
		for _, x := range []struct{ B, T, H, K int }{{2, 65, 2, 1}, {3, 300, 4, 2}, {2, 1000, 6, 1}, {1, 1600, 2, 2}} {
			p := newProblem(shape{B: x.B, T: x.T, H: x.H, K: x.K, D: headDim}, true, 0)
			for _, a := range all {
				t.Run(fmt.Sprintf("%s/D=%d,B=%d,T=%d,%d:%d", a.name, headDim, x.B, x.T, x.H, x.K), func(t *testing.T) {
					p.judge(t, p.onGPU(t, a), 1)
				})
			}
		}
	}
}

// Scores near -200 leave exp(lse) at 0, where an attention that forms it gives NaN;
// seen elsewhere with a number of keys that is 64 more than a multiple of 128.
func TestCUDAAttentionFarOut(t *testing.T) {
	all := implementations(t)
	for _, headDim := range []int{64, 80, 128} {
		for _, logits := range []float64{-200, 200} {
			for _, length := range []int{192, 704, 700} {
				p := newProblem(shape{B: 1, T: length, H: 4, K: 2, D: headDim}, false, logits)
				for _, a := range all {
					t.Run(fmt.Sprintf("%s/D=%d,T=%d,%v", a.name, headDim, length, logits), func(t *testing.T) {
						got := p.onGPU(t, a)
						if m := got[1].F32()[5]; logits < 0 != (m < -88.7) {
							t.Fatalf("lse %v: the test's inputs do not reach", m)
						}
						p.judge(t, got, 4)
					})
				}
			}
		}
	}
}

// One token again and again: all keys weigh the same, so o is v itself, and the lse
// of row t is the score plus ln(t+1).
func TestCUDAAttentionOfOneToken(t *testing.T) {
	for _, a := range implementations(t) {
		for _, headDim := range []int{64, 128} {
			s := shape{B: 1, T: 333, H: 4, K: 2, D: headDim}
			p := newProblem(s, false, 0)
			row := s.heads() * s.D
			for at := row; at < p.qkv.Numel(); at += row {
				copy(p.qkv.F32()[at:at+row], p.qkv.F32()[:row])
			}
			p.judgeOneToken(t, a.name, p.onGPU(t, a))
		}
	}
}

func (p problem) judgeOneToken(t *testing.T, name string, got []tensor.Tensor) {
	for at, x := range gputest.Floats(got[0]) {
		h, i := at/p.D%p.H, at%p.D
		v := float64(p.qkv.F32()[(p.H+p.K+h/(p.H/p.K))*p.D+i])
		if !(math.Abs(x-v) <= math.Abs(v)/128) {
			t.Errorf("%s: o[%d] of %d equal tokens is %v, want v, which is %v", name, at, p.T, x, v)
			break
		}
	}
	exact := p.reference(false)
	gputest.Near(t, name+": lse", got[1], exact.lse, 3e-6)
	g, w := p.split(gputest.Floats(got[2])), p.split(exact.dqkv)
	for i, part := range []string{"dq", "dk", "dv"} {
		allowed := []float64{1e-3, 1e-3, 0.03}[i] // dq and dk are 0 but for rounding
		for at, x := range g[i] {
			if !(math.Abs(x-w[i][at]) <= allowed+math.Abs(w[i][at])/64) {
				t.Errorf("%s: %s[%d] of %d equal tokens is %v, want %v", name, part, at, p.T, x, w[i][at])
				break
			}
		}
	}
}

// Copies of one sequence, as many as take the last offset beyond 2^31 elements, come
// out as the sequence alone does, to the bit.
func TestCUDAAttentionPast2To31(t *testing.T) {
	one := shape{B: 1, T: 1000, H: 28, K: 4, D: 128}
	const copies = 470
	elements := copies * one.T * one.heads() * one.D
	if elements <= 1<<31 {
		t.Fatalf("%d elements do not reach", elements)
	}
	free, _, err := gputest.Device(t).Memory()
	if err != nil {
		t.Fatal(err)
	}
	if need := int64(elements) * 2 * 4; free < need {
		testenv.Skip(t, "gpu-memory", fmt.Sprintf("%d bytes are free, the test takes %d", free, need))
	}
	for _, docs := range []bool{false, true} {
		p := newProblem(one, docs, 0)
		for _, a := range implementations(t) {
			t.Run(fmt.Sprintf("%s,docs=%v", a.name, docs), func(t *testing.T) {
				s, want := a.Stream, p.onGPU(t, a)
				many := func(x tensor.Tensor, dt dtype.DType) tensor.Tensor {
					from := gputest.Upload(t, s, x, dt)
					to, err := tensor.Alloc(s.Device(), dt, append([]int{copies}, x.Shape[1:]...)...)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() {
						if err := s.Device().Free(to.Buf); err != nil {
							t.Error(err)
						}
					})
					for i := range copies {
						s.Copy(to.Rows(i, i+1).Buf, from.Buf)
					}
					return to
				}
				qkv, do := many(p.qkv, dtype.BF16), many(p.do, dtype.BF16)
				outs := []tensor.Tensor{many(p.do, dtype.BF16), many(want[1], dtype.F32), many(p.qkv, dtype.BF16)}
				var bounds tensor.Tensor
				if docs {
					bounds = many(p.docsTensor(), dtype.I32)
				}
				for _, x := range outs {
					s.Fill32(x.Buf, 0xffffffff)
				}
				a.Attention(s, outs[0], outs[1], qkv, bounds)
				a.AttentionBackward(s, outs[2], do, outs[0], outs[1], qkv, bounds)
				kerntest.Wait(t, s)
				for i, x := range outs {
					for _, at := range []int{0, 1, copies / 2, copies - 2, copies - 1} {
						kerntest.Equal(t, fmt.Sprintf("output %d, copy %d", i, at), want[i], gputest.Download(t, s, x.Rows(at, at+1)))
					}
				}
			})
		}
	}
}

// A text read in pieces comes out as attention over the whole.
func TestCUDAAttentionNext(t *testing.T) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env, "native")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ H, K, D int }{{1, 1, 8}, {4, 2, 64}, {14, 2, 64}, {3, 3, 20}, {12, 2, 128}, {5, 1, 127}} {
		const length, room = 150, 153
		p := newProblem(shape{B: 1, T: length, H: x.H, K: x.K, D: x.D}, false, 0)
		exact := p.reference(false)
		qkv := gputest.Upload(t, s, p.qkv, dtype.BF16)
		o := gputest.New(t, s, dtype.BF16, p.do.Shape...)
		keys, values := gputest.New(t, s, dtype.BF16, room, x.K, x.D), gputest.New(t, s, dtype.BF16, room, x.K, x.D)
		got := gputest.Twice(t, s, func() {
			pos := 0
			for _, n := range []int{37, 1, 1, 64, 1, 46} {
				part := func(y tensor.Tensor) tensor.Tensor {
					return y.Reshape(y.Shape[1:]...).Rows(pos, pos+n).Reshape(1, n, y.Shape[2], y.Shape[3])
				}
				c.AttentionNext(s, part(o), keys, values, part(qkv), pos)
				pos += n
			}
		}, o, keys, values)
		what := fmt.Sprintf("%d:%d heads of %d: ", x.H, x.K, x.D)
		rounded := make([]float64, len(exact.o))
		for i, v := range exact.o {
			rounded[i] = float64(dtype.BF16To(dtype.BF16From(float32(v))))
		}
		gputest.Compare(t, what+"o", got[0], exact.o, rounded)
		_, wantKeys, wantValues := unpack(p.qkv, x.H)
		for i, want := range []tensor.Tensor{wantKeys, wantValues} {
			cache := gputest.Floats(got[1+i])
			for at, w := range kerntest.F64(want) {
				if cache[at] != w {
					t.Errorf("%scache %d[%d] is %v, want %v", what, i, at, cache[at], w)
					break
				}
			}
			for at := length * x.K * x.D; at < len(cache); at++ {
				if cache[at] == cache[at] {
					t.Errorf("%scache %d[%d], behind the text, was written: %v", what, i, at, cache[at])
					break
				}
			}
		}
	}
}

// Empty batches, arguments that do not fit, and heads that no kernel takes.
func TestCUDAAttentionRefuses(t *testing.T) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env, "native")
	if err != nil {
		t.Fatal(err)
	}
	n := func(dt dtype.DType, shape ...int) tensor.Tensor { return gputest.New(t, s, dt, shape...) }
	bf16 := dtype.BF16
	c.Attention(s, n(bf16, 0, 5, 2, 64), n(dtype.F32, 0, 2, 5), n(bf16, 0, 5, 4, 64), tensor.Tensor{})
	kerntest.Wait(t, s)
	kerntest.Panics(t, func() {
		c.Attention(s, n(dtype.F32, 1, 2, 2, 64), n(dtype.F32, 1, 2, 2), n(dtype.F32, 1, 2, 4, 64), tensor.Tensor{})
	}, "attention", "want bf16")
	kerntest.Panics(t, func() {
		qkv := gputest.Shifted(t, s, n(bf16, 1, 2, 4, 64))
		c.Attention(s, n(bf16, 1, 2, 2, 64), n(dtype.F32, 1, 2, 2), qkv, tensor.Tensor{})
	}, "attention", "multiple of 16")
	kerntest.Panics(t, func() {
		c.AttentionNext(s, n(bf16, 1, 1, 1, 136), n(bf16, 4, 1, 136), n(bf16, 4, 1, 136), n(bf16, 1, 1, 3, 136), 0)
	}, "attention next", "at most 128")
	if err := c.Prepare(1, 2, 2, 1, 12, false, true); err == nil {
		t.Error("heads of 12 are prepared")
	}
	c.Attention(s, n(bf16, 1, 2, 2, 12), n(dtype.F32, 1, 2, 2), n(bf16, 1, 2, 4, 12), tensor.Tensor{})
	if s.Err() == nil {
		t.Error("heads of 12 are computed")
	}
	if _, err := NewCUDA(env, "fast"); err == nil {
		t.Error("there is an implementation named fast")
	}
}

// cuDNN, where it is installed, agrees with the native kernels, and is what
// "cudnn" and, for long sequences of heads of 128, "auto" compute with.
func TestCUDNN(t *testing.T) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env, "cudnn")
	if err != nil {
		testenv.Skip(t, "cudnn", err.Error())
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, headDim := range []int{64, 128} {
		if err := selfTest(c.native, c.choice.cudnn, headDim); err != nil {
			t.Errorf("heads of %d: %v", headDim, err)
		}
		p := newProblem(shape{B: 2, T: 260, H: 4, K: 2, D: headDim}, false, 0)
		t.Log(c.Explain(p.B, p.T, p.H, p.K, p.D))
		p.judge(t, p.onGPU(t, implementation{"cudnn", c, s}), 1)
	}
	auto, err := NewCUDA(env, "auto")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(auto.Explain(1, 4096, 12, 2, 128))
	if p, err := auto.choice.plan(shape{B: 1, T: 4096, H: 12, K: 2, D: 128}, false); err != nil || p.backward == nil {
		t.Errorf("auto computes long sequences with %+v: %v", p, err)
	}
	if err := auto.Close(); err != nil {
		t.Error(err)
	}
}

// What Prepare compiles is what the calls take, within the card's limits.
func TestCUDAKernelsLoad(t *testing.T) {
	for _, a := range implementations(t) {
		for _, headDim := range []int{64, 80, 128} {
			for _, docs := range []bool{false, true} {
				if err := a.Prepare(1, 128, 2, 1, headDim, docs, true); err != nil {
					t.Errorf("%s: heads of %d: %v", a.name, headDim, err)
				}
			}
		}
		for id, k := range a.native.kernels {
			blocks, err := k.f.Occupancy(k.threads, k.shared)
			if err != nil || blocks < 1 {
				t.Errorf("%s: %d blocks of %s for heads of %d fit a multiprocessor: %v", a.name, blocks, k.entry, id.headDim, err)
			}
			t.Logf("%s, heads of %d, docs %v: %d blocks a multiprocessor", k.entry, id.headDim, id.docs, blocks)
		}
	}
}
