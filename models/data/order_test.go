package data

import (
	"math"
	"testing"
)

// Every epoch visits every sequence once, whatever their number.
func TestOrderIsAPermutation(t *testing.T) {
	sizes := []int{1000, 1023, 1024, 1025, 4095, 4096, 4097, 65537, 1<<18 + 7}
	for n := 1; n <= 130; n++ {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		for _, epoch := range []int64{0, 1, 77} {
			o := NewOrder(5, n)
			seen := make([]bool, n)
			for i := range int64(n) {
				s := o.At(epoch*int64(n) + i)
				if s < 0 || s >= n || seen[s] {
					t.Fatalf("n %d, epoch %d: sequence %d comes twice or does not exist", n, epoch, s)
				}
				seen[s] = true
			}
		}
	}
}

// Where a sequence comes says nothing about where its neighbours, or the same
// sequence in another epoch or with another seed, come.
func TestOrderIsShuffled(t *testing.T) {
	const n = 50021
	correlation := func(a, b func(i int64) int) float64 {
		var sum float64
		for i := range int64(n) {
			sum += (float64(a(i))/n - 0.5) * (float64(b(i))/n - 0.5)
		}
		return sum / n * 12
	}
	o, other := NewOrder(5, n), NewOrder(6, n)
	identity := func(i int64) int { return int(i) }
	for name, c := range map[string]float64{
		"position":   correlation(o.At, identity),
		"neighbour":  correlation(o.At, func(i int64) int { return o.At((i + 1) % n) }),
		"next epoch": correlation(o.At, func(i int64) int { return o.At(i + n) }),
		"seed":       correlation(o.At, other.At),
	} {
		// Of independent uniform numbers it is 1/sqrt(n) on average.
		if math.Abs(c) > 5/math.Sqrt(n) {
			t.Errorf("%s: correlation %.4f", name, c)
		}
	}
}

func BenchmarkOrder(b *testing.B) {
	o := NewOrder(1, 344262)
	for k := int64(0); b.Loop(); k++ {
		o.At(k)
	}
}
