package comm

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/shm"
)

// shared runs collectives through the memory of one host.
type shared struct {
	team    *shm.Team
	traffic *transport.Traffic
	equal   []int // counts of an AllToAll with equal parts
}

func (s *shared) abort(err error) { s.team.Abort(err) }
func (s *shared) stop()           {} // the team moves nothing outside of a call
func (s *shared) close() error    { return s.team.Close() }

// run counts as sent what this rank shows the others, and as received what it
// gets: memory is shared, so nothing else is moved.
func (s *shared) run(c *call) error {
	c.algorithm = Shared
	if s.team.Size() > 1 {
		s.traffic.Sent.Add(int64(len(c.src)))
	}
	if err := s.do(c); err != nil {
		return err
	}
	if s.team.Size() > 1 {
		s.traffic.Received.Add(int64(len(c.dst)))
	}
	return nil
}

func (s *shared) do(c *call) (err error) {
	switch c.Kind {
	case transport.AllReduce:
		return s.team.AllReduceInto(c.Call, c.dst, c.src)
	case transport.ReduceScatter:
		return s.team.ReduceScatter(c.Call, c.dst, c.src)
	case transport.AllGather:
		return s.team.AllGather(c.Call, c.dst, c.src)
	case transport.Broadcast:
		return s.team.Broadcast(c.Call, c.dst, int(c.Root))
	case transport.Reduce:
		return s.team.Reduce(c.Call, c.dst, c.src, int(c.Root))
	case transport.Gather:
		return s.team.Gather(c.Call, c.dst, c.src, int(c.Root))
	case transport.Scatter:
		return s.team.Scatter(c.Call, c.dst, c.src, int(c.Root))
	case transport.AllToAll:
		if c.sendCounts != nil {
			return s.team.AllToAllV(c.Call, c.dst, c.src, c.sendCounts, c.recvCounts)
		}
		s.equal = s.equal[:0]
		for range s.team.Size() {
			s.equal = append(s.equal, int(c.Count))
		}
		return s.team.AllToAllV(c.Call, c.dst, c.src, s.equal, s.equal)
	case transport.Send:
		if c.peer == int(c.Root) {
			return s.team.Send(c.Call, c.peer, c.src)
		}
		return s.team.Recv(c.Call, c.peer, c.dst)
	case transport.Barrier:
		return s.team.Barrier(c.Call)
	case transport.Alloc:
		if c.memory == nil {
			return s.team.Barrier(c.Call)
		}
		*c.memory, err = s.team.Alloc(int(c.Count))
		return err
	}
	return fmt.Errorf("no such collective: %s", c.Header)
}
