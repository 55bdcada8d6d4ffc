package vec

import (
	"math"
	"unsafe"
)

// plain is the loops in Go.
var plain = &set{
	name: "go",
	expSum: func(n int, x *float32, scale, shift float32) (sum float64) {
		for i, v := range at(x, n) {
			e := math.Exp(float64(v)*float64(scale) - float64(shift))
			at(x, n)[i] = float32(e)
			sum += e
		}
		return sum
	},
	softmaxGrad: func(n int, s, ds *float32, scale, lse, mean float32) {
		sv, dv := at(s, n), at(ds, n)
		for i, v := range sv {
			p := float32(math.Exp(float64(v)*float64(scale) - float64(lse)))
			sv[i], dv[i] = p, p*scale*(dv[i]-mean)
		}
	},
	swiglu: func(n int, y, gate, up *float32) {
		yv, gv, uv := at(y, n), at(gate, n), at(up, n)
		for i, g := range gv {
			yv[i] = g * sigmoid(g) * uv[i]
		}
	},
	swigluGrad: func(n int, dgate, dup, dy, gate, up *float32) {
		dgv, duv, dv, gv, uv := at(dgate, n), at(dup, n), at(dy, n), at(gate, n), at(up, n)
		for i, g := range gv {
			s, d, u := sigmoid(g), dv[i], uv[i]
			silu := g * s
			duv[i] = d * silu
			dgv[i] = d * u * (s + silu*(1-s))
		}
	},
	gelu: func(n int, y, x *float32) {
		yv := at(y, n)
		for i, v := range at(x, n) {
			yv[i] = v * sigmoid(v*(geluScale+geluCube*v*v))
		}
	},
	geluGrad: func(n int, dx, dy, x *float32) {
		dxv, dyv := at(dx, n), at(dy, n)
		for i, v := range at(x, n) {
			s := sigmoid(v * (geluScale + geluCube*v*v))
			dxv[i] = dyv[i] * (s + v*s*(1-s)*(geluScale+3*geluCube*v*v))
		}
	},
	max: func(n int, x *float32) float32 {
		top := float32(math.Inf(-1))
		for _, v := range at(x, n) {
			if v > top {
				top = v
			}
		}
		return top
	},
	dot: func(n int, x, y *float32) float64 {
		// Four chains, so that an addition does not wait for the one before.
		var s [4]float64
		xv, yv := at(x, n), at(y, n)
		for len(xv) >= 4 && len(yv) >= 4 {
			for i := range s {
				s[i] += float64(xv[i]) * float64(yv[i])
			}
			xv, yv = xv[4:], yv[4:]
		}
		for i, v := range xv {
			s[i] += float64(v) * float64(yv[i])
		}
		return s[0] + s[1] + (s[2] + s[3])
	},
	sum: func(n int, x *float32) (s float64) {
		for _, v := range at(x, n) {
			s += float64(v)
		}
		return s
	},
	addColumns: func(n int, sums *float64, x *float32) {
		sv := at(sums, n)
		for i, v := range at(x, n) {
			sv[i] += float64(v)
		}
	},
	addProducts: func(n int, sums *float64, g, x *float32, shift, scale float32) {
		sv, xv := at(sums, n), at(x, n)
		for i, v := range at(g, n) {
			sv[i] += float64(v) * float64((xv[i]-shift)*scale)
		}
	},
}

const (
	geluScale = 2 * 0.79788456080286535588 // 2*sqrt(2/pi): (1+tanh(u))/2 is sigmoid(2u)
	geluCube  = geluScale * 0.044715
)

func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

func at[T any](p *T, n int) []T { return unsafe.Slice(p, n) }
