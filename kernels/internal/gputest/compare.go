package gputest

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Compare holds a result of the GPU, downloaded, against the true values, with a
// run on the CPU that rounds where the GPU rounds as the measure: emulated. The worst
// element's error may be twice the emulated run's worst, or a unit in the last place
// of got's type; the error as a whole (‖got-want‖/‖want‖), which a few elements do
// not make, may be twice the emulated run's. The cosine of got and want must be above
// 0.999. Where want is NaN or infinite got must be the same, and nowhere else.
func Compare(t testing.TB, what string, got tensor.Tensor, want, emulated []float64) {
	t.Helper()
	if msg := judge(Floats(got), want, emulated, unit(got.DType)); msg != "" {
		t.Errorf("%s %v: %s", what, got, msg)
	}
}

// Near is Compare for results that are not rounded to 16 bits: every element must
// be within tol*(rms(want)+|want|), as in kerntest.
func Near(t testing.TB, what string, got tensor.Tensor, want []float64, tol float64) {
	t.Helper()
	if msg := kerntest.Compare(Floats(got), want, tol); msg != "" {
		t.Errorf("%s %v: %s", what, got, msg)
	}
}

// unit is the distance of 1 to the next value of the type.
func unit(d dtype.DType) float64 {
	switch d {
	case dtype.BF16:
		return 1. / (1 << 7)
	case dtype.F16:
		return 1. / (1 << 10)
	}
	return 1. / (1 << 23)
}

// judge is "" or what is wrong with got, and where.
func judge(got, want, emulated []float64, unit float64) string {
	if len(got) != len(want) || len(emulated) != len(want) {
		return fmt.Sprintf("%d elements, want %d, emulated %d", len(got), len(want), len(emulated))
	}
	var gg, ww, gw, errGot, errEmulated, worstEmulated float64
	for i, w := range want {
		g, e := got[i], emulated[i]
		if !finite(w) || !finite(g) {
			if g != w && !(math.IsNaN(g) && math.IsNaN(w)) {
				return at(i, got, want, emulated) + ": one is not finite"
			}
			continue
		}
		gg, ww, gw = gg+g*g, ww+w*w, gw+g*w
		errGot += (g - w) * (g - w)
		if finite(e) {
			errEmulated += (e - w) * (e - w)
			worstEmulated = max(worstEmulated, math.Abs(e-w))
		}
	}
	worst, excess := -1, 1.0
	for i, w := range want {
		if !finite(w) {
			continue
		}
		if x := math.Abs(got[i]-w) / (2 * max(worstEmulated, unit/2*math.Abs(w), math.SmallestNonzeroFloat64)); x > excess {
			worst, excess = i, x
		}
	}
	if worst >= 0 {
		return fmt.Sprintf("%s: %.3g times the tolerance, worst of %d", at(worst, got, want, emulated), excess, len(got))
	}
	// An emulated run that is exact, by luck or because everything is representable,
	// is no measure: rounding errs by a quarter of unit or so.
	if bound := 2 * max(math.Sqrt(errEmulated), unit/16*math.Sqrt(ww)); len(want) >= 64 && !(math.Sqrt(errGot) <= bound) {
		return fmt.Sprintf("relative error %.3g, emulated %.3g", math.Sqrt(errGot/ww), math.Sqrt(errEmulated/ww))
	}
	if cos := gw / math.Sqrt(gg*ww); ww > 0 && !(cos > 0.999) {
		return fmt.Sprintf("cosine %v of %d elements", cos, len(got))
	}
	return ""
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func at(i int, got, want, emulated []float64) string {
	return fmt.Sprintf("[%d]: got %v, want %v, emulated %v", i, got[i], want[i], emulated[i])
}
