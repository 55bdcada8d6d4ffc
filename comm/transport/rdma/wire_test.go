package rdma

import (
	"testing"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Numbers travel in 30 bits, and go on behind them.
func TestNumbersInImmediateData(t *testing.T) {
	for _, base := range []uint64{0, 1, immMask - 3, immMask, immMask + 1, 5<<immKindShift - 2, 1 << 40} {
		for ahead := range uint64(20) {
			imm := immediate(immDone, base+ahead)
			if imm>>immKindShift != immDone {
				t.Fatalf("the kind of %#x is lost", imm)
			}
			if got := after(base, imm&immMask); got != base+ahead {
				t.Fatalf("%d behind %d became %d", ahead, base, got)
			}
		}
	}
}

func TestRecordsTravel(t *testing.T) {
	r := record{recMessage, 1 << 20, 1 << 40, 1<<33 + 5, transport.Header{Group: 7, Seq: 9, Kind: transport.Reduce, DType: dtype.BF16, Root: -1, Count: 3}}
	b := make([]byte, headSize)
	r.encode(b)
	if got := decodeRecord(b); got != r {
		t.Errorf("%+v became %+v", r, got)
	}
	g := grant{1<<60 + 1, 1<<32 - 1}
	g.encode(b)
	if got := decodeGrant(b); got != g {
		t.Errorf("%+v became %+v", g, got)
	}
}

// Stripes cover a message, in order and without a gap.
func TestStripes(t *testing.T) {
	for _, qps := range []int{1, 2, 3, 16} {
		m := &Mesh{s: Settings{QPs: qps}}
		for _, n := range []int{1, stripeLeast, directLeast, directLeast + 1, 3*stripeLeast - 1, 1<<20 + 63, 1<<20 + 65} {
			at := 0
			for i := range m.stripes(n) {
				lo, hi := m.stripe(n, i)
				if lo != at || hi < lo {
					t.Errorf("%d bytes, %d queue pairs: stripe %d is %d to %d, after %d", n, qps, i, lo, hi, at)
				}
				at = hi
			}
			if at != n {
				t.Errorf("%d bytes, %d queue pairs: %d are covered", n, qps, at)
			}
		}
	}
}
