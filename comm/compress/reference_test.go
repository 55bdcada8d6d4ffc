package compress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// model is a scheme written down in float64, for all ranks at once: of each rank's
// gradients and what it owes, c [rank][element], for a whole bucket, it makes the sums and
// what is owed then. first says where each rank's part begins.
type model func(l Layout, b *Bucket, c [][]float64) (sums []float64, owed [][]float64)

// against runs a scheme for three steps on three ranks, next to its model. The two may
// differ by tolerance times the largest number about.
func against(t *testing.T, o Options, scatter bool, tolerance float64, m model) {
	t.Helper()
	const n, steps = 3, 3
	l := layout(odd(), n, scatter, 1500)
	applied, owed := run(t, o, n, scatter, comm.Sum, steps, 1, noise)
	debt := map[*param.Param][][]float64{}
	near := func(what string, got float32, want, size float64) bool {
		if math.Abs(float64(got)-want) <= tolerance*(size+1) {
			return true
		}
		t.Errorf("%s scatter=%t: %s is %v, want %v", o.Scheme, scatter, what, got, want)
		return false
	}
	for step := range steps {
		for i := range l.Buckets {
			b := &l.Buckets[i]
			c := make([][]float64, n)
			for r := range n {
				c[r] = make([]float64, b.Numel)
				for j, p := range b.Params {
					for e := range p.Numel() {
						c[r][b.Offsets[j]+e] = float64(noise(p, r, step, e))
						if debt[p] != nil {
							c[r][b.Offsets[j]+e] = float64(float32(c[r][b.Offsets[j]+e] + debt[p][r][e]))
						}
					}
				}
			}
			sums, left := m(l, b, c)
			size := 0.0
			for _, x := range sums {
				size = max(size, math.Abs(x))
			}
			for j, p := range b.Params {
				debt[p] = nil
				for r := range n {
					debt[p] = append(debt[p], left[r][b.Offsets[j]:b.Offsets[j]+p.Numel()])
				}
				for e := range p.Numel() {
					if !near(fmt.Sprintf("step %d: %s[%d]", step, p.Name, e), applied[step][p.Name][e], sums[b.Offsets[j]+e], size) {
						return
					}
				}
				for r := range n {
					for e, x := range owed[r]["error."+p.Name] {
						if step == steps-1 && !near(fmt.Sprintf("what rank %d owes of %s[%d]", r, p.Name, e), x, debt[p][r][e], size) {
							return
						}
					}
				}
			}
		}
	}
}

// partOf is the elements of each rank's part, written down anew.
func partOf(l Layout, b *Bucket) int {
	if l.Scatter {
		return b.Numel / l.Ranks
	}
	part := 64
	for part*l.Ranks < b.Numel {
		part += 64
	}
	return part
}

func zeros(n, size int) (v [][]float64) {
	for range n {
		v = append(v, make([]float64, size))
	}
	return v
}

func TestHalvesAgreeWithTheirModel(t *testing.T) {
	for scheme, x := range map[Scheme]struct {
		round     func(float32) float32
		tolerance float64
	}{
		// Sums at the edge between two 16-bit numbers may go to either.
		FP16: {func(x float32) float32 { return dtype.F16To(dtype.F16From(x)) }, 1.0 / 1024},
		BF16: {func(x float32) float32 { return dtype.BF16To(dtype.BF16From(x)) }, 1.0 / 128},
	} {
		for _, scatter := range []bool{false, true} {
			tolerance := x.tolerance
			if scatter {
				tolerance = 1e-6 // nothing is rounded behind the sum
			}
			against(t, Options{Scheme: scheme}, scatter, tolerance, func(l Layout, b *Bucket, c [][]float64) ([]float64, [][]float64) {
				sums := make([]float64, b.Numel)
				for _, v := range c {
					for e, y := range v {
						sums[e] += float64(x.round(float32(y)))
					}
				}
				return sums, zeros(len(c), b.Numel)
			})
		}
	}
}

// quantised is x in steps of a 127th of the largest of each block of part, and what that
// leaves of it.
func quantised(x []float64, part int) (q, left []float64) {
	q, left = make([]float64, len(x)), make([]float64, len(x))
	for from := 0; from < len(x); {
		to := min((from/part+1)*part, from+256, len(x))
		most := 0.0
		for _, y := range x[from:to] {
			most = max(most, math.Abs(y))
		}
		step := float32(most) / 127
		for e := from; e < to; e++ {
			if most > 0 { // in float32, so that what is near the middle of two steps goes the same way
				q[e] = math.RoundToEven(float64(float32(x[e])/step)) * float64(step)
			}
			left[e] = x[e] - q[e]
		}
		from = to
	}
	return q, left
}

func TestInt8AgreesWithItsModel(t *testing.T) {
	for _, scatter := range []bool{false, true} {
		against(t, Options{Scheme: Int8}, scatter, 2e-6, func(l Layout, b *Bucket, c [][]float64) ([]float64, [][]float64) {
			part := partOf(l, b)
			sums, owed := make([]float64, b.Numel), [][]float64{}
			for _, v := range c {
				q, left := quantised(v, part)
				owed = append(owed, left)
				for e := range q {
					sums[e] += q[e]
				}
			}
			if scatter {
				return sums, owed
			}
			sums, left := quantised(sums, part)
			for e, x := range left {
				owed[e/part][e] += x
			}
			return sums, owed
		})
	}
}

func TestTopKAgreesWithItsModel(t *testing.T) {
	const fraction = 0.07
	for _, scatter := range []bool{false, true} {
		against(t, Options{Scheme: TopK, Fraction: fraction}, scatter, 1e-6, func(l Layout, b *Bucket, c [][]float64) ([]float64, [][]float64) {
			sums, owed := make([]float64, b.Numel), [][]float64{}
			for _, v := range c {
				left := slices.Clone(v)
				for j, p := range b.Params {
					pieces := map[int][]int{}
					for e := b.Offsets[j]; e < b.Offsets[j]+p.Numel(); e++ {
						piece := 0
						if scatter {
							piece = e / partOf(l, b)
						}
						pieces[piece] = append(pieces[piece], e)
					}
					for _, list := range pieces {
						slices.SortStableFunc(list, func(a, b int) int {
							switch x, y := math.Abs(v[a]), math.Abs(v[b]); {
							case x > y:
								return -1
							case x < y:
								return 1
							}
							return 0
						})
						for _, e := range list[:max(int(math.Round(fraction*float64(len(list))+0.4999)), 1)] {
							sums[e] += v[e]
							left[e] = 0
						}
					}
				}
				owed = append(owed, left)
			}
			return sums, owed
		})
	}
}

// Of equal elements the first ones are sent.
func TestTheFirstOfEqualsAreLargest(t *testing.T) {
	x := []float32{1, -2, 2, 0, 2, -2, 1}
	to := entries{make([]uint32, 4), make([]float32, 4)}
	pick(to, slices.Clone(x), 0, []stretch{{0, 7, 3}})
	if fmt.Sprint(to) != "{[1 2 4 0] [-2 2 2 0]}" {
		t.Errorf("%v", to)
	}
	for k := 1; k <= len(x); k++ {
		sorted := []float32{2, 2, 2, 2, 1, 1, 0}
		if limit, _ := threshold(x, k); math.Float32frombits(limit) != sorted[k-1] {
			t.Errorf("the %d. largest is %v", k, math.Float32frombits(limit))
		}
	}
}

// gram makes columns orthonormal, in float64.
func gram(v [][]float64) {
	for k := range v {
		for range 2 {
			for j := range k {
				d := 0.0
				for i := range v[k] {
					d += v[k][i] * v[j][i]
				}
				for i := range v[k] {
					v[k][i] -= d * v[j][i]
				}
			}
		}
		length := 0.0
		for _, x := range v[k] {
			length += x * x
		}
		for i := range v[k] {
			v[k][i] /= math.Sqrt(length)
		}
	}
}

// The model begins with the same Q, which is drawn from the parameter's name.
func TestPowerSGDAgreesWithItsModel(t *testing.T) {
	const rank = 2
	for _, scatter := range []bool{false, true} {
		qs := map[string][][]float64{}
		against(t, Options{Scheme: PowerSGD, Rank: rank}, scatter, 1e-4, func(l Layout, b *Bucket, c [][]float64) ([]float64, [][]float64) {
			sums, owed := make([]float64, b.Numel), zeros(len(c), b.Numel)
			for j, p := range b.Params {
				at, rows, cols := b.Offsets[j], 0, 0
				if len(p.Shape) > 1 {
					rows, cols = p.Shape[0], p.Numel()/max(p.Shape[0], 1)
				}
				if rank*(rows+cols)*2 >= rows*cols {
					for _, v := range c {
						for e := at; e < at+p.Numel(); e++ {
							sums[e] += v[e]
						}
					}
					continue
				}
				q := qs[p.Name]
				if q == nil {
					for k := range rank {
						r := rand.New(rand.NewPCG(seed(p.Name), uint64(k)))
						q = append(q, make([]float64, cols))
						for i := range q[k] {
							q[k][i] = r.NormFloat64()
						}
					}
				}
				gram(q)
				ps, next, own := zeros(rank, rows), zeros(rank, cols), [][][]float64{}
				for _, v := range c {
					for k := range rank {
						for e := range rows * cols {
							ps[k][e/cols] += v[at+e] * q[k][e%cols]
						}
					}
				}
				gram(ps)
				for _, v := range c {
					mine := zeros(rank, cols)
					for k := range rank {
						for e := range rows * cols {
							mine[k][e%cols] += v[at+e] * ps[k][e/cols]
						}
						for i, x := range mine[k] {
							next[k][i] += x
						}
					}
					own = append(own, mine)
				}
				for e := range rows * cols {
					for k := range rank {
						sums[at+e] += ps[k][e/cols] * next[k][e%cols]
					}
					for r := range c {
						owed[r][at+e] = c[r][at+e]
						for k := range rank {
							owed[r][at+e] -= ps[k][e/cols] * own[r][k][e%cols]
						}
					}
				}
				qs[p.Name] = next
			}
			return sums, owed
		})
	}
}

// Rows that others span, or that are nothing, are drawn anew; what is not finite stays so.
func TestOrthonormalise(t *testing.T) {
	const n, size = 4, 7
	v := make([]float32, n*size)
	for i := range size {
		v[i], v[size+i], v[3*size+i] = float32(i), 2*float32(i)+1e-9, float32(i*i)
	}
	again := slices.Clone(v)
	orthonormalise(v, n, 3)
	orthonormalise(again, n, 3)
	if !slices.Equal(v, again) {
		t.Error("a second time gives other rows")
	}
	for j := range n {
		for k := range n {
			want := 0.0
			if j == k {
				want = 1
			}
			if d := dot(v[j*size:(j+1)*size], v[k*size:(k+1)*size]); !(math.Abs(d-want) <= 1e-6) {
				t.Errorf("rows %d and %d: %v", j, k, d)
			}
		}
	}
	again = again[:2*size]
	for i := range size {
		again[i], again[size+i] = float32(i)/3, float32(i)/7 // spanned, up to rounding
	}
	other := slices.Clone(again)
	orthonormalise(again, 2, 3)
	orthonormalise(other, 2, 4)
	if slices.Equal(again, other) {
		t.Error("a row that is spanned is not drawn anew")
	}
	v[2] = float32(math.Inf(1))
	orthonormalise(v, n, 3)
	for i, x := range v {
		if x == x {
			t.Errorf("element %d is %v", i, x)
		}
	}
}

// Of numbers among the smallest there are, nothing is lost either.
func TestInt8OfTheSmallestNumbers(t *testing.T) {
	x := make([]float32, 300)
	for i := range x {
		x[i] = float32(i-100) * math.SmallestNonzeroFloat32
	}
	left, got := slices.Clone(x), make([]float32, len(x))
	to := make([]byte, packed(len(x)))
	quantise(device.Host(to), left)
	addQuantised(got, device.Host(to))
	for i := range x {
		if x[i] != got[i]+left[i] {
			t.Errorf("%v became %v and %v", x[i], got[i], left[i])
		}
	}
}
