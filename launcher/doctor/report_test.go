package doctor

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	find := func(s Severity, host, what string) Finding {
		return Finding{Check: "mtu", Severity: s, Where: Where{Host: host, Interface: "eth0", Peer: "c"}, What: what, Evidence: "it was seen", Fix: "mend it"}
	}
	a := Examination{Findings: []Finding{find(Note, "a", "one"), find(Warning, "a", "two")}}
	b := Examination{Findings: []Finding{find(Error, "b", "three")}, Unseen: []Unseen{{"gdr", "b", "no GPU"}}}
	r := NewReport([]string{"a", "b"}, a, b)
	var text, js bytes.Buffer
	if err := r.WriteText(&text, false); err != nil {
		t.Fatal(err)
	}
	const want = `ERROR [mtu] b eth0 to c: three
  seen: it was seen
  fix:  mend it

WARNING [mtu] a eth0 to c: two
  seen: it was seen
  fix:  mend it

NOTE [mtu] a eth0 to c: one
  seen: it was seen
  fix:  mend it

not looked at:
  gdr on b: no GPU

a, b: 2 findings: 1 error, 1 warning; 1 note
`
	if text.String() != want {
		t.Errorf("text:\n%s", text.String())
	}
	if err := r.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(js.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Findings) != 3 || back.Findings[0] != r.Findings[0] || back.Status() != 2 {
		t.Errorf("JSON:\n%s", js.String())
	}
}

func TestStatus(t *testing.T) {
	r := NewReport([]string{"a"})
	if r.Status() != 0 || !strings.HasPrefix(r.summary(), "no findings") {
		t.Errorf("status %d, %s", r.Status(), r.summary())
	}
	r.Findings = make([]Finding, 300) // notes
	if r.Status() != 0 {
		t.Errorf("notes alone: status %d", r.Status())
	}
	for i := range r.Findings {
		r.Findings[i].Severity = Warning
	}
	if r.Status() != MaxStatus {
		t.Errorf("300 warnings: status %d", r.Status())
	}
}

// docs/doctor.md names every check.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"meeting", "dials", "ports", "mtu", "clock"}
	for _, c := range checks() {
		names = append(names, c.name())
	}
	for _, p := range properties() {
		names = append(names, p.check)
	}
	for _, name := range names {
		if !strings.Contains(string(text), "| `"+name+"`") && !strings.Contains(string(text), ", `"+name+"`") {
			t.Errorf("docs/doctor.md has no row for %s", name)
		}
	}
}
