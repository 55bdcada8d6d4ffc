package comm

import (
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm/tune"
)

// What was measured between GPUs fits as long as the formula is the same.
func TestKeptFiguresOfGPUs(t *testing.T) {
	b := &peersBench{e: &byPeers{costs: overPCIe, size: 2}}
	var whole []tune.Point
	for _, k := range measuredKinds {
		for _, a := range []Algorithm{Kernels, CopyEngines} {
			expected := b.e.costs.expected(k, a, 2, 8<<10)
			whole = append(whole, tune.Point{Call: onGPUs(k), Algorithm: string(a), Bytes: 8 << 10, Expected: expected, Seconds: 3 * expected})
		}
	}
	if err := b.fits(whole); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		what   string
		change func(p *tune.Point)
		says   string
	}{
		{"another call", func(p *tune.Point) { p.Call = "AllReduce" }, "no call on GPUs"},
		{"a way that there is not", func(p *tune.Point) { p.Algorithm = "hive" }, "by the formula"},
		{"another formula", func(p *tune.Point) { p.Expected = overNVLink.expected(measuredKinds[0], Kernels, 2, p.Bytes) }, "by the formula"},
	} {
		broken := append([]tune.Point(nil), whole...)
		c.change(&broken[0])
		if err := b.fits(broken); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want that it says %q", c.what, err, c.says)
		}
	}
	if err := b.fits(nil); err == nil {
		t.Error("nothing fits")
	}
}
