// Package doctor looks for what makes distributed jobs slow, hang or fail, and says
// what to do about it: on one host (Examine), between hosts (Meeting), and in what
// tells hosts apart (Compare).
//
// Each thing that it looks at is a small type in a file of its own. Files are read
// below Machine.Root, so that a test can make any machine of a few text files.
//
//	finding.go, report.go   what is found, and how it is told
//	machine.go, network.go  the host as files and calls show it
//	meeting.go              how hosts find each other for the probes between them
//	probe_*.go              the probes: dials, ports, long packets, clocks
//	compare.go              what differs between the hosts' inventories
package doctor

import (
	"context"
	"time"
)

// localBound is how long the checks of one host may take in all. What a check waits
// for outside of this process, a name's lookup or a GPU, ends with it.
const localBound = 45 * time.Second

// check is one thing that doctor looks at on a host.
type check interface {
	// name is how findings call it.
	name() string
	// look returns what it finds. An error says why it could not look, or need not:
	// it is reported as such, beside what was found.
	look(ctx context.Context, m *Machine) ([]Finding, error)
}

// checks are those of one host, in the order in which they run.
func checks() []check {
	return []check{
		interfaces{}, hostname{}, variables{},
		descriptors{}, sharedMemory{}, lockedMemory{},
		governors{}, quota{},
		verbs{}, gdr{}, acs{}, iommu{}, p2p{},
	}
}

// Examination is what a host's own checks saw.
type Examination struct {
	Findings []Finding `json:"findings"`
	Unseen   []Unseen  `json:"unseen"` // in the order of the checks
}

// Examine runs all checks of one host, one after the other, within a minute.
func Examine(ctx context.Context, m *Machine) Examination {
	ctx, cancel := context.WithTimeout(ctx, localBound)
	defer cancel()
	var e Examination
	for _, c := range checks() {
		found, err := c.look(ctx, m)
		for _, f := range found {
			f.Check, f.Where.Host = c.name(), m.Name
			e.Findings = append(e.Findings, f)
		}
		if err != nil {
			e.Unseen = append(e.Unseen, Unseen{Check: c.name(), Host: m.Name, Why: err.Error()})
		}
	}
	return e
}
