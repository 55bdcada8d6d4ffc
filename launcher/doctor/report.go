package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// MaxStatus bounds the exit status by which findings are counted, and Failed is that
// of a doctor that could not do its work.
const (
	MaxStatus = 100
	Failed    = 125
)

// Report is all that doctor has to say.
type Report struct {
	Hosts    []string  `json:"hosts"`
	Findings []Finding `json:"findings"` // worst first
	Unseen   []Unseen  `json:"unseen"`
	Dials    []Dial    `json:"dials,omitempty"` // every probe of an address of another host
	Pings    []Ping    `json:"pings,omitempty"` // every exchange over RDMA, from both ends
}

// NewReport puts together what was seen.
func NewReport(hosts []string, seen ...Examination) *Report {
	r := &Report{Hosts: hosts, Findings: []Finding{}, Unseen: []Unseen{}}
	for _, e := range seen {
		r.Findings = append(r.Findings, e.Findings...)
		r.Unseen = append(r.Unseen, e.Unseen...)
	}
	worstFirst(r.Findings)
	return r
}

// Status is the exit status: the number of warnings and errors, at most MaxStatus.
func (r *Report) Status() int {
	return min(r.count(Warning)+r.count(Error), MaxStatus)
}

func (r *Report) count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// WriteJSON writes the report as one object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// WriteText writes a paragraph for each finding, what was not looked at, and a line
// that counts. verbose adds the dials and pings.
func (r *Report) WriteText(w io.Writer, verbose bool) error {
	var b strings.Builder
	for _, f := range r.Findings {
		f.write(&b)
	}
	if verbose {
		writeDials(&b, r.Dials)
		writePings(&b, r.Pings)
	}
	if len(r.Unseen) > 0 {
		b.WriteString("not looked at:\n")
		for _, u := range r.Unseen {
			fmt.Fprintf(&b, "  %s on %s: %s\n", u.Check, u.Host, u.Why)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%s: %s\n", hostList(r.Hosts), r.summary())
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) summary() string {
	notes := plural(r.count(Note), "note")
	n := r.count(Warning) + r.count(Error)
	if n == 0 && r.count(Note) == 0 {
		return "no findings"
	}
	if n == 0 {
		return "no findings; " + notes
	}
	s := fmt.Sprintf("%s: %s, %s", plural(n, "finding"), plural(r.count(Error), "error"), plural(r.count(Warning), "warning"))
	if r.count(Note) > 0 {
		s += "; " + notes
	}
	return s
}

func (f *Finding) write(b *strings.Builder) {
	fmt.Fprintf(b, "%s [%s] %s: %s\n", strings.ToUpper(f.Severity.String()), f.Check, f.Where, f.What)
	fmt.Fprintf(b, "  seen: %s\n", f.Evidence)
	if f.Fix != "" {
		fmt.Fprintf(b, "  fix:  %s\n", f.Fix)
	}
	b.WriteString("\n")
}

// hostList names a few hosts, or says how many there are.
func hostList(hosts []string) string {
	if len(hosts) > 8 {
		return plural(len(hosts), "host")
	}
	return strings.Join(hosts, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
