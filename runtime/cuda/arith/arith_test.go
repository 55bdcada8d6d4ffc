package arith

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// sizes are around the chunks of all types.
var sizes = []int{0, 1, 2, 3, 7, 8, 9, 255, 2047, 1<<16 + 5}

// large is more elements, of any type, than a card's threads take at once.
const large = 3<<20 + 11

// card is a device with the kernels.
type card struct {
	*Arith
	t *testing.T
	s *cuda.Stream
}

// onGPU skips t where there is none.
func onGPU(t *testing.T) card {
	if _, err := cuda.Count(); err != nil {
		testenv.Skip(t, "gpu", err.Error())
	}
	return open(t)
}

func open(t *testing.T) card {
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(dev)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream("arith")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return card{a, t, s.(*cuda.Stream)}
}

// guard is written behind every array, and must still be there at the end.
const guard = 0xa5

// up puts elements at an address that is off elements from an aligned one.
func (b card) up(dt dtype.DType, off int, data []byte) tensor.Tensor {
	at := off * dt.Size()
	all := make([]byte, at+len(data)+64)
	for i := range all {
		all[i] = guard
	}
	copy(all[at:], data)
	buf := b.alloc(len(all))
	b.s.Copy(buf, device.Host(all))
	b.sync()
	return tensor.New(buf.Slice(at, at+len(data)), dt, len(data)/dt.Size())
}

func (b card) alloc(n int) device.Buffer {
	buf, err := b.dev.Alloc(n)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := b.dev.Free(buf); err != nil {
			b.t.Error(err)
		}
	})
	return buf
}

// down brings what up has put back, and looks at the guard behind it.
func (b card) down(x tensor.Tensor) []byte {
	all := make([]byte, x.Buf.Len()+64)
	b.s.Copy(device.Host(all), device.At(x.Buf.Addr(), len(all)))
	b.sync()
	for i, g := range all[x.Buf.Len():] {
		if g != guard {
			b.t.Fatalf("%s: byte %d behind the end is %#x", x, i, g)
		}
	}
	return all[:x.Buf.Len()]
}

func (b card) sync() {
	b.t.Helper()
	if err := b.s.Synchronize(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// values are n elements of dt: all bit patterns of a 16-bit type, and otherwise
// numbers around those where other types round, overflow and lose their last bits.
func values(dt dtype.DType, n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 7))
	special := []float64{0, math.Copysign(0, -1), 1, math.Inf(1), math.Inf(-1), math.NaN(), 65504, 65519.999, 65520, 65536, 3.4e38, -3.4028236e38,
		5.96e-8, 2.98e-8, 2.99e-8, 6.1e-5, 1.4e-45, 1e-300, 1e300, 1 + 1.0/512, 1 + 3.0/512, 1 + 1.0/256, 1 + 1.0/2048, 1 + 3.0/2048}
	out := make([]byte, n*dt.Size())
	for i := range n {
		switch {
		case dt.Size() == 2:
			binary.LittleEndian.PutUint16(out[2*i:], uint16(i+int(seed)*31))
		case i%3 == 0:
			write(dt, out, i, special[r.IntN(len(special))])
		default:
			write(dt, out, i, r.NormFloat64()*math.Exp2(float64(r.IntN(60)-30)))
		}
	}
	return out
}

func read(dt dtype.DType, b []byte, i int) float64 {
	switch dt {
	case dtype.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	case dtype.F64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	case dtype.F16:
		return float64(dtype.F16To(binary.LittleEndian.Uint16(b[2*i:])))
	}
	return float64(dtype.BF16To(binary.LittleEndian.Uint16(b[2*i:])))
}

func write(dt dtype.DType, b []byte, i int, x float64) {
	switch dt {
	case dtype.F32:
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(x)))
	case dtype.F64:
		binary.LittleEndian.PutUint64(b[8*i:], math.Float64bits(x))
	case dtype.F16:
		binary.LittleEndian.PutUint16(b[2*i:], dtype.F16From(float32(x)))
	default:
		binary.LittleEndian.PutUint16(b[2*i:], dtype.BF16From(float32(x)))
	}
}

// same checks n elements of type dt: equal bits, or both NaN.
func (b card) same(what string, dt dtype.DType, got, want []byte, input func(i int) string) {
	b.t.Helper()
	wrong, first := 0, -1
	for i := range len(want) / dt.Size() {
		g, w := read(dt, got, i), read(dt, want, i)
		equal := g == w && math.Signbit(g) == math.Signbit(w)
		if !equal && !(math.IsNaN(g) && math.IsNaN(w)) {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	if wrong > 0 {
		b.t.Errorf("%s: %d of %d elements are wrong, the first is [%d] of %s: %v (%x), want %v (%x)", what, wrong, len(want)/dt.Size(), first, input(first),
			read(dt, got, first), got[first*dt.Size():(first+1)*dt.Size()], read(dt, want, first), want[first*dt.Size():(first+1)*dt.Size()])
	}
}

// offsets are elements by which an array of n and another one are off an aligned
// address. Large ones take long to check, so they stand at two places only.
func offsets(n int) [][2]int {
	list := [][2]int{{0, 0}, {1, 0}, {0, 1}, {3, 3}, {8, 8}}
	if n > 1<<20 {
		return list[:2]
	}
	return list
}

func TestConvert(t *testing.T) {
	b := onGPU(t)
	for _, to := range types {
		for _, from := range types {
			for _, n := range append(sizes, large) {
				data := values(from, n, 1)
				want := make([]byte, n*to.Size())
				for i := range n {
					write(to, want, i, read(from, data, i))
				}
				for _, off := range offsets(n) {
					src, dst := b.up(from, off[1], data), b.up(to, off[0], make([]byte, n*to.Size()))
					b.Convert(b.s, dst, src)
					b.same(fmt.Sprintf("%s[%d] to %s at %v", from, n, to, off), to, b.down(dst), want,
						func(i int) string { return fmt.Sprint(read(from, data, i)) })
				}
			}
		}
	}
}

// sum is what Add writes for one element.
func sum(to, from dtype.DType, x, y float64) float64 {
	if to == dtype.F64 || from == dtype.F64 {
		return x + y
	}
	return float64(float32(x) + float32(y))
}

func TestAdd(t *testing.T) {
	b := onGPU(t)
	for _, to := range types {
		for _, from := range types {
			for _, n := range sizes {
				x, y := values(to, n, 2), values(from, n, 3)
				want := make([]byte, len(x))
				for i := range n {
					write(to, want, i, sum(to, from, read(to, x, i), read(from, y, i)))
				}
				for _, off := range offsets(n) {
					dst, src := b.up(to, off[0], x), b.up(from, off[1], y)
					b.Add(b.s, dst, src)
					b.same(fmt.Sprintf("%s[%d] += %s at %v", to, n, from, off), to, b.down(dst), want,
						func(i int) string { return fmt.Sprint(read(to, x, i), " and ", read(from, y, i)) })
				}
			}
		}
	}
	x := values(dtype.F32, 1000, 4)
	twice := make([]byte, len(x))
	for i := range 1000 {
		write(dtype.F32, twice, i, 2*read(dtype.F32, x, i))
	}
	both := b.up(dtype.F32, 0, x)
	b.Add(b.s, both, both)
	b.same("x += x", dtype.F32, b.down(both), twice, func(i int) string { return fmt.Sprint(read(dtype.F32, x, i)) })
}

// The device has the host's checksum, at every alignment; and sees one flipped
// bit anywhere.
func TestChecksumIsTheHosts(t *testing.T) {
	b := onGPU(t)
	sum := b.alloc(8)
	r := rand.New(rand.NewPCG(8, 9))
	check := func(what string, x tensor.Tensor, data []byte) {
		t.Helper()
		b.Checksum(b.s, sum, x.Buf)
		got := make([]byte, 8)
		b.s.Copy(device.Host(got), sum)
		b.sync()
		if g, w := binary.LittleEndian.Uint64(got), Checksum(data); g != w {
			t.Errorf("%s: %#x, want %#x", what, g, w)
		}
	}
	for _, n := range append([]int{10, 15, 16, 17, 31, 33, large}, sizes...) {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		for _, off := range []int{0, 1, 2, 4, 8, 16} {
			x := b.up(dtype.U8, off, data)
			check(fmt.Sprintf("%d bytes at %d", n, off), x, data)
			if n > 0 {
				bit := r.IntN(8 * n)
				data[bit/8] ^= 1 << (bit % 8)
				check(fmt.Sprintf("%d bytes at %d, bit %d flipped", n, off, bit), b.up(dtype.U8, off, data), data)
			}
		}
	}
}

// Arrays of more than 2^31 elements are worked on to their end.
func TestMoreThan32Bits(t *testing.T) {
	b := onGPU(t)
	const n = 1<<32 + 9
	free, _, err := b.dev.Memory()
	if err != nil {
		t.Fatal(err)
	}
	if free < 3*n {
		testenv.Skip(t, "gpu", fmt.Sprintf("%d bytes of free memory, the test takes %d", free, 3*n))
	}
	const elements = n / 2
	src := tensor.New(b.alloc(2*elements), dtype.BF16, elements)
	dst := tensor.New(b.alloc(elements*2), dtype.F16, elements)
	const tail = 1000
	data := values(dtype.BF16, tail, 10)
	b.s.Copy(src.Buf.Slice(src.Buf.Len()-len(data), src.Buf.Len()), device.Host(data))
	b.Convert(b.s, dst, src)
	got, want := make([]byte, 2*tail), make([]byte, 2*tail)
	b.s.Copy(device.Host(got), dst.Buf.Slice(dst.Buf.Len()-len(got), dst.Buf.Len()))
	b.sync()
	for i := range tail {
		write(dtype.F16, want, i, read(dtype.BF16, data, i))
	}
	b.same("the tail", dtype.F16, got, want, func(i int) string { return fmt.Sprint(read(dtype.BF16, data, i)) })

	sum, total := b.alloc(8), uint64(src.Buf.Len())
	b.Checksum(b.s, sum, src.Buf)
	eight := make([]byte, 8)
	b.s.Copy(device.Host(eight), sum)
	b.sync()
	whole := make([]byte, src.Buf.Len())
	copy(whole[len(whole)-len(data):], data)
	if g, w := binary.LittleEndian.Uint64(eight), Checksum(whole); g != w {
		t.Errorf("checksum of %d bytes is %#x, want %#x", total, g, w)
	}
}
