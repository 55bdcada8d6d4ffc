package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dialBound  = 3 * time.Second  // for an answer of the other kernel: a SYN is sent three times in it
	helloBound = 10 * time.Second // for an answer of the other doctor, which may be busy
)

// Outcome is what became of a dial.
type Outcome string

// The outcomes. Refused and Filtered are told apart by whether anything came back.
const (
	Connected   Outcome = "connected"
	Refused     Outcome = "refused"     // an RST: a host is there, but nothing listens, or a firewall rejects
	Filtered    Outcome = "filtered"    // no answer at all
	Unreachable Outcome = "unreachable" // no route, nobody of that address in the network, or a router says so
	Stranger    Outcome = "stranger"    // who answers is not the host that was meant
)

// Dial is a probe of one address of another host.
type Dial struct {
	From      string         `json:"from"`
	To        string         `json:"to"`
	Interface string         `json:"interface"` // of the remote address, there
	Local     netip.Addr     `json:"local"`     // by which the kernel sends there
	Remote    netip.AddrPort `json:"remote"`
	Outcome   Outcome        `json:"outcome"`
	Millis    float64        `json:"ms"` // until the kernel there has answered, or the deadline
	Error     string         `json:"error,omitempty"`
}

func (d Dial) String() string {
	s := fmt.Sprintf("from %s to %s (%s): %s after %.2f ms", d.Local, d.Remote, d.Interface, d.Outcome, d.Millis)
	if d.Error != "" {
		s += ": " + d.Error
	}
	return s
}

// dial connects to an address of a peer, and asks whether it is the peer that answers.
func dial(ctx context.Context, local netip.Addr, a address, port uint16, id string) Dial {
	d := Dial{Interface: a.Name, Local: local, Remote: netip.AddrPortFrom(a.IP, port), Outcome: Connected}
	start := time.Now()
	c, err := (&net.Dialer{Timeout: dialBound}).DialContext(ctx, "tcp", d.Remote.String())
	d.Millis = float64(time.Since(start).Microseconds()) / 1000
	if err != nil {
		d.Outcome, d.Error = outcome(err), plain(err)
		return d
	}
	defer c.Close()
	d.Local = c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	said, err := askID(c)
	switch {
	case err != nil:
		d.Outcome, d.Error = Stranger, "the connection is open, and no doctor answers: "+plain(err)
	case said != id:
		d.Outcome, d.Error = Stranger, "another host's doctor answers"
	}
	return d
}

// askID asks who is at the other end.
func askID(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(helloBound)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte{askWho}); err != nil {
		return "", err
	}
	b := make([]byte, idLength)
	_, err := io.ReadFull(c, b)
	return string(b), err
}

// outcome tells the failures of a dial apart.
func outcome(err error) Outcome {
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET):
		return Refused
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return Filtered
	}
	return Unreachable
}

// plain is the error of a dial without the addresses, which stand beside it.
func plain(err error) string {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*os.SyscallError](err); ok {
		err = e.Err
	}
	return err.Error()
}

// routeTo is the address from which the kernel would send to addr. Nothing is sent.
func routeTo(addr netip.Addr) (netip.Addr, bool) {
	c, err := net.Dial("udp", netip.AddrPortFrom(addr, 9).String())
	if err != nil {
		return netip.Addr{}, false
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), true
}

// writeDials writes the matrix, a line a dial.
func writeDials(b *strings.Builder, dials []Dial) {
	if len(dials) == 0 {
		return
	}
	b.WriteString("dials:\n")
	for _, d := range dials {
		fmt.Fprintf(b, "  %s to %s: %s\n", d.From, d.To, d)
	}
	b.WriteString("\n")
}
