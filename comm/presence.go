package comm

import (
	"context"
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
)

// presence tells when processes of other ranks on this host end. The transports of
// host memory notice that themselves; a kernel on the GPU waits for a lost rank until
// it is aborted.
type presence struct {
	fds   []unix.PollFd // pidfds, which become readable when the process ends
	ranks []int         // whose processes they are
}

// watch opens what there is to watch. It is best done while all ranks are known to
// live.
func (g *Group) watch() {
	me := g.members[g.o.Rank]
	for r, m := range g.members {
		if m.Key != me.Key || m.PID == me.PID {
			continue // on another host, or a goroutine of this process
		}
		fd, err := unix.PidfdOpen(m.PID, 0)
		if err != nil {
			g.o.Logger.Debug("comm: a process cannot be watched; that it ends shows in the timeout of calls on GPU memory",
				"group", g.o.Name, "rank", g.o.Rank, "peer", r, "pid", m.PID, "err", err)
			continue
		}
		g.present.fds = append(g.present.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		g.present.ranks = append(g.present.ranks, r)
	}
}

// ended is a rank whose process has ended since the last call, -1 if there is none.
func (p *presence) ended() int {
	if len(p.fds) == 0 {
		return -1
	}
	if n, err := unix.Poll(p.fds, 0); err != nil || n == 0 {
		return -1 // interrupted: the next look finds it
	}
	for i, fd := range p.fds {
		if fd.Revents != 0 {
			r := p.ranks[i]
			unix.Close(int(fd.Fd))
			p.fds = append(p.fds[:i], p.fds[i+1:]...)
			p.ranks = append(p.ranks[:i], p.ranks[i+1:]...)
			return r
		}
	}
	return -1
}

func (p *presence) close() {
	for _, fd := range p.fds {
		unix.Close(int(fd.Fd))
	}
	*p = presence{}
}

// lost is the error of a rank whose process has ended, nil if it had closed the group
// before.
func (a *alarm) lost(rank int) error {
	ctx, cancel := context.WithTimeout(a.life, agreeWithin)
	defer cancel()
	b, err := a.store.Get(ctx, a.at(rank))
	var p Position
	if err == nil && json.Unmarshal(b, &p) == nil && p.Closed {
		return nil
	}
	m := a.g.members[rank]
	return &transport.PeerError{Peer: rank, Host: m.Host, Err: fmt.Errorf("its process %d has ended, and had not closed the group", m.PID)}
}
