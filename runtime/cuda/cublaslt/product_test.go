package cublaslt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt/fakelt"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// bed is where products are tested: a fake or a real GPU.
type bed struct {
	dev    *cuda.Device
	stream *cuda.Stream
	h      *Handle
	rand   *rand.Rand
}

func newBed(dev *cuda.Device, s *cuda.Stream, h *Handle) *bed {
	return &bed{dev, s, h, rand.New(rand.NewPCG(7, 7))}
}

// operand is a matrix on the device and what it was made of on the host.
type operand struct {
	Matrix
	buf    device.Buffer
	before []byte
	skip   int // bytes before the first element
}

// operand makes a matrix of random numbers, with 0xff (NaN) around it and between
// its rows, skip bytes behind a multiple of 256.
func (b *bed) operand(t testing.TB, dt dtype.DType, rows, cols, stride, skip int, trans bool) operand {
	t.Helper()
	if trans {
		rows, cols = cols, rows
	}
	stride += cols // what is given is the padding
	size := dt.Size()
	data := make([]byte, skip+(rows*stride+8)*size)
	for i := range data {
		data[i] = 0xff
	}
	for r := range rows {
		for c := range cols {
			b.put(data[skip+(r*stride+c)*size:], dt)
		}
	}
	buf, err := b.dev.Alloc(len(data))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.dev.Free(buf); err != nil {
			t.Error(err)
		}
	})
	b.stream.Copy(buf, device.Host(data))
	wait(t, b.stream)
	return operand{Matrix{buf.Addr() + uintptr(skip), dt, rows, cols, stride, trans}, buf, data, skip}
}

func (b *bed) put(to []byte, dt dtype.DType) {
	v := float32(b.rand.NormFloat64())
	switch dt {
	case dtype.F32:
		binary.LittleEndian.PutUint32(to, math.Float32bits(v))
	case dtype.F16:
		binary.LittleEndian.PutUint16(to, dtype.F16From(v))
	default:
		binary.LittleEndian.PutUint16(to, dtype.BF16From(v))
	}
}

// at is element (r, c) of op(o) in data.
func (o operand) at(data []byte, r, c int) float64 {
	if o.Trans {
		r, c = c, r
	}
	return number(data[o.skip+(r*o.Stride+c)*o.DType.Size():], o.DType)
}

// trialCase is a product.
type trialCase struct {
	m, n, k int
	in, out dtype.DType
	ta, tb  bool
	bias    bool
	add     string // "", "in place", "apart"
	pad     int    // elements between rows
	skip    int    // bytes before the matrices
}

func (c trialCase) String() string {
	return fmt.Sprintf("%dx%dx%d %s-%s ta=%t tb=%t bias=%t add=%s pad=%d skip=%d", c.m, c.n, c.k, c.in, c.out, c.ta, c.tb, c.bias, c.add, c.pad, c.skip)
}

// cases have all that MatMul can do: sizes that fit no tile, strides and addresses
// that fit no vector, both outputs, sums in place and apart.
func cases() []trialCase {
	const h, f = dtype.BF16, dtype.F32
	var list []trialCase
	for _, trans := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
		for _, out := range []dtype.DType{h, f} {
			list = append(list,
				trialCase{m: 3, n: 5, k: 7, in: h, out: out, ta: trans[0], tb: trans[1]},
				trialCase{m: 16, n: 24, k: 32, in: h, out: out, ta: trans[0], tb: trans[1], add: "in place"},
				trialCase{m: 9, n: 4, k: 6, in: h, out: out, ta: trans[0], tb: trans[1], add: "apart", bias: true, pad: 3, skip: 4})
		}
	}
	return append(list,
		trialCase{m: 1, n: 1, k: 1, in: h, out: h},
		trialCase{m: 1, n: 33, k: 64, in: h, out: h, tb: true, bias: true},
		trialCase{m: 33, n: 1, k: 64, in: h, out: h, tb: true, bias: true, add: "in place"},
		trialCase{m: 65, n: 63, k: 1, in: h, out: f, ta: true, add: "in place"},
		trialCase{m: 64, n: 64, k: 64, in: h, out: h, tb: true, bias: true, add: "apart"},
		trialCase{m: 8, n: 8, k: 8, in: h, out: h, skip: 2, pad: 1},
		trialCase{m: 8, n: 16, k: 8, in: h, out: h, skip: 16, pad: 8, add: "in place", bias: true},
	)
}

// run multiplies and compares every element with sums in f64, and everything around
// them with what was there before. It returns d's memory.
func (b *bed) run(t *testing.T, c trialCase) []byte {
	t.Helper()
	x := b.operand(t, c.in, c.m, c.k, c.pad, c.skip, c.ta)
	y := b.operand(t, c.in, c.k, c.n, c.pad, c.skip, c.tb)
	d := b.operand(t, c.out, c.m, c.n, c.pad, c.skip, false)
	if c.add != "in place" { // what d held must not matter, not even times zero
		b.stream.Copy(d.buf, device.Host(bytes.Repeat([]byte{0xff}, d.buf.Len())))
	}
	var bias, z operand
	if c.bias {
		bias = b.operand(t, c.out, 1, c.n, 0, 0, false)
	}
	switch c.add {
	case "in place":
		z = d
	case "apart":
		z = b.operand(t, c.out, c.m, c.n, c.pad+1, c.skip, false)
	}
	b.h.MatMul(b.stream, d.Matrix, x.Matrix, y.Matrix, bias.Addr, z.Matrix)
	got := download(t, b.stream, d.buf)

	rounding := map[dtype.DType]float64{dtype.F32: 1. / (1 << 20), dtype.BF16: 1.1 / (1 << 8), dtype.F16: 1. / (1 << 11)}[c.out]
	worst, where := 0.0, ""
	for i := range c.m {
		for j := range c.n {
			want, squares, rounded := 0.0, 1e-12, 0.0
			for k := range c.k {
				v := x.at(x.before, i, k) * y.at(y.before, k, j)
				want += v
				squares += v * v
			}
			if c.bias {
				rounded += math.Abs(want) // the library rounds before it adds
				want += bias.at(bias.before, 0, j)
			}
			if c.add != "" {
				rounded += math.Abs(want)
				want += z.at(z.before, i, j)
			}
			off := math.Abs(d.at(got, i, j)-want) / (rounding*(math.Abs(want)+rounded) + 3e-5*math.Sqrt(squares))
			if !(off <= worst) {
				worst, where = off, fmt.Sprintf("d[%d,%d] is %v, want %v", i, j, d.at(got, i, j), want)
			}
		}
	}
	if !(worst <= 1) {
		t.Errorf("%v: %s, %.3g times the tolerance", c, where, worst)
	}
	inside := func(at int) bool {
		e := (at - d.skip) / c.out.Size()
		return at >= d.skip && e/d.Stride < c.m && e%d.Stride < c.n
	}
	for at := range got {
		if !inside(at) && got[at] != 0xff {
			t.Fatalf("%v: byte %d, which lies outside of d, was written", c, at)
		}
	}
	return got
}

func TestProductsOnTheHost(t *testing.T) {
	f := newFake(t)
	f.lt.Offer(fakelt.Good)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	for _, c := range cases() {
		b.run(t, c)
	}
}

// gpu is the first GPU, with an empty cache of choices. The test is skipped without
// one, or without a cuBLASLt.
func gpu(t *testing.T) *cuda.Device {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	d, err := cuda.Open(0)
	if err != nil {
		testenv.Skip(t, "gpu", err.Error())
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Every case on a GPU, and once more by a handle that finds the choices on disk: it
// takes the same algorithms and gives the same bits.
func TestProductsOnTheGPU(t *testing.T) {
	dev := gpu(t)
	list := append(cases(),
		trialCase{m: 128, n: 256, k: 512, in: dtype.F16, out: dtype.F16, tb: true},
		trialCase{m: 20, n: 50257, k: 64, in: dtype.BF16, out: dtype.BF16, tb: true},
		trialCase{m: 8, n: 16, k: 50257, in: dtype.BF16, out: dtype.BF16},
		trialCase{m: 16, n: 1003, k: 24, in: dtype.BF16, out: dtype.F32, ta: true, add: "in place", pad: 1},
		trialCase{m: 130, n: 129, k: 1025, in: dtype.BF16, out: dtype.F32, ta: true, add: "in place"},
		trialCase{m: 128, n: 64, k: 2048, in: dtype.BF16, out: dtype.BF16, tb: true, bias: true, add: "apart"},
	)
	first := make([][]byte, len(list))
	var chosen []Choice
	for pass := range 2 {
		h, err := New(dev, 0)
		if err != nil {
			testenv.Skip(t, "gpu", err.Error())
		}
		b := newBed(dev, nil, h) // of the same random numbers
		for i, c := range list {
			t.Run(fmt.Sprintf("pass %d/%v", pass, c), func(t *testing.T) {
				// A stream of its own: a case that fails must not hide the others.
				s, err := dev.NewStream(c.String())
				if err != nil {
					t.Fatal(err)
				}
				b.stream = s.(*cuda.Stream)
				defer s.Close()
				got := b.run(t, c)
				if pass == 0 {
					first[i] = got
				} else if !bytes.Equal(got, first[i]) {
					t.Error("other bits than in the first pass")
				}
			})
		}
		for i, c := range h.Choices() {
			t.Logf("%s: %s, %v, %s", c.Product, c.Algorithm, c.Time, c.From)
			if pass == 0 {
				chosen = append(chosen, c)
			} else if c.Config != chosen[i].Config || c.From != "disk" {
				t.Errorf("%s: first %s, then %s from %s", c.Product, chosen[i].Algorithm, c.Algorithm, c.From)
			}
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
