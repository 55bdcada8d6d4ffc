package main

import (
	"math"

	"github.com/gorun-dev/gorun/runtime/param"
)

// network is y = w2·tanh(w1·x + b1) + b2, with a gradient d... for each weight.
type network struct {
	w1, b1, w2, b2     []float64 // [H], [H], [H], [1]
	dw1, db1, dw2, db2 []float64
}

func newNetwork(hidden int) *network {
	zeros := func() []float64 { return make([]float64, hidden) }
	n := &network{zeros(), zeros(), zeros(), zeros()[:1], zeros(), zeros(), zeros(), zeros()[:1]}
	for h := range hidden { // other values on each rank would not matter: rank 0's count
		n.w1[h], n.b1[h], n.w2[h] = 3*math.Sin(float64(h)), math.Cos(float64(5*h)), 0.3*math.Sin(float64(7*h))
	}
	return n
}

// vars names the weights, in the order of the forward pass, for ddp.Wrap.
func (n *network) vars() []param.Var {
	return []param.Var{
		param.Slice("w1", n.w1, n.dw1), param.Slice("b1", n.b1, n.db1),
		param.Slice("w2", n.w2, n.dw2), param.Slice("b2", n.b2, n.db2),
	}
}

func (n *network) clear() {
	for _, d := range [][]float64{n.dw1, n.db1, n.dw2, n.db2} {
		clear(d)
	}
}

// add is the forward and the backward pass of one point: it adds scale times the
// gradient of its squared error, and returns scale times the error.
func (n *network) add(p point, scale float64) float64 {
	y := n.b2[0]
	hidden := make([]float64, len(n.w1))
	for h := range hidden {
		hidden[h] = math.Tanh(n.w1[h]*p.x + n.b1[h])
		y += n.w2[h] * hidden[h]
	}
	off := y - p.y
	dy := 2 * off * scale
	n.db2[0] += dy
	for h, a := range hidden {
		n.dw2[h] += dy * a
		before := dy * n.w2[h] * (1 - a*a)
		n.dw1[h] += before * p.x
		n.db1[h] += before
	}
	return off * off * scale
}

// descend is the optimizer. It runs alike on every rank.
func (n *network) descend(rate float64) {
	for _, v := range [][2][]float64{{n.w1, n.dw1}, {n.b1, n.db1}, {n.w2, n.dw2}, {n.b2, n.db2}} {
		for i, d := range v[1] {
			v[0][i] -= rate * d
		}
	}
}

type point struct{ x, y float64 }

// curve is n points of a sine.
func curve(n int) []point {
	points := make([]point, n)
	for i := range points {
		x := 2*float64(i)/float64(n-1) - 1
		points[i] = point{x, math.Sin(3 * x)}
	}
	return points
}
