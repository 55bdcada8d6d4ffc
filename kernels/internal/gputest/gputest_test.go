package gputest

import (
	"math"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// The judgement on results of bf16: what rounding does passes, and little else.
func TestJudge(t *testing.T) {
	const n = 1000
	x := kerntest.Normal(kerntest.Rand(1), 1, n)
	want := kerntest.F64(x)
	emulated := kerntest.F64(BF16(kerntest.Clone(x)))
	change := func(f func(got []float64)) []float64 {
		got := append([]float64(nil), emulated...)
		f(got)
		return got
	}
	nan, inf := math.NaN(), math.Inf(1)
	for _, k := range []struct {
		name, says string
		got, want  []float64
	}{
		{"the emulated run itself", "", emulated, want},
		{"the truth", "", want, want},
		{"rounding the other way", "", change(func(g []float64) { g[7] -= 2 * (g[7] - want[7]) }), want},
		{"one element off by a twentieth", "[7]", change(func(g []float64) { g[7] *= 1.05; g[7] += 0.05 }), want},
		{"one NaN", "not finite", change(func(g []float64) { g[999] = nan }), want},
		{"one infinity", "not finite", change(func(g []float64) { g[0] = inf }), want},
		{"another length", "999 elements", emulated[:999], want},
		{"all of them a little off", "relative error", change(func(g []float64) {
			for i := range g {
				g[i] *= 1.004
			}
		}), want},
		{"unwritten", "[", make([]float64, n), want},
	} {
		if msg := judge(k.got, k.want, emulated, unit(dtype.BF16)); !strings.Contains(msg, k.says) || (k.says == "") != (msg == "") {
			t.Errorf("%s: %q, want %q", k.name, msg, k.says)
		}
	}
	same := []float64{nan, inf, 1, 0}
	if msg := judge(same, same, same, unit(dtype.BF16)); msg != "" {
		t.Errorf("equal results: %s", msg)
	}
	if msg := judge([]float64{-inf}, []float64{inf}, []float64{inf}, unit(dtype.BF16)); msg == "" {
		t.Error("infinities of two signs pass")
	}
	if msg := judge([]float64{1e-30}, []float64{0}, []float64{0}, unit(dtype.BF16)); msg == "" {
		t.Error("something passes for an exact zero")
	}
}
