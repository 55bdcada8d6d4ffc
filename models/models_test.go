package models

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

func TestPlanPlacesAndShares(t *testing.T) {
	var p Plan
	a := p.Add("a", dtype.F32, 2, 100) // 400 bytes, 512 with alignment
	var b, c, d Region
	p.Overlay(
		func() { b = p.Add("b", dtype.F32, 1, 64) },
		func() {
			c = p.Add("c", dtype.I32, 1, 1)
			p.Overlay(func() { d = p.Add("d", dtype.F64, 1, 64) }, func() {})
		},
	)
	e := p.Add("e", dtype.F32, 1, 1)
	var offsets []int
	for _, r := range p.Regions() {
		offsets = append(offsets, r.Offset)
	}
	if want := []int{0, 1024, 1024, 1280, 1792}; !slices.Equal(offsets, want) || p.Bytes() != 2048 {
		t.Errorf("offsets %v, want %v; %d bytes in all", offsets, want, p.Bytes())
	}
	if a.Bytes() != 1024 || b.Bytes() != 256 || e.Offset != 1792 {
		t.Errorf("a takes %d bytes, b %d; e is at %d", a.Bytes(), b.Bytes(), e.Offset)
	}
	if s := p.String(); !strings.Contains(s, "2048 bytes") || strings.Count(s, "\n") != 6 {
		t.Errorf("printed as\n%s", s)
	}

	mem, err := p.Alloc(device.NewCPU())
	if err != nil {
		t.Fatal(err)
	}
	mem.Tensor(a, 1, 10, 10).F32()[99] = 7
	if x := mem.Tensor(a, 1, 100).F32()[99]; x != 7 {
		t.Errorf("slot 1 holds %v", x)
	}
	mem.Tensor(b, 0, 64).F32()[0] = 3
	if x := mem.Tensor(c, 0, 1).I32()[0]; uint32(x) != math.Float32bits(3) {
		t.Error("b and c do not share")
	}
	if mem.Tensor(d, 0, 2, 2).Numel() != 4 {
		t.Error("a smaller shape does not see a beginning")
	}
	for what, f := range map[string]func(){
		"too many elements": func() { mem.Tensor(a, 0, 101) },
		"no such slot":      func() { mem.Tensor(a, 2, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			f()
		}()
	}
}

// The first outputs of SplitMix64 for the state 0 are published with it.
func TestRandIsSplitMix64(t *testing.T) {
	r := Rand{}
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		if got := r.Uint64(uint64(i)); got != want {
			t.Errorf("element %d is %#x, want %#x", i, got, want)
		}
	}
}

func TestNormalHasItsMoments(t *testing.T) {
	x := make([]float32, 200001)
	NewRand(1, "w").Normal(x, 0.02)
	var sum, squares, fourth, neighbours float64
	for i, v := range x {
		z := float64(v) / 0.02
		sum, squares, fourth = sum+z, squares+z*z, fourth+z*z*z*z
		neighbours += z * float64(x[(i+1)%len(x)]) / 0.02
	}
	n := float64(len(x))
	// Five deviations of each mean: 1, 2 and 96 are the variances of z, z², z⁴.
	for name, c := range map[string][3]float64{
		"z": {sum, 0, 1}, "z squared": {squares, 1, 2}, "z to the fourth": {fourth, 3, 96}, "neighbours": {neighbours, 0, 1},
	} {
		if d := math.Abs(c[0]/n - c[1]); !(d <= 5*math.Sqrt(c[2]/n)) {
			t.Errorf("the mean of %s is %v, want %v", name, c[0]/n, c[1])
		}
	}
	short := make([]float32, 101)
	NewRand(1, "w").Normal(short, 0.02)
	if !slices.Equal(short[:100], x[:100]) || short[100] != x[100] {
		t.Error("a shorter tensor has other values")
	}
	for _, other := range []Rand{NewRand(2, "w"), NewRand(1, "v")} {
		y := make([]float32, 100)
		other.Normal(y, 0.02)
		if slices.Equal(y, x[:100]) {
			t.Error("another seed or name gives the same values")
		}
	}
}

func TestEnvironmentIsChecked(t *testing.T) {
	if err := (Env{}).Check(); err == nil {
		t.Error("an empty environment was accepted")
	}
	env := Env{B: 2, T: 3}
	env.CheckBatch(Batch{B: 2, T: 2, Tokens: Ints(make([]int32, 4)), Targets: Ints(make([]int32, 4))})
	defer func() {
		if recover() == nil {
			t.Error("a batch that is too large was accepted")
		}
	}()
	env.CheckBatch(Batch{B: 3, T: 3, Tokens: Ints(make([]int32, 9)), Targets: Ints(make([]int32, 9))})
}
