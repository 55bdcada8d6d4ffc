package cluster

import (
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// A host whose loopback is down can listen at 127.0.0.1, and nobody reaches it there: that
// is said before workers try for minutes.
func TestLoopbackDown(t *testing.T) {
	h := netns.New(t, netns.Options{Hosts: 1})[0]
	solo := func() error {
		s, err := NewSolo("job", "token", 1, 0)
		if err != nil {
			return err
		}
		s.Close()
		return nil
	}
	member := func() error {
		m := newMember(Options{})
		defer m.cancel()
		_, err := m.serve("10.0.0.1", "0")
		return err
	}
	if err := h.In(solo); err != nil {
		t.Error(err)
	}
	if out, err := h.Command("ip", "link", "set", "lo", "down").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for what, f := range map[string]func() error{"one node": solo, "node 0": member} {
		if err := h.In(f); err == nil || !strings.Contains(err.Error(), "ip link set lo up") {
			t.Errorf("%s: %v, want what to do", what, err)
		}
	}
}
