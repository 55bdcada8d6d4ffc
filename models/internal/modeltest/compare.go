package modeltest

import (
	"math"
	"testing"
)

// Near fails the test unless |got-want| <= tol * max(|want|, floor). A NaN fails.
func Near(t testing.TB, what string, got, want, tol, floor float64) {
	t.Helper()
	if d := math.Abs(got - want); !(d <= tol*max(math.Abs(want), floor)) {
		t.Errorf("%s: got %.9g, want %.9g; the difference %.2g exceeds %.2g of it", what, got, want, d, tol)
	}
}

// NearAll fails the test unless got is within tol of want, relative to want's
// largest element: single elements may be sums that nearly cancel.
func NearAll(t testing.TB, what string, got, want []float32, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return
	}
	var scale, worst float64
	at := -1
	for i := range want {
		scale = max(scale, math.Abs(float64(want[i])))
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= worst) {
			worst, at = d, i
		}
	}
	if !(worst <= tol*scale) {
		t.Errorf("%s: element %d is %g, want %g; the largest is %g, tolerance %g of it", what, at, got[at], want[at], scale, tol)
	}
}

// Norm is the Euclidean norm.
func Norm(x []float32) float64 { return math.Sqrt(Dot(x, x)) }

// Dot is the inner product in f64.
func Dot(a, b []float32) float64 {
	var s float64
	for i := range a {
		s += float64(a[i]) * float64(b[i])
	}
	return s
}

// CrossEntropy is the loss of one target.
func CrossEntropy(logits []float32, target int) float64 {
	top, sum := math.Inf(-1), 0.0
	for _, x := range logits {
		top = max(top, float64(x))
	}
	for _, x := range logits {
		sum += math.Exp(float64(x) - top)
	}
	return top + math.Log(sum) - float64(logits[target])
}
