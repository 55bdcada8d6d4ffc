package dtype

import (
	"math"
	"testing"
)

func TestParseReadsEveryName(t *testing.T) {
	for _, d := range All {
		got, err := Parse(d.String())
		if err != nil || got != d || d.Size() == 0 {
			t.Errorf("Parse(%q) = %v, %v; size %d", d, got, err, d.Size())
		}
	}
	if _, err := Parse("f8"); err == nil {
		t.Error("f8 was accepted")
	}
}

// Every half and every bfloat16 survives the way to float32 and back, and
// rounding picks the nearer neighbour, the even one in the middle.
func TestHalvesRoundTripAndRoundToNearestEven(t *testing.T) {
	kinds := []struct {
		name string
		to   func(uint16) float32
		from func(float32) uint16
		inf  uint16
	}{{"f16", F16To, F16From, 0x7c00}, {"bf16", BF16To, BF16From, 0x7f80}}
	for _, k := range kinds {
		for h := uint32(0); h <= 0xffff; h++ {
			f := k.to(uint16(h))
			if f != f {
				if g := k.to(k.from(f)); g == g {
					t.Fatalf("%s: NaN %#04x became %v", k.name, h, g)
				}
				continue
			}
			if got := k.from(f); got != uint16(h) {
				t.Fatalf("%s: %#04x -> %v -> %#04x", k.name, h, f, got)
			}
		}
		for h := uint16(0); h < k.inf-1; h++ {
			lo, hi := float64(k.to(h)), float64(k.to(h+1))
			mid := (lo + hi) / 2
			even := h + h&1
			below := math.Nextafter32(float32(mid), float32(lo))
			above := math.Nextafter32(float32(mid), float32(hi))
			if got := k.from(float32(mid)); got != even {
				t.Fatalf("%s: tie between %#04x and %#04x went to %#04x", k.name, h, h+1, got)
			}
			if k.from(below) != h || k.from(above) != h+1 || k.from(-above) != (h+1)|0x8000 {
				t.Fatalf("%s: near the middle of %#04x and %#04x rounding is wrong", k.name, h, h+1)
			}
		}
		if k.from(float32(math.Inf(-1))) != k.inf|0x8000 || k.from(math.MaxFloat32) != k.inf {
			t.Errorf("%s: infinities or overflow are wrong", k.name)
		}
	}
}
