package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestStdMap(t *testing.T) {
	for _, c := range []struct {
		in   string
		want [3]Std
	}{
		{"", [3]Std{}}, {"0", [3]Std{}}, {"3", [3]Std{3, 3, 3}}, {"1", [3]Std{1, 1, 1}},
		{"0:1,2:3", [3]Std{1, 0, 3}}, {" 1 : 2 ", [3]Std{0, 2, 0}},
	} {
		m, err := ParseStdMap(c.in)
		if got := [3]Std{m.Of(0), m.Of(1), m.Of(2)}; err != nil || got != c.want {
			t.Errorf("%q: %v, %v; want %v", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"4", "-1", "x", "0:", "0:1,", "a:1", "0:9", "0:1,0:2"} {
		if _, err := ParseStdMap(in); err == nil {
			t.Errorf("%q is no error", in)
		}
	}
}

func TestShown(t *testing.T) {
	parse := func(s string) StdMap {
		m, err := ParseStdMap(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	s := Spec{Redirects: parse("0:1,1:3"), Tee: parse("1:2"), Filter: map[int]bool{0: true, 1: true}}
	if got := []Std{s.shown(0), s.shown(1), s.shown(2)}; !slices.Equal(got, []Std{Stderr, Stderr, 0}) {
		t.Errorf("shown: %v", got)
	}
}

func TestTail(t *testing.T) {
	var w tail
	var all strings.Builder
	all.WriteString("panic: first [recovered]\n")
	for i := range 200 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	all.WriteString(strings.Repeat("y", 3*tailLineLen) + "\n\xff no end")
	for chunk := range slices.Chunk([]byte(all.String()), 777) {
		w.Write(chunk)
	}
	lines := w.lines()
	if len(lines) != tailLines || lines[0] != "line 152" || lines[48] != strings.Repeat("y", tailLineLen) || lines[49] != "\uFFFD no end" {
		t.Errorf("%d lines: %.20q ... %.20q, %q", len(lines), lines[0], lines[48], lines[49])
	}
	if w.message() != "panic: first [recovered]" {
		t.Errorf("message %q", w.message())
	}
	w = tail{}
	w.Write([]byte("SIGSEGV: segmentation violation\nPC=0x4960a1 m=0\n\ngoroutine 0 [idle]:\n\nfs     0x0\ngs     0x0\n"))
	if w.message() != "SIGSEGV: segmentation violation" {
		t.Errorf("message %q of a program that a signal has ended", w.message())
	}
}

// A dead worker's output is awaited until it is there, or for so many turns.
func TestLastWordsAreHeard(t *testing.T) {
	for _, late := range []bool{false, true} {
		o := &output{drained: make(chan struct{})}
		turns, heard := make(chan time.Time), make(chan struct{})
		go func() {
			o.hear(turns)
			close(heard)
		}()
		for range lastWords - 1 {
			select {
			case turns <- time.Time{}:
			case <-heard:
				t.Fatal("it has not waited for all its turns")
			}
		}
		if late {
			turns <- time.Time{}
		} else {
			close(o.drained)
		}
		<-heard
	}
}

func TestParseNProc(t *testing.T) {
	if n, err := ParseNProc("2"); n != 2 || err != nil {
		t.Error(n, err)
	}
	for _, s := range []string{"", "0", "-3", "two", "1e3", "99999999"} {
		if n, err := ParseNProc(s); err == nil {
			t.Errorf("%q: %d", s, n)
		}
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	if _, err := ParseNProc("gpu"); err == nil {
		t.Error("gpu without a visible one is no error")
	}
}
