package cluster

import (
	"fmt"
	"net"
	"os"

	"github.com/gorun-dev/gorun/comm/store"
)

// Solo is a job on one node. It serves the workers' store on loopback.
type Solo struct {
	layout  Layout
	server  *store.Server
	failure *Failure // the first of this attempt
}

// NewSolo starts the store of a job with nproc workers. masterPort is left to the
// program; 0 takes a free one. Close ends the store.
func NewSolo(job, token string, nproc, masterPort int) (*Solo, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("this host's name: %w", err)
	}
	if err := reachesItself("127.0.0.1"); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("a port for the store: %w", err)
	}
	if masterPort == 0 {
		if masterPort, err = FreePort("127.0.0.1"); err != nil {
			return nil, err
		}
	}
	s := &Solo{
		server: store.Serve(l, store.ServerOptions{Token: token}),
		layout: Layout{
			Job: job, MasterAddr: "127.0.0.1", MasterPort: masterPort, StoreAddr: l.Addr().String(),
			Nodes: []Node{{Host: host, BootID: BootID(), NProc: nproc, Addr: "127.0.0.1"}},
		},
	}
	return s, nil
}

// Layout is the one node.
func (s *Solo) Layout() *Layout { return &s.layout }

// Begin opens an attempt and closes the one before to its workers.
func (s *Solo) Begin(attempt int) (<-chan Failure, error) {
	if attempt > 0 {
		s.server.Retire(s.layout.Job, attempt-1)
	}
	s.failure = nil
	return nil, nil // there is nobody else to report
}

// Report keeps the first failure of the attempt.
func (s *Solo) Report(f Failure) {
	if s.failure == nil {
		s.failure = &f
	}
}

// Conclude delivers whose failure it was, or nil.
func (s *Solo) Conclude(_ int, workers []Failure) <-chan *Failure {
	verdict := make(chan *Failure, 1)
	verdict <- culprit(s.failure, workers)
	return verdict
}

// Close ends the store.
func (s *Solo) Close() error { return s.server.Close() }
