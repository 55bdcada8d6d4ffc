package adamw

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Segments follow each other without gaps, and only well placed ones are aligned.
func TestSegmentsOfSlots(t *testing.T) {
	at := func(addr uintptr, dt dtype.DType, n int) tensor.Tensor {
		return tensor.New(device.At(addr, n*dt.Size()), dt, n)
	}
	f32, bf16 := dtype.F32, dtype.BF16
	var zero tensor.Tensor
	list, chunks := segments([]Slot{
		{W: at(8, bf16, 8193), Master: at(16, f32, 8193), M: at(32, f32, 8193), V: at(48, f32, 8193), G: at(24, bf16, 8193), Decay: true},
		{W: at(64, f32, 0), Master: zero, M: at(64, f32, 0), V: at(64, f32, 0), G: at(64, f32, 0)},
		{W: at(16, f32, 8192), Master: zero, M: at(32, f32, 8192), V: at(48, f32, 8192), G: at(64, f32, 8192)},
		{W: at(16, f32, 1), Master: zero, M: at(32, f32, 1), V: at(48, f32, 1), G: at(8, f32, 1)},
		{W: at(2, bf16, 1), Master: at(16, f32, 1), M: at(32, f32, 1), V: at(48, f32, 1), G: at(8, bf16, 1)},
	})
	want := []segment{
		{p: 16, w: 8, m: 32, v: 48, g: 24, n: 8193, first: 0, flags: decays | aligned},
		{p: 16, w: 0, m: 32, v: 48, g: 64, n: 8192, first: 2, flags: gradF32 | aligned},
		{p: 16, w: 0, m: 32, v: 48, g: 8, n: 1, first: 3, flags: gradF32},
		{p: 16, w: 2, m: 32, v: 48, g: 8, n: 1, first: 4, flags: 0},
	}
	if fmt.Sprint(list) != fmt.Sprint(want) || chunks != 5 {
		t.Errorf("%d chunks of\n%+v, want 5 of\n%+v", chunks, list, want)
	}
}

func newCUDA(t testing.TB) (CUDA, *cuda.Stream) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// kinds of slots: whether there is a master, the gradient's type, decay, an address that
// takes the slow path, and masters and moments in the host's memory.
type kind struct {
	master  bool
	grad    dtype.DType
	decay   bool
	shifted bool
	mapped  bool
}

var kinds = []kind{
	{master: true, grad: dtype.BF16, decay: true}, {master: true, grad: dtype.F32},
	{grad: dtype.F32, decay: true}, {grad: dtype.BF16},
	{master: true, grad: dtype.BF16, decay: true, shifted: true}, {grad: dtype.F32, shifted: true},
	{master: true, grad: dtype.F32, decay: true, mapped: true},
}

// newSlot is a slot on the device: normal weights, no moments, no gradient yet.
func newSlot(t testing.TB, s *cuda.Stream, k kind, w tensor.Tensor) Slot {
	zero := kerntest.New(w.Shape...)
	clear(zero.F32())
	up := func(x tensor.Tensor, dt dtype.DType) tensor.Tensor {
		y := gputest.Upload(t, s, x, dt)
		if k.shifted {
			y = gputest.Shifted(t, s, y)
		}
		return y
	}
	state := func(x tensor.Tensor) tensor.Tensor { return up(x, dtype.F32) }
	if k.mapped {
		state = func(x tensor.Tensor) tensor.Tensor { return mapped(t, s, up(x, dtype.F32)) }
	}
	slot := Slot{M: state(zero), V: state(zero), G: up(zero, k.grad), Decay: k.decay}
	if k.master {
		slot.Master, slot.W = state(w), up(w, dtype.BF16)
	} else {
		slot.W = up(w, dtype.F32)
	}
	return slot
}

// mapped is x in pinned memory of the host.
func mapped(t testing.TB, s *cuda.Stream, x tensor.Tensor) tensor.Tensor {
	d := s.Device().(*cuda.Device)
	b, err := d.Mapped().Alloc(x.Buf.Len())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Free(b); err != nil {
			t.Error(err)
		}
	})
	s.Copy(b, x.Buf)
	return tensor.New(b, x.DType, x.Shape...)
}

// Ten steps of a list of slots of every kind and size, in one launch each.
func TestCUDAAdamWAgainstNaive(t *testing.T) {
	c, s := newCUDA(t)
	r := kerntest.Rand(1)
	scale := gputest.Upload(t, s, kerntest.Scalar(0.25), dtype.F64)
	var slots []Slot
	var weights []tensor.Tensor
	var names []string
	for _, n := range []int{0, 1, 3, 4, 7, 1023, 1024, 8191, 8192, 8193, 20001} {
		for _, k := range kinds {
			w := kerntest.Normal(r, 1, n)
			weights = append(weights, w)
			slots = append(slots, newSlot(t, s, k, w))
			names = append(names, fmt.Sprintf("%d elements, %+v", n, k))
		}
	}
	const steps = 10
	grads := make([][]tensor.Tensor, steps) // as the device has them, and on the host
	for i := range grads {
		for _, slot := range slots {
			g := kerntest.Normal(r, math.Pow(10, float64(i%5-3)), slot.W.Shape...)
			if slot.G.DType == dtype.BF16 {
				gputest.BF16(g)
			}
			grads[i] = append(grads[i], g)
		}
	}
	var outs, before []tensor.Tensor
	for _, slot := range slots {
		for _, x := range []tensor.Tensor{slot.W, slot.M, slot.V, slot.Master} {
			if x.None() {
				x = slot.W
			}
			outs = append(outs, x)
			before = append(before, gputest.Download(t, s, x))
		}
	}
	got := gputest.Twice(t, s, func() {
		for i, x := range before {
			s.Copy(outs[i].Buf, x.Buf)
		}
		for i := range steps {
			for j, g := range grads[i] {
				s.Copy(slots[j].G.Buf, gputest.Upload(t, s, g, slots[j].G.DType).Buf)
			}
			h := hyper
			h.Step, h.Scale = i+1, scale
			c.AdamW(s, slots, h)
		}
	}, outs...)
	for j, slot := range slots {
		w, n := kerntest.F64(weights[j]), weights[j].Numel()
		m, v := make([]float64, n), make([]float64, n)
		for i := range steps {
			h := hyper
			h.Step = i + 1
			if !slot.Decay {
				h.WeightDecay = 0
			}
			naive(h, 0.25, w, m, v, kerntest.F64(grads[i][j]))
		}
		gotW, gotM, gotV, master := got[4*j], got[4*j+1], got[4*j+2], got[4*j+3]
		// As on the CPU: ten steps of f32 roundings. In m, gradients of both signs cancel.
		gputest.Near(t, names[j]+": w", master, w, 1e-6)
		gputest.Near(t, names[j]+": m", gotM, m, 5e-6)
		gputest.Near(t, names[j]+": v", gotV, v, 1e-6)
		if !slot.Master.None() {
			for i, x := range gputest.Floats(master) {
				if want := float64(dtype.BF16To(dtype.BF16From(float32(x)))); gputest.Floats(gotW)[i] != want {
					t.Fatalf("%s: w[%d] is not the rounded master %v", names[j], i, x)
				}
			}
		}
	}
}

// The list goes to the device once, and again when it changes; a list whose first
// slot stays takes the place of the old one.
func TestCUDAAdamWUploadsAListOnce(t *testing.T) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	w := kerntest.Normal(kerntest.Rand(1), 1, 100)
	a, b, other := newSlot(t, s, kinds[0], w), newSlot(t, s, kinds[0], w), newSlot(t, s, kinds[2], w)
	for _, slot := range []Slot{a, b, other} {
		ones := gputest.Upload(t, s, kerntest.Of(slices.Repeat([]float32{1}, 100), 100), slot.G.DType)
		s.Copy(slot.G.Buf, ones.Buf)
	}
	h := hyper
	h.Step = 1
	table := func(slots ...Slot) *table {
		c.AdamW(s, slots, h)
		list, _ := segments(slots)
		return c.tables.known[list[0].p]
	}
	first := table(a, b)
	if again := table(a, b); again != first {
		t.Error("the same list was uploaded again")
	}
	held := env.Device.Held()
	second := table(a, other)
	if second == first || len(c.tables.known) != 1 || env.Device.Held() != held {
		t.Errorf("a changed list: %d tables, %d bytes, were %d", len(c.tables.known), env.Device.Held(), held)
	}
	table(other)
	if table(a, other) != second || len(c.tables.known) != 2 {
		t.Errorf("two lists in turn: %d tables", len(c.tables.known))
	}
	c.AdamW(s, nil, h)
	kerntest.Wait(t, s)
	for _, x := range []struct {
		slot  Slot
		steps float64
	}{{a, 4}, {b, 2}, {other, 3}} {
		want := 1 - math.Pow(h.Beta1, x.steps)
		if m := gputest.Floats(gputest.Download(t, s, x.slot.M)); !(math.Abs(m[99]-want) < 1e-6) {
			t.Errorf("the first moment is %v, want %v after %v steps", m[99], want, x.steps)
		}
	}
}

// The scale is read when the work runs, and one that is not finite changes nothing.
func TestCUDAAdamWSkipsStepsThatAreNotFinite(t *testing.T) {
	c, s := newCUDA(t)
	w := kerntest.Normal(kerntest.Rand(1), 1, 1000)
	for _, k := range kinds {
		slot := newSlot(t, s, k, w)
		s.Copy(slot.G.Buf, gputest.Upload(t, s, gputest.BF16(kerntest.Clone(w)), k.grad).Buf)
		scale, h := gputest.New(t, s, dtype.F64, 1), hyper
		h.Step, h.Scale = 1, scale
		all := []tensor.Tensor{slot.W, slot.M, slot.V}
		if k.master {
			all = append(all, slot.Master)
		}
		read := func() (out []tensor.Tensor) {
			for _, x := range all {
				out = append(out, gputest.Download(t, s, x))
			}
			return out
		}
		before := read()
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			s.Copy(scale.Buf, gputest.Upload(t, s, kerntest.Scalar(bad), dtype.F64).Buf)
			c.AdamW(s, []Slot{slot}, h)
			for i, x := range read() {
				kerntest.Equal(t, fmt.Sprintf("%+v: tensor %d after a step of scale %v", k, i, bad), before[i], x)
			}
		}
		s.Copy(scale.Buf, gputest.Upload(t, s, kerntest.Scalar(1), dtype.F64).Buf)
		c.AdamW(s, []Slot{slot}, h)
		if string(read()[1].Buf.Bytes()) == string(before[1].Buf.Bytes()) {
			t.Errorf("%+v: a step of scale 1 changed nothing", k)
		}
	}
}

func TestCUDAClip(t *testing.T) {
	c, s := newCUDA(t)
	nan, inf := math.NaN(), math.Inf(1)
	up := func(v float64) tensor.Tensor { return gputest.Upload(t, s, kerntest.Scalar(v), dtype.F64) }
	for _, norm2 := range []float64{0, 1e-30, 0.25, 1, 100, 1e300, nan, inf} {
		for _, loss := range []float64{-3, 0, 2.5, nan, inf, -inf} {
			for _, limit := range []float64{0, 0.5, 1, 1e9} {
				coef, n, l := gputest.New(t, s, dtype.F64, 1), up(norm2), up(loss)
				got := gputest.Twice(t, s, func() { c.Clip(s, coef, n, l, limit) }, coef)[0].F64()[0]
				want := Coefficient(norm2, loss, limit)
				if !(math.Abs(got-want) <= 1e-15*want) && !(math.IsNaN(got) && math.IsNaN(want)) {
					t.Errorf("norm2 %v, loss %v, limit %v: %v, want %v", norm2, loss, limit, got, want)
				}
			}
		}
	}
}

func TestCUDAAdamWRefuses(t *testing.T) {
	c, s := newCUDA(t)
	f := func(n int) tensor.Tensor { return gputest.New(t, s, dtype.F32, n) }
	b := gputest.New(t, s, dtype.BF16, 3)
	h := hyper
	h.Step = 1
	kerntest.Panics(t, func() { c.AdamW(s, []Slot{{W: b, M: f(3), V: f(3), G: b}}, h) }, "adamw", "w is bf16[3]", "f32[3]")
	kerntest.Panics(t, func() { c.AdamW(s, []Slot{{W: f(3), M: f(3), V: f(3), G: f(4)}}, h) }, "g is f32[4]")
	h.Step = 0
	kerntest.Panics(t, func() { c.AdamW(s, nil, h) }, "step 0")
}

// BenchmarkCUDAAdamW is a step of Qwen2.5-0.5B: 494 million parameters in 290
// tensors, 121 of them smaller than 1200 elements.
func BenchmarkCUDAAdamW(b *testing.B) {
	const layers, hidden, inner, kv = 24, 896, 4864, 128
	sizes := []int{151936 * hidden, hidden}
	for range layers {
		sizes = append(sizes, hidden*hidden, hidden, hidden*kv, kv, hidden*kv, kv, hidden*hidden,
			hidden*inner, hidden*inner, inner*hidden, hidden, hidden)
	}
	total := 0
	for _, n := range sizes {
		total += n
	}
	for _, grad := range []dtype.DType{dtype.BF16, dtype.F32} {
		b.Run("gradients-"+grad.String(), func(b *testing.B) {
			c, s := newCUDA(b)
			noise := func(dt dtype.DType) tensor.Tensor { return gputest.Noise(b, s, 1e-2, dt, total) }
			w, master, m, g, v := noise(dtype.BF16), noise(dtype.F32), noise(dtype.F32), noise(grad), noise(dtype.F32)
			s.Clear(v.Buf)
			var slots []Slot
			at := 0
			for _, n := range sizes {
				part := func(x tensor.Tensor) tensor.Tensor { return x.Rows(at, at+n) }
				slots = append(slots, Slot{W: part(w), Master: part(master), M: part(m), V: part(v), G: part(g), Decay: n > hidden})
				at += n
			}
			h := hyper
			h.Scale = gputest.Upload(b, s, kerntest.Scalar(0.5), dtype.F64)
			gputest.Bandwidth(b, s, total*(26+grad.Size()), func(i int) {
				h.Step = i + 1
				c.AdamW(s, slots, h)
			})
			b.ReportMetric(float64(total), "parameters")
		})
	}
}
