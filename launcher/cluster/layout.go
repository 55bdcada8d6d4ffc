// Package cluster joins the agents of a job, one a node: who they are, which
// ranks each holds, and what happened to any of them.
package cluster

import "fmt"

// Node is one agent's host.
type Node struct {
	Index  int    `json:"index"` // --node-rank
	Host   string `json:"host"`
	BootID string `json:"boot_id"`
	NProc  int    `json:"nproc"` // workers here; may differ from node to node
	Addr   string `json:"addr"`  // IP address by which it reaches node 0
}

// Layout is the job as every agent sees it. It does not change between attempts.
type Layout struct {
	Job        string
	Self       int // index of this agent's node
	Nodes      []Node
	MasterAddr string // node 0 as the others reach it
	MasterPort int    // free on node 0 when the agents joined; left to the program
	StoreAddr  string // host:port of the store
}

// World is the number of ranks.
func (l *Layout) World() int {
	n := 0
	for _, node := range l.Nodes {
		n += node.NProc
	}
	return n
}

// Base is the first rank of a node: ranks follow the order of the nodes.
func (l *Layout) Base(node int) int {
	n := 0
	for _, other := range l.Nodes[:node] {
		n += other.NProc
	}
	return n
}

// Failure is why an attempt ends: a worker that died, a node that went silent,
// or the user's signal.
type Failure struct {
	Kind      Kind   `json:"kind"`
	Node      int    `json:"node"`
	Host      string `json:"host"`
	Rank      int    `json:"rank"` // -1 where no worker is at fault
	LocalRank int    `json:"local_rank"`
	PID       int    `json:"pid,omitempty"`
	Code      int    `json:"code"`          // exit status that the whole job ends with
	Cause     string `json:"cause"`         // "exit status 3", "killed by SIGKILL", "interrupted by SIGINT"
	Message   string `json:"message"`       // first line of a panic, last of a traceback; may be empty
	Log       string `json:"log,omitempty"` // the worker's stderr.log, on its host
	Started   bool   `json:"started"`       // false: the program could not be started, so restarting is no use
}

// Kind tells failures apart.
type Kind string

// The kinds of Failure.
const (
	WorkerFailed Kind = "worker"
	NodeLost     Kind = "node"
	UserSignal   Kind = "signal"
)

// String names the failure in one line.
func (f *Failure) String() string {
	s := f.Cause
	if f.Kind == WorkerFailed {
		s = fmt.Sprintf("rank %d failed first: %s (host %s, local rank %d", f.Rank, f.Cause, f.Host, f.LocalRank)
		if f.PID != 0 {
			s += fmt.Sprintf(", pid %d", f.PID)
		}
		s += ")"
	}
	if f.Message != "" {
		s += ": " + f.Message
	}
	if f.Log != "" {
		s += "; see " + f.Log
	}
	return s
}
