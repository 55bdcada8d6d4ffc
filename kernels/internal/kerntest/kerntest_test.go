package kerntest

import (
	"math"
	"strings"
	"testing"
)

func TestCompareSeesWhatIsWrong(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	cases := []struct {
		name      string
		got, want []float64
		says      string // "" where it must agree
	}{
		{"equal", []float64{1, -2, 0}, []float64{1, -2, 0}, ""},
		{"within", []float64{1 + 1e-7}, []float64{1}, ""},
		{"cancelled", []float64{1e-7, 1}, []float64{0, 1}, ""},
		{"beyond", []float64{1, 2, 3.1, 4.01}, []float64{1, 2, 3, 4}, "worst [2]"},
		{"got NaN", []float64{1, nan, 5}, []float64{1, 2, 3}, "worst [1]"},
		{"want NaN", []float64{1, 2}, []float64{nan, 2}, "worst [0]"},
		{"both NaN", []float64{nan}, []float64{nan}, ""},
		{"got infinite", []float64{inf}, []float64{1}, "worst [0]"},
		{"opposite infinities", []float64{inf}, []float64{-inf}, "worst [0]"},
		{"same infinity", []float64{inf, 1}, []float64{inf, 1}, ""},
		{"infinity hides nothing", []float64{inf, 2}, []float64{inf, 1}, "worst [1]"},
		{"zeros wanted", []float64{1e-30}, []float64{0}, "worst [0]"},
		{"length", []float64{1}, []float64{1, 2}, "1 elements, want 2"},
	}
	for _, c := range cases {
		msg := Compare(c.got, c.want, 1e-6)
		if (msg == "") != (c.says == "") || !strings.Contains(msg, c.says) {
			t.Errorf("%s: %q, want %q", c.name, msg, c.says)
		}
	}
}

func TestGradientOfCubic(t *testing.T) {
	x := []float64{-2, 0, 0.5, 30}
	got := Gradient(x, func() float64 {
		var s float64
		for _, v := range x {
			s += v * v * v
		}
		return s
	})
	want := []float64{12, 0, 0.75, 2700}
	if msg := Compare(got, want, 1e-8); msg != "" {
		t.Error(msg)
	}
}
