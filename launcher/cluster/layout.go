// Package cluster joins the agents of a job, one a node: who they are, which
// ranks each holds, and what happened to any of them.
package cluster

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
