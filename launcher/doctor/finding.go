package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// Severity orders findings.
type Severity int

// The severities. Warnings and errors count in the exit status.
const (
	Note    Severity = iota // worth knowing; nothing to mend
	Warning                 // a job may be slow, or fail later
	Error                   // a job will fail, or hang
)

var severities = []string{"note", "warning", "error"}

func (s Severity) String() string { return severities[s] }

// MarshalJSON writes the severity's name.
func (s Severity) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads it.
func (s *Severity) UnmarshalJSON(b []byte) error {
	var name string
	if err := json.Unmarshal(b, &name); err != nil {
		return err
	}
	i := slices.Index(severities, name)
	if i < 0 {
		return fmt.Errorf("severity %q: want one of %v", name, severities)
	}
	*s = Severity(i)
	return nil
}

// Where is what a finding is about; empty fields do not apply.
type Where struct {
	Host      string `json:"host"`
	Device    string `json:"device,omitempty"`    // a GPU, an RDMA device, a PCI address
	Interface string `json:"interface,omitempty"` // of the network
	Peer      string `json:"peer,omitempty"`      // the other host
}

func (w Where) String() string {
	s := w.Host
	for _, part := range []string{w.Interface, w.Device} {
		if part != "" {
			s += " " + part
		}
	}
	if w.Peer != "" {
		s += " to " + w.Peer
	}
	return s
}

// Finding is one thing that is not as it should be, or is worth knowing.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Where    Where    `json:"where"`
	What     string   `json:"what"`          // a sentence
	Evidence string   `json:"evidence"`      // what was seen, and where
	Fix      string   `json:"fix,omitempty"` // what to do; a note may have none
}

// worstFirst orders findings for people.
func worstFirst(list []Finding) {
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Where.Host, b.Where.Host),
			cmp.Compare(a.Check, b.Check), cmp.Compare(a.Where.Peer, b.Where.Peer))
	})
}

// Unseen is a check that could not be made, or does not apply.
type Unseen struct {
	Check string `json:"check"`
	Host  string `json:"host"`
	Why   string `json:"why"`
}
