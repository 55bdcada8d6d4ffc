// Package dropout zeroes elements at random, by numbers that are a pure function of
// where an element is: whoever computes a row, and however often, gets the same.
//
// Letters: N rows, I channels.
package dropout

import (
	"math"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// dims checks y[N,I] and x of its type and shape, and the probability.
func dims(op string, y, x tensor.Tensor, p float64) (n, i int) {
	s := check.Rank(op, "y", y, 2)
	check.Like(op, "x", x, "y", y)
	if !(p >= 0 && p < 1) {
		check.Fail(op, "a probability of %v, want one in [0,1)", p)
	}
	return s[0], s[1]
}

// threshold is the number below which a draw of 32 bits drops its element.
func threshold(p float64) uint32 { return uint32(min(math.Round(p*(1<<32)), math.MaxUint32)) }

const golden = 0x9e3779b97f4a7c15

// draw is element i of the stream that key names: SplitMix64 with random access.
func draw(key, i uint64) uint64 {
	z := key + golden*(i+1)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
