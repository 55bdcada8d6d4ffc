package console

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gorun-dev/gorun/launcher/status"
)

// What the terminal echoes below the bar does not shift the next drawing.
func TestScreenStartsAtTheLeft(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "terminal"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &screen{out: f}
	for _, line := range []string{"step 1\n", "step 2\n"} {
		s.WriteString(line)
		if err := s.Flush(1); err != nil {
			t.Fatal(err)
		}
		f.WriteString("^C")
	}
	s.WriteString("the end\n")
	if err := s.Flush(0); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if want := "step 1\n^C\r\x1b[1A\x1b[Jstep 2\n^C\r\x1b[1A\x1b[Jthe end\n"; err != nil || string(b) != want {
		t.Errorf("drawn %q, want %q (%v)", b, want, err)
	}
}

// A bar leaves one line behind, its last state.
func TestBarIsTakenDown(t *testing.T) {
	c, got := newTest(t)
	c.out.terminal = true
	for step := 1; step <= 3; step++ {
		c.Show("", status.Event{Progress: &status.Progress{Step: step, Total: 9}})
	}
	c.Close()
	c.Notice("over")
	text := got()
	last := (&status.Progress{Step: 3, Total: 9}).Line() + "\ngorun: over\n"
	if n := len(text) - len(last); n < 0 || text[n:] != last {
		t.Errorf("%q does not end with %q", text, last)
	}
}
