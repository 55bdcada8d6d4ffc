package comm

import (
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
)

// alone is the engine of a group of one rank: its collectives are copies.
type alone struct{}

func (alone) algorithm(*call) Algorithm { return Copy }
func (alone) String() string            { return "one rank: copies" }
func (alone) failed() error             { return nil }
func (alone) abort() error              { return nil }
func (alone) close() error              { return nil }

func (a alone) enqueue(s *cuda.Stream, c *call) (*cuda.Event, error) {
	return placed(s, a.make(s, c))
}

func (alone) make(s *cuda.Stream, c *call) error {
	if c.Kind != transport.Barrier && c.to.Addr() != c.from.Addr() {
		s.Copy(c.to, c.from)
	}
	return s.Err()
}
