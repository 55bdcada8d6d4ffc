package compress

import (
	"math"
	"math/rand/v2"
)

// orthonormalise makes the n rows of v, which lie one after another, orthogonal and of
// length 1, by Gram and Schmidt. Of a row that the ones before it span nothing is left:
// a random one takes its place, so that every direction is tried again. It is drawn
// from seed. What is not finite becomes NaN.
func orthonormalise(v []float32, n int, seed uint64) {
	size := len(v) / n
	for k := range n {
		row := v[k*size : (k+1)*size]
		before := math.Sqrt(squares(row))
		if before-before != 0 {
			fill(row, float32(math.NaN()))
			continue
		}
		if !unit(row, v[:k*size], before) {
			r := rand.New(rand.NewPCG(seed, uint64(k)))
			for i := range row {
				row[i] = float32(r.NormFloat64())
			}
			unit(row, v[:k*size], math.Sqrt(squares(row)))
		}
	}
}

// unit takes from row what the rows of done have of it, and makes it as long as 1. It
// says false where no more of its length is left than rounding makes of nothing.
func unit(row, done []float32, length float64) bool {
	if length == 0 {
		return false
	}
	scale(row, 1/length)
	for range 2 { // the second time for what the first has rounded
		for at := 0; at < len(done); at += len(row) {
			other := done[at : at+len(row)]
			addTimes(row, other, float32(-dot(row, other)))
		}
	}
	left := math.Sqrt(squares(row))
	if left < 1e-6 {
		return false
	}
	scale(row, 1/left)
	return true
}

func scale(x []float32, f float64) {
	for i, v := range x {
		x[i] = float32(float64(v) * f)
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}
