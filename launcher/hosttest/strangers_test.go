package hosttest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

func TestWrongToken(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{})
	l := launch{hosts: hosts, args: append([]string{"--join-timeout", "8s"}, endless(t)...), token: []string{"right", "wrong"}}
	j := start(t, l)
	j.wait(afterSilence)
	j.agents[0].reports(t, 1, `within 8s these node ranks have not come: 1`)
	j.agents[1].reports(t, 1, `refuses the job token`)
}

// Two jobs on the same hosts know nothing of each other.
func TestTwoJobs(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{})
	at := net.JoinHostPort(hosts[0].Addr.String(), "29500")
	one, two := t.TempDir(), t.TempDir()
	a := start(t, launch{hosts: hosts, args: tiny(t, one, steps)})
	b := start(t, launch{hosts: hosts, args: tiny(t, two, steps), rdzv: at})
	a.succeeds(patience)
	b.succeeds(patience)
	same(t, losses(t, one), losses(t, two))
}

// A second job at the same port, or with the same output folder, is refused; the
// first goes on.
func TestTaken(t *testing.T) {
	t.Parallel()
	hosts, output := netns.New(t, netns.Options{}), t.TempDir()
	l := launch{hosts: hosts, args: tiny(t, output, 1_000_000)}
	j := start(t, l)
	j.agents[0].await(t, "step +1/")
	port := start(t, launch{hosts: hosts[:1], args: append([]string{"--nnodes", "2", "--rdzv", "host0:29400"}, endless(t)...)})
	port.fails(afterDeath, 1, `cannot listen on port 29400: .*address already in use`)
	folder := start(t, launch{hosts: hosts[:1], args: tiny(t, output, steps)})
	folder.fails(afterDeath, 1, `output folder .*: another job is writing it \(job .*host0`)
	j.signalAgent(0, unix.SIGTERM)
	j.fails(afterDeath, 143, `ended by SIGTERM`)
}

// Whoever connects to any port of a job and says anything, or nothing, is shown
// out, and the job goes on.
func TestGarbage(t *testing.T) {
	t.Parallel()
	hosts, output := netns.New(t, netns.Options{}), t.TempDir()
	j := start(t, launch{hosts: hosts, args: tiny(t, output, 1_000_000, "comm.transport=tcp", "eval.every=1", "eval.steps=1")})
	j.agents[0].await(t, "step +1/")
	noise := make([]byte, 100<<10)
	rand.Read(noise)
	ports, strangers := 0, []net.Conn{}
	for i, h := range hosts {
		for _, s := range sockets(t, h) {
			if !s.listens {
				continue
			}
			ports++
			from, to := hosts[1-i], netip.AddrPortFrom(h.Addr, s.local.Port())
			if s.local.Addr().IsLoopback() {
				from, to = h, s.local
			}
			for _, say := range []string{"", "GET / HTTP/1.1\r\n\r\n", "gorun-t1", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", string(noise)} {
				c, err := visit(from, to, say)
				if err != nil {
					t.Errorf("%s from %s: %v", to, from.Name, err)
					continue
				}
				defer c.Close()
				strangers = append(strangers, c)
			}
		}
	}
	if ports != 5 { // the store, and each rank's
		t.Errorf("%d ports listen, want 5", ports)
	}
	for _, c := range strangers {
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a stranger at %s is still there", c.RemoteAddr())
		}
	}
	j.agents[0].await(t, fmt.Sprintf("step +%d/", len(losses(t, output))+20))
	j.signalAgent(1, unix.SIGTERM)
	j.fails(afterDeath, 143, `ended by SIGTERM`)
}

// visit connects from a host and says something, which may be cut short.
func visit(from *netns.Host, to netip.AddrPort, say string) (c net.Conn, err error) {
	err = from.In(func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), patience)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.SetWriteDeadline(time.Now().Add(patience))
	c.Write([]byte(say))
	return c, nil
}
