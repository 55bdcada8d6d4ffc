package doctor

import (
	"fmt"
	"strings"
)

// Outcome is what became of a probe.
type Outcome string

// The outcomes. Refused and Filtered are told apart by whether anything came back.
const (
	Connected   Outcome = "connected"
	Refused     Outcome = "refused"      // an RST: a host is there, and nothing listens, or a firewall rejects
	Filtered    Outcome = "filtered"     // no answer at all within the deadline
	Unreachable Outcome = "unreachable"  // no route, or a router or the kernel says so
	Stranger    Outcome = "someone else" // whoever answers is not the host that was meant
)

// Dial is a probe of one address of another host.
type Dial struct {
	From      string  `json:"from"`
	To        string  `json:"to"`
	Interface string  `json:"interface"` // of the address, there
	Local     string  `json:"local"`     // address it left by; "" where that is not known
	Remote    string  `json:"remote"`
	Outcome   Outcome `json:"outcome"`
	Millis    float64 `json:"ms"`
	Error     string  `json:"error,omitempty"`
}

func (d Dial) String() string {
	from := d.Local
	if from == "" {
		from = "?"
	}
	s := fmt.Sprintf("%s to %s (%s): %s after %.2f ms", from, d.Remote, d.Interface, d.Outcome, d.Millis)
	if d.Error != "" {
		s += ": " + d.Error
	}
	return s
}

// writeDials writes the matrix, a line a probe.
func writeDials(b *strings.Builder, dials []Dial) {
	b.WriteString("dials:\n")
	for _, d := range dials {
		fmt.Fprintf(b, "  %s to %s: %s\n", d.From, d.To, d)
	}
	b.WriteString("\n")
}
