package tcp

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// silence is how long a host may leave sent data unacknowledged. Its kernel
	// answers even where the process sleeps, so silence means that it is down or cut off.
	silence = 8 * time.Second
	// watchEvery is how often the connections are looked at.
	watchEvery = time.Second
	// answersWithin is how long a host may take for a new connection.
	answersWithin = time.Second
)

// tune sets the options of a connection. Keepalive finds a dead host while nothing
// is sent. TCP_USER_TIMEOUT also counts the time during which a live peer has no
// room for more, so it has to be as long as a rank may be late; routineWatch finds
// dead hosts sooner.
//
// Within a host nothing is lost and nothing congested: reno, which every Linux
// allows, leaves such a connection alone, where the system's choice may pace it
// (bbr costs a fifth of the throughput over loopback).
func (m *Mesh) tune(c *net.TCPConn, peer int) error {
	err := errors.Join(c.SetNoDelay(true), c.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: silence / 2, Interval: silence / 8, Count: 4}))
	if err != nil {
		return err
	}
	return control(c, func(fd int) error {
		if m.o.Peers[peer].Near {
			if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
				return fmt.Errorf("choosing the congestion control: %w", err)
			}
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int((m.o.Timeout + silence).Milliseconds()))
	})
}

func control(c *net.TCPConn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// routineWatch looks for peers whose host has stopped to acknowledge. One per
// mesh, started by Join; ends with the mesh.
func (m *Mesh) routineWatch() {
	defer m.routines.Done()
	type progress struct {
		acked uint64
		since time.Time
	}
	seen := map[net.Conn]progress{}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.life.Done():
			return
		}
		now, before := time.Now(), seen
		seen = map[net.Conn]progress{}
		for c, peer := range m.open() {
			var info *unix.TCPInfo
			err := control(c.(*net.TCPConn), func(fd int) (err error) {
				info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
				return err
			})
			if err != nil {
				continue // closed in this moment; its reader says why
			}
			p, known := before[c]
			if !known || info.Unacked == 0 || info.Bytes_acked != p.acked {
				p = progress{info.Bytes_acked, now}
			}
			seen[c] = p
			if quiet := now.Sub(p.since); quiet > silence {
				m.lost(m.peerError(peer, fmt.Errorf("its host has acknowledged nothing for %s: %s", quiet.Round(time.Second), m.unanswered(c.(*net.TCPConn), int(info.Pmtu)))))
				return
			}
		}
	}
}

// outstanding is how many bytes have been written and not been acknowledged.
func outstanding(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.SIOCOUTQ) }

// smallEnough is the data, in bytes, that a packet carries on any path.
const smallEnough = 536

// unanswered says why what was sent on c has no answer. A host that is down or cut
// off takes no new connection either. To make one small packets suffice.
func (m *Mesh) unanswered(c *net.TCPConn, mtu int) string {
	d := net.Dialer{Timeout: answersWithin, LocalAddr: &net.TCPAddr{IP: c.LocalAddr().(*net.TCPAddr).IP}}
	again, err := d.DialContext(m.life, "tcp", c.RemoteAddr().String())
	if err == nil {
		again.Close()
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		return "it is down or cut off"
	}
	waiting := 0
	err = control(c, func(fd int) (err error) {
		waiting, err = outstanding(fd)
		return err
	})
	if err != nil || waiting <= smallEnough {
		return "it takes new connections, but this one is cut: look for a firewall that forgets or drops it"
	}
	return fmt.Sprintf("small messages arrive, large ones do not: the path's MTU is smaller than the interface's %d bytes, and the ICMP that should say so is dropped: set the interface's MTU to the path's on all hosts", mtu)
}
