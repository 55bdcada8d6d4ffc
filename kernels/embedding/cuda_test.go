package embedding

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCUDA(t testing.TB) (CUDA, *cuda.Stream) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// gradientTypes are those of a gradient and of what it is made from.
var gradientTypes = []struct{ to, from dtype.DType }{
	{dtype.BF16, dtype.BF16}, {dtype.F32, dtype.BF16}, {dtype.F32, dtype.F32},
}

// normal is random numbers that dt holds exactly.
func normal(r *rand.Rand, dt dtype.DType, shape ...int) tensor.Tensor {
	x := kerntest.Normal(r, 1, shape...)
	if dt == dtype.BF16 {
		gputest.BF16(x)
	}
	return x
}

// tokens is n ids below v: random, zipf (a few often, most hardly ever), one (all
// equal) or falling (as many different ones as there are, in falling order).
func tokens(r *rand.Rand, kind string, n, v int) []int32 {
	ids := make([]int32, n)
	zipf := rand.NewZipf(r, 1.1, 1, uint64(v-1))
	for i := range ids {
		switch kind {
		case "random":
			ids[i] = int32(r.IntN(v))
		case "zipf":
			ids[i] = int32(zipf.Uint64())
		case "one":
			ids[i] = int32(v / 2)
		case "falling":
			ids[i] = int32((v - 1) - i%v)
		}
	}
	return ids
}

// exact fails the test unless got has the CPU's f32 numbers, rounded once to got's
// type: the GPU adds in the same order. NaN equals NaN.
func exact(t *testing.T, what string, got, want tensor.Tensor) {
	t.Helper()
	g, wrong := gputest.Floats(got), 0
	for i, w := range want.F32() {
		if got.DType == dtype.BF16 {
			w = dtype.BF16To(dtype.BF16From(w))
		}
		if g[i] != float64(w) && (g[i] == g[i] || w == w) {
			if wrong++; wrong <= 3 {
				t.Errorf("%s %v: [%d] of row %d is %v, want %v", what, got, i%got.Shape[len(got.Shape)-1], i/got.Shape[len(got.Shape)-1], g[i], w)
			}
		}
	}
	if wrong > 3 {
		t.Errorf("%s %v: %d of %d elements wrong", what, got, wrong, len(g))
	}
}

// maybeShifted moves tensors off their alignment where asked.
func maybeShifted(t *testing.T, s *cuda.Stream, shifted bool, xs ...*tensor.Tensor) {
	for _, x := range xs {
		if shifted {
			*x = gputest.Shifted(t, s, *x)
		}
	}
}

func TestCUDAEmbed(t *testing.T) {
	c, s := newCUDA(t)
	for _, size := range [][3]int{{1, 1, 1}, {63, 7, 8}, {65, 128, 100}, {1000, 50257, 64}, {1000, 151936, 24}, {65, 1000, 896}, {64, 13, 7}, {9, 5, 1032}, {0, 4, 4}} {
		n, v, d := size[0], size[1], size[2]
		for _, dt := range []dtype.DType{dtype.BF16, dtype.F32} {
			r := kerntest.Rand(uint64(n))
			host, ids, want := normal(r, dt, v, d), kerntest.IDs(tokens(r, "random", n, v)...), kerntest.New(n, d)
			cpu, on := newCPU(t, 2)
			cpu.Embed(on, want, host, ids)
			kerntest.Wait(t, on)
			for _, shifted := range []bool{false, true} {
				table, list, y := gputest.Upload(t, s, host, dt), gputest.Upload(t, s, ids, dtype.I32), gputest.New(t, s, dt, n, d)
				maybeShifted(t, s, shifted, &table, &list, &y)
				got := gputest.Twice(t, s, func() { c.Embed(s, y, table, list) }, y)
				exact(t, fmt.Sprintf("y from a table of %d, shifted=%v,", v, shifted), got[0], want)
			}
		}
	}
}

// Without add the table is cleared, and with add its rows come first in the sums.
func TestCUDAEmbedBackward(t *testing.T) {
	c, s := newCUDA(t)
	for _, size := range [][3]int{{1, 1, 1}, {63, 7, 8}, {65, 128, 100}, {1000, 7, 132}, {1000, 50257, 36}, {4500, 128, 20}, {4500, 151936, 8}, {2049, 1, 4}, {0, 4, 4}} {
		n, v, d := size[0], size[1], size[2]
		for _, dt := range gradientTypes {
			for _, kind := range []string{"random", "zipf", "one", "falling"} {
				r := kerntest.Rand(uint64(n))
				ids, dy, start := kerntest.IDs(tokens(r, kind, n, v)...), normal(r, dt.from, n, d), normal(r, dt.to, v, d)
				for _, add := range []bool{false, true} {
					cpu, on := newCPU(t, 2)
					want := kerntest.Clone(start)
					cpu.EmbedBackward(on, want, dy, ids, add)
					kerntest.Wait(t, on)
					shifted := kind == "zipf"
					list, up, from, dtable := gputest.Upload(t, s, ids, dtype.I32), gputest.Upload(t, s, dy, dt.from), gputest.Upload(t, s, start, dt.to), gputest.New(t, s, dt.to, v, d)
					maybeShifted(t, s, shifted, &list, &up, &dtable)
					got := gputest.Twice(t, s, func() {
						if add {
							s.Copy(dtable.Buf, from.Buf)
						}
						c.EmbedBackward(s, dtable, up, list, add)
					}, dtable)
					exact(t, fmt.Sprintf("dtable of %d %s ids, dy %s, add=%v,", n, kind, dt.from, add), got[0], want)
				}
			}
		}
	}
}

// An id outside the table gives NaN, for the loss to show, and adds to no row, nor to
// what lies behind the table.
func TestCUDAEmbedOutside(t *testing.T) {
	c, s := newCUDA(t)
	const v = 5
	ids := []int32{0, -1, 4, v, math.MaxInt32, 4, math.MinInt32}
	for _, d := range []int{8, 3} {
		r := kerntest.Rand(1)
		host, grad := normal(r, dtype.BF16, v, d), normal(r, dtype.BF16, len(ids), d)
		wantY, wantGrad := kerntest.New(len(ids), d), kerntest.New(v+1, d)
		clear(wantGrad.F32()[:v*d])
		for i, id := range ids {
			if id < 0 || id >= v {
				continue // wantY is NaN
			}
			copy(wantY.F32()[i*d:(i+1)*d], host.F32()[int(id)*d:])
			accumulate(wantGrad.F32()[int(id)*d:(int(id)+1)*d], grad.F32()[i*d:])
		}
		table, list := gputest.Upload(t, s, host, dtype.BF16), gputest.Upload(t, s, kerntest.IDs(ids...), dtype.I32)
		dy, y, dtable := gputest.Upload(t, s, grad, dtype.BF16), gputest.New(t, s, dtype.BF16, len(ids), d), gputest.New(t, s, dtype.F32, v+1, d)
		got := gputest.Twice(t, s, func() {
			c.Embed(s, y, table, list)
			c.EmbedBackward(s, dtable.Rows(0, v), dy, list, false)
		}, y, dtable)
		exact(t, "y", got[0], wantY)
		exact(t, "dtable", got[1], wantGrad)
	}
}

func TestCUDAPositions(t *testing.T) {
	c, s := newCUDA(t)
	for _, size := range [][4]int{{1, 1, 1, 1}, {3, 5, 9, 8}, {2, 63, 64, 7}, {2, 65, 70, 264}, {33, 17, 17, 768}, {0, 3, 4, 8}} {
		b, n, p, d := size[0], size[1], size[2], size[3]
		for _, dt := range []dtype.DType{dtype.BF16, dtype.F32} {
			for pos := range min(p-n, 2) + 1 {
				r := kerntest.Rand(uint64(n))
				host, start := normal(r, dt, p, d), normal(r, dt, b, n, d)
				cpu, on := newCPU(t, 2)
				want := kerntest.Clone(start)
				cpu.Positions(on, want, host, pos)
				kerntest.Wait(t, on)
				for _, shifted := range []bool{false, true} {
					table, from, y := gputest.Upload(t, s, host, dt), gputest.Upload(t, s, start, dt), gputest.New(t, s, dt, b, n, d)
					maybeShifted(t, s, shifted, &table, &y)
					got := gputest.Twice(t, s, func() {
						s.Copy(y.Buf, from.Buf)
						c.Positions(s, y, table, pos)
					}, y)
					exact(t, fmt.Sprintf("y from %d, shifted=%v,", pos, shifted), got[0], want)
				}
			}
		}
	}
}

func TestCUDAPositionsBackward(t *testing.T) {
	c, s := newCUDA(t)
	for _, size := range [][4]int{{1, 1, 1, 1}, {3, 5, 9, 8}, {8, 63, 64, 7}, {9, 65, 70, 264}, {33, 17, 17, 768}, {0, 3, 4, 8}} {
		b, n, p, d := size[0], size[1], size[2], size[3]
		for _, dt := range gradientTypes {
			for _, add := range []bool{false, true} {
				r := kerntest.Rand(uint64(n))
				dy, start := normal(r, dt.from, b, n, d), normal(r, dt.to, p, d)
				cpu, on := newCPU(t, 2)
				want := kerntest.Clone(start)
				cpu.PositionsBackward(on, want, dy, add)
				kerntest.Wait(t, on)
				for _, shifted := range []bool{false, true} {
					up, from, dtable := gputest.Upload(t, s, dy, dt.from), gputest.Upload(t, s, start, dt.to), gputest.New(t, s, dt.to, p, d)
					maybeShifted(t, s, shifted, &up, &dtable)
					got := gputest.Twice(t, s, func() {
						if add {
							s.Copy(dtable.Buf, from.Buf)
						}
						c.PositionsBackward(s, dtable, up, add)
					}, dtable)
					exact(t, fmt.Sprintf("dtable of %d sequences, dy %s, add=%v, shifted=%v,", b, dt.from, add, shifted), got[0], want)
				}
			}
		}
	}
}

// Rows of a table behind its 2^31st element are found, and summed.
func TestCUDAEmbedBeyond31Bits(t *testing.T) {
	const v, d = 151936, 14336
	gputest.NeedMemory(t, 2*v*d+1<<30)
	c, s := newCUDA(t)
	r := kerntest.Rand(3)
	ids := []int32{v - 1, 0, v - 2, v - 1}
	table := gputest.New(t, s, dtype.BF16, v, d)
	rows := normal(r, dtype.BF16, len(ids), d)
	for i, id := range ids[:3] {
		s.Copy(table.Rows(int(id), int(id)+1).Buf, gputest.Upload(t, s, rows.Rows(i, i+1), dtype.BF16).Buf)
	}
	copy(rows.Rows(3, 4).F32(), rows.Rows(0, 1).F32())
	list, y := gputest.Upload(t, s, kerntest.IDs(ids...), dtype.I32), gputest.New(t, s, dtype.BF16, len(ids), d)
	c.Embed(s, y, table, list)
	exact(t, "y", gputest.Download(t, s, y), rows)

	grad := normal(r, dtype.BF16, len(ids), d)
	c.EmbedBackward(s, table, gputest.Upload(t, s, grad, dtype.BF16), list, false)
	want := kerntest.Clone(grad)
	accumulate(want.F32()[:d], grad.F32()[3*d:])
	for i, id := range ids[:3] {
		exact(t, fmt.Sprint("gradient of row ", id), gputest.Download(t, s, table.Rows(int(id), int(id)+1)), want.Rows(i, i+1))
	}
	clear(want.F32())
	for _, id := range []int{1, v / 2, v - 3} {
		exact(t, fmt.Sprint("gradient of row ", id), gputest.Download(t, s, table.Rows(id, id+1)), want.Rows(0, 1))
	}
}

// Sequences behind the 2^31st element get their positions, and are summed.
func TestCUDAPositionsBeyond31Bits(t *testing.T) {
	const b, n, d = 1030, 2048, 1024
	gputest.NeedMemory(t, 2*b*n*d+1<<30)
	c, s := newCUDA(t)
	y := gputest.New(t, s, dtype.BF16, b, n, d)
	host := normal(kerntest.Rand(5), dtype.BF16, n, d)
	s.Fill32(y.Buf, 0x3f803f80) // ones
	dtable := gputest.New(t, s, dtype.F32, n, d)
	c.PositionsBackward(s, dtable, y, false)
	want := kerntest.New(n, d)
	for i := range want.F32() {
		want.F32()[i] = b
	}
	exact(t, "dtable", gputest.Download(t, s, dtable), want)
	c.Positions(s, y, gputest.Upload(t, s, host, dtype.BF16), 0)
	for i, x := range host.F32() {
		want.F32()[i] = 1 + x
	}
	for _, at := range []int{0, b / 2, b - 1} {
		exact(t, fmt.Sprint("y of sequence ", at), gputest.Download(t, s, y.Rows(at, at+1)), want.Reshape(1, n, d))
	}
}

func BenchmarkCUDAEmbed(b *testing.B) {
	const n, v, d = 16384, 151936, 896
	c, s := newCUDA(b)
	table := gputest.New(b, s, dtype.BF16, v, d)
	y, ids := sets(b, s, n, v, d, "random")
	gputest.Bandwidth(b, s, 2*2*n*d+4*n, func(i int) { c.Embed(s, y[i%len(y)], table, ids[i%len(y)]) })
}

// BenchmarkCUDAEmbedBackward counts dy and the rows that the sums read and write;
// the table of a model with tied embeddings is added to, so nothing is cleared.
func BenchmarkCUDAEmbedBackward(b *testing.B) {
	const v, d = 151936, 896
	for _, n := range []int{16384, 131072} {
		for _, kind := range []string{"random", "zipf", "one"} {
			for _, to := range []dtype.DType{dtype.BF16, dtype.F32} {
				b.Run(fmt.Sprintf("%s/%s/%d", kind, to, n), func(b *testing.B) {
					c, s := newCUDA(b)
					dtable := gputest.New(b, s, to, v, d)
					s.Clear(dtable.Buf)
					dy, ids := sets(b, s, n, v, d, kind)
					distinct := map[int32]bool{}
					for _, id := range tokens(kerntest.Rand(0), kind, n, v) {
						distinct[id] = true
					}
					gputest.Bandwidth(b, s, 2*n*d+len(distinct)*d*2*to.Size(), func(i int) {
						c.EmbedBackward(s, dtable, dy[i%len(dy)], ids[i%len(dy)], true)
					})
				})
			}
		}
	}
}

func BenchmarkCUDAPositions(b *testing.B) {
	const n, t, d = 32, 1024, 768
	c, s := newCUDA(b)
	table, dtable := gputest.New(b, s, dtype.BF16, t, d), gputest.New(b, s, dtype.F32, t, d)
	y, _ := sets(b, s, n*t, 1, d, "one")
	for i := range y {
		y[i] = y[i].Reshape(n, t, d)
	}
	b.Run("forward", func(b *testing.B) {
		gputest.Bandwidth(b, s, 2*2*n*t*d, func(i int) { c.Positions(s, y[i%len(y)], table, 0) })
	})
	b.Run("backward", func(b *testing.B) {
		gputest.Bandwidth(b, s, 2*n*t*d, func(i int) { c.PositionsBackward(s, dtable, y[i%len(y)], false) })
	})
}

// sets is tensors x[n,d] and ids that a benchmark takes in turn.
func sets(b *testing.B, s *cuda.Stream, n, v, d int, kind string) (x, ids []tensor.Tensor) {
	for i := range gputest.Sets(2 * n * d) {
		r := kerntest.Rand(uint64(i))
		x = append(x, gputest.New(b, s, dtype.BF16, n, d))
		s.Clear(x[i].Buf)
		ids = append(ids, gputest.Upload(b, s, kerntest.IDs(tokens(r, kind, n, v)...), dtype.I32))
	}
	return x, ids
}
