package hosttest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// socket is a TCP socket of a host, as /proc shows it.
type socket struct {
	local, remote netip.AddrPort
	listens       bool // else it is connected
}

// sockets lists those that listen or are connected.
func sockets(t *testing.T, h *netns.Host) []socket {
	t.Helper()
	var out []socket
	for _, name := range []string{"tcp", "tcp6"} {
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", h.PID(), name))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(strings.TrimSpace(string(table)), "\n") {
			const established, listening = "01", "0A"
			f := strings.Fields(line)
			if i > 0 && (f[3] == established || f[3] == listening) {
				out = append(out, socket{kernelAddr(t, f[1]), kernelAddr(t, f[2]), f[3] == listening})
			}
		}
	}
	return out
}

// kernelAddr reads an address as /proc/net/tcp has it: words of 32 bits in the
// order of the machine, and the port.
func kernelAddr(t *testing.T, s string) netip.AddrPort {
	t.Helper()
	addr, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(addr)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	ip, _ := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n))
}

// Whatever other interfaces there are, hosts talk by the one that joins them, and
// the ranks of a host by nothing that could leave it.
func TestConnectionsTakeTheRightInterface(t *testing.T) {
	t.Parallel()
	for _, o := range []netns.Options{{Decoys: true}, {Decoys: true, IPv6: true}} {
		t.Run(fmt.Sprintf("IPv6 %t", o.IPv6), func(t *testing.T) {
			t.Parallel()
			hosts := netns.New(t, o)
			j := start(t, launch{hosts: hosts, args: endless(t, "comm.transport=tcp")})
			j.agents[0].await(t, "step +1/")
			between := 0
			for i, h := range hosts {
				for _, s := range sockets(t, h) {
					there := s.remote.Addr()
					switch {
					case s.listens || there.IsLoopback() || there == h.Addr:
					case s.local.Addr() == h.Addr && there == hosts[1-i].Addr:
						between++
					default:
						t.Errorf("%s: a connection from %s to %s", h.Name, s.local, s.remote)
					}
				}
			}
			if between < 16 { // 4 pairs of ranks, at least 2 connections each, seen from both ends
				t.Errorf("%d connections between the hosts", between)
			}
			j.signalAgent(1, unix.SIGTERM)
			j.fails(afterDeath, 143, `ended by SIGTERM`)
		})
	}
}

// An interface that does not do is named, at once or when the time is up.
func TestWrongInterface(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"nosuch0":  `interface "nosuch0" is not there`,
		"down0":    `interface "down0" is not there, is down`,
		"local0":   `interface "local0" .*has no address that others can reach`,
		"br-swarm": `cannot connect to it: from 172\.19\.0\.\d to 172\.19\.0\.\d`,
		"veth9":    `set comm\.interface`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hosts := netns.New(t, netns.Options{Decoys: true})
			j := start(t, launch{hosts: hosts, args: endless(t, "comm.interface="+name, "comm.timeout=8s")})
			j.fails(afterSilence, 1, `rank \d .*`+want)
		})
	}
}

// Both hosts send long packets, and what lies between swallows them without a word:
// what is small comes through, and so they do reach each other. Whoever has much to
// say first, an agent or a rank, finds out why.
func TestPacketsTooLong(t *testing.T) {
	t.Parallel()
	const why = `small messages arrive, large ones do not: the path's MTU is smaller than the interface's`
	t.Run("agents", func(t *testing.T) {
		t.Parallel()
		hosts := netns.New(t, netns.Options{MTU: 9000})
		swallow(hosts[0])
		j := start(t, launch{hosts: hosts, args: append([]string{"--join-timeout", "20s"}, endless(t)...)})
		j.wait(2 * afterSilence)
		j.agents[1].reports(t, 1, why)
	})
	t.Run("ranks", func(t *testing.T) {
		t.Parallel()
		j, hosts := running(t, netns.Options{MTU: 9000})
		swallow(hosts[0])
		j.fails(2*afterSilence, 1, `rank \d.* on host[01].*`+why+` 9000 bytes`)
	})
}

func swallow(h *netns.Host) {
	h.Lose(netns.Sent, netns.Longer(1500))
	h.Lose(netns.Received, netns.Longer(1500))
}
