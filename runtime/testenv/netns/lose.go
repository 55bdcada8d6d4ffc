package netns

import (
	"fmt"
	"math"
)

// Direction tells what a host sends from what it receives.
type Direction string

// The directions, by the hook of the switch's port.
const (
	Sent     Direction = "ingress"
	Received Direction = "egress"
)

// Loss says which frames get lost.
type Loss struct{ program string }

// A program is a classic BPF one in tc's notation: the number of instructions,
// then code, two jump distances and an operand each. It returns what becomes of
// the frame: 0 lets it pass, 2 drops it.

// All loses every frame.
func All() Loss { return Loss{"1,6 0 0 2"} }

// Longer loses packets of more than so many bytes, without a word: a switch set to
// a smaller MTU, or a router whose ICMP messages a firewall swallows.
func Longer(bytes int) Loss {
	const ethernet = 14
	return Loss{fmt.Sprintf("4,128 0 0 0,37 1 0 %d,6 0 0 0,6 0 0 2", bytes+ethernet)}
}

// Percent loses that share of the frames at random.
func Percent(p float64) Loss {
	const random = 0xfffff000 + 56 // the kernel's "random number" in place of an offset
	return Loss{fmt.Sprintf("4,32 0 0 %d,53 0 1 %d,6 0 0 0,6 0 0 2", uint32(random), uint32(p/100*math.MaxUint32))}
}

// Lose makes the switch lose some of the frames in one direction, beside those
// that it loses already; Heal ends that. Connections made afterwards send each
// packet as one frame: those made before may send bundles, which get lost, or are
// too long, as a whole.
func (h *Host) Lose(d Direction, l Loss) {
	h.net.t.Helper()
	for _, any := range h.net.hosts {
		any.ip("link set eth0 gso_max_segs 1")
	}
	h.net.wire.run("tc", "filter", "add", "dev", port(h.index), string(d), "bpf", "direct-action", "bytecode", l.program)
}

// Heal ends every loss at the host's port.
func (h *Host) Heal() {
	h.net.t.Helper()
	for _, d := range []Direction{Sent, Received} {
		h.net.wire.run("tc", "filter", "del", "dev", port(h.index), string(d))
	}
}
