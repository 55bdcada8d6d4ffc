package cudnn

import (
	"strings"
	"testing"
)

func TestTheFirstEngineThatServesIsTaken(t *testing.T) {
	g := forward(whole(1, 64, 2, 1, 64))
	for _, c := range []struct {
		name                     string
		a, fallback, bad, random int
		workspace                int64
		from, says               string // of the plan, of the error
		refused                  int
	}{
		{name: "first", a: 3, fallback: 1, from: "engine 0"},
		{name: "second", a: 3, fallback: 1, bad: 1, from: "engine 1", refused: 1},
		{name: "not deterministic", a: 3, fallback: 1, random: 2, from: "engine 2", refused: 2},
		{name: "fallback", a: 2, fallback: 2, bad: 2, from: "engine 10", refused: 2},
		{name: "only fallback", a: 0, fallback: 1, from: "engine 10"},
		{name: "none works", a: 2, fallback: 1, bad: 99, says: "engine 10: finalize a CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: CUDNN_STATUS_NOT_SUPPORTED (3000): engine 10 cannot"},
		{name: "none offered", says: "offers no engine"},
		{name: "too much memory", a: 1, fallback: 1, workspace: 1 << 20, says: "engine 0: wants a workspace of 1048576 bytes, more than the 65536"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := openFake(t)
			s := f.session(t)
			f.engines(c.a, c.fallback, c.bad, c.random)
			if c.workspace > 0 {
				f.workspace(c.workspace)
			}
			p, err := s.build(g, forwardWorkspace())
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("error %v, want one of %q", err, c.says)
				}
				if n := f.live(); n != 1 {
					t.Errorf("%d handles and descriptors live", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.from != c.from || len(p.refused) != c.refused || p.workspace != 256 || f.live() != 2 {
				t.Errorf("plan of %s in %d bytes after %q, %d live", p.from, p.workspace, p.refused, f.live())
			}
		})
	}
}

func TestAPlanIsRestoredFromItsText(t *testing.T) {
	f := openFake(t)
	s := f.session(t)
	g := backward(whole(1, 64, 2, 1, 64))
	most := whole(1, 64, 2, 1, 64).backwardWorkspace()
	p, err := s.build(g, most)
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.text(p)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) == 0 || text[len(text)-1] != '}' {
		t.Fatalf("the text is %q", text)
	}
	q, err := s.restore(g, text, most)
	if err != nil {
		t.Fatal(err)
	}
	everywhere := func(string) uintptr { return 16 }
	if err := s.execute(q, everywhere, 32); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]string{"cut": string(text[:len(text)-3]), "other": "{}", "empty": ""} {
		before := f.live()
		if _, err := s.restore(g, []byte(bad), most); err == nil {
			t.Errorf("a plan came from %s text", name)
		}
		if f.live() != before {
			t.Errorf("%s text left %d descriptors", name, f.live()-before)
		}
	}
	if _, err := s.restore(g, text, 255); err == nil {
		t.Error("a plan is restored that takes more memory than it may")
	}
}
