package comm

import (
	"math"
	"testing"

	"github.com/gorun-dev/gorun/comm/transport"
)

// The model's choices, where they are not in doubt.
func TestChoices(t *testing.T) {
	for _, c := range []struct {
		model   cost
		kind    transport.Kind
		n, size int
		want    Algorithm
	}{
		{costLoopback, transport.AllReduce, 2, 1 << 10, OneShot},
		{costLoopback, transport.AllReduce, 2, 256 << 10, OneShot},
		{costLoopback, transport.AllReduce, 2, 4 << 20, Direct},
		{costLoopback, transport.AllReduce, 2, 25 << 20, Direct},
		{costLoopback, transport.AllReduce, 3, 16 << 10, OneShot},
		{costLoopback, transport.AllReduce, 3, 1 << 20, Direct},
		{costLoopback, transport.AllReduce, 4, 1 << 10, Doubling},
		{costLoopback, transport.AllReduce, 4, 64 << 10, Doubling},
		{costLoopback, transport.AllReduce, 4, 1 << 20, Direct},
		{costNetwork, transport.AllReduce, 4, 1 << 10, OneShot},
		{costNetwork, transport.AllReduce, 64, 1 << 10, Doubling},
		{costNetwork, transport.AllReduce, 64, 1 << 30, Ring},
		{costNetwork, transport.ReduceScatter, 4, 25 << 20, Direct},
		{costNetwork, transport.AllGather, 64, 1 << 30, Ring},
		{costNetwork, transport.Broadcast, 16, 64, Tree},
		{costNetwork, transport.Broadcast, 16, 100 << 20, Chain},
	} {
		best, least := Auto, math.Inf(1)
		for _, a := range candidates(c.kind) {
			if s := c.model.seconds(c.kind, a, c.n, c.size, 1<<20); s < least {
				best, least = a, s
			}
		}
		if best != c.want {
			t.Errorf("%s of %d bytes on %d ranks: %s, want %s", c.kind, c.size, c.n, best, c.want)
		}
	}
}
