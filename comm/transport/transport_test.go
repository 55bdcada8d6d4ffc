package transport

import (
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

func TestHeaderTravels(t *testing.T) {
	h := Header{Group: 0xdeadbeef, Seq: 1 << 40, Kind: Reduce, Op: Prod, DType: dtype.BF16, Root: -1, Count: 1<<33 + 5}
	var b [HeaderSize]byte
	h.Encode(b[:])
	if got := Decode(b[:]); got != h {
		t.Errorf("%+v became %+v", h, got)
	}
}

func TestCallsReadAsAPersonWritesThem(t *testing.T) {
	for want, h := range map[string]Header{
		"AllReduce(sum, f32, 1024) #17": {Kind: AllReduce, DType: dtype.F32, Root: -1, Count: 1024, Seq: 17},
		"Broadcast(u8, 3, root 0) #1":   {Kind: Broadcast, DType: dtype.U8, Root: 0, Count: 3, Seq: 1},
	} {
		if got := h.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
