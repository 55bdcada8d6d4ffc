package cublaslt

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// noise is the random bf16 numbers in (-1, 1) that scratch memory is filled with,
// over and over. Its length is 16 times a prime, so that rows of a matrix differ.
var noise = sync.OnceValue(func() []byte {
	r := rand.New(rand.NewPCG(0x676f72756e, 1))
	b := make([]byte, 16*65521)
	for i := 0; i < len(b); i += 2 {
		binary.LittleEndian.PutUint16(b[i:], dtype.BF16From(r.Float32()*2-1))
	}
	return b
})

// value is the number of the given type that fill left at an address.
func (t *trial) value(addr uintptr, dt dtype.DType) float64 {
	b := noise()
	return number(b[int(addr-t.memory.Addr())%len(b):], dt)
}

func number(b []byte, dt dtype.DType) float64 {
	switch dt {
	case dtype.BF16:
		return float64(dtype.BF16To(binary.LittleEndian.Uint16(b)))
	case dtype.F16:
		return float64(dtype.F16To(binary.LittleEndian.Uint16(b)))
	default:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
}

// check runs an algorithm twice on fresh numbers and returns what is wrong with its
// results: bits that differ, or elements that are not the sum they should be. All of
// three rows is compared with each other, a sample with sums on the host. Libraries
// are known to drop the end of a sum that they split, for shapes of their own choice.
func (t *trial) check(algo *algorithm) (fault, err error) {
	w := t.p.product
	rows := slices.Compact([]int{0, w.m / 2, w.m - 1})
	var runs [2][]byte
	for i := range runs {
		t.fill()
		if err := t.launch(algo); err != nil {
			return err, nil
		}
		if runs[i], err = t.read(rows); err != nil {
			return nil, err
		}
	}
	size := w.d.dtype.Size()
	for at := range runs[0] {
		if runs[0][at] != runs[1][at] {
			e := at / size
			return fmt.Errorf("d[%d,%d] has other bits in a second run", rows[e/w.n], e%w.n), nil
		}
	}
	for i, row := range rows {
		for _, col := range sample(w.n) {
			got := number(runs[0][(i*w.n+col)*size:], w.d.dtype)
			want, tolerance := t.expect(row, col)
			if !(math.Abs(got-want) <= tolerance) {
				return fmt.Errorf("d[%d,%d] is %v, want %v within %.2g", row, col, got, want, tolerance), nil
			}
		}
	}
	return nil, nil
}

// sample is up to 18 columns of n.
func sample(n int) []int {
	r := rand.New(rand.NewPCG(uint64(n), 2))
	cols := []int{0, n - 1}
	for range 16 {
		cols = append(cols, r.IntN(n))
	}
	slices.Sort(cols)
	return slices.Compact(cols)
}

// read copies rows of d to the host.
func (t *trial) read(rows []int) ([]byte, error) {
	w := t.p.product
	size := w.d.dtype.Size()
	out := make([]byte, len(rows)*w.n*size)
	for i, row := range rows {
		line := out[i*w.n*size : (i+1)*w.n*size]
		t.s.Copy(device.Host(line), device.At(t.at.d+uintptr(row*w.d.stride*size), len(line)))
	}
	if err := t.s.Synchronize(t.ctx); err != nil {
		return nil, fmt.Errorf("checking an algorithm: %w", err)
	}
	return out, nil
}

// expect is an element of d in f64, and how far the GPU may be from it: by d's
// rounding, and by that of k additions in f32 of the size that they have.
func (t *trial) expect(row, col int) (want, tolerance float64) {
	w := t.p.product
	element := func(base uintptr, l layout, r, c int) float64 {
		if l.trans {
			r, c = c, r
		}
		return t.value(base+uintptr((r*l.stride+c)*l.dtype.Size()), l.dtype)
	}
	var squares float64
	add := func(v float64) {
		want += v
		squares += v * v
	}
	for k := range w.k {
		add(element(t.at.a, w.a, row, k) * element(t.at.b, w.b, k, col))
	}
	// Where D is of 16 bits, the library rounds to it before it adds a bias, and
	// again before it adds C (seen with cuBLASLt 13.1 on an H200).
	rounded := 0.0
	if w.bias {
		rounded += math.Abs(want)
		add(element(t.at.bias, layout{dtype: w.d.dtype}, 0, col))
	}
	if w.c.dtype != dtype.Invalid {
		rounded += math.Abs(want)
		add(element(t.at.c, w.c, row, col))
	}
	rounding := 1.0 / (1 << 16)
	switch w.d.dtype {
	case dtype.BF16:
		rounding = 1.0 / (1 << 8)
	case dtype.F16:
		rounding = 1.0 / (1 << 10)
	}
	return want, rounding*(math.Abs(want)+rounded) + (2e-4+3e-8*float64(w.k))*math.Sqrt(squares)
}
