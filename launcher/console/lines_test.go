package console

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newTest(t *testing.T) (*Console, func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return New(f, f), func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

// However a stream is cut into chunks, the lines are the same.
func TestLinesAnyChunks(t *testing.T) {
	const in = "a\n\nbb\r\nccc\rdddd\r\r\nlast"
	const want = "> a\n> \n> bb\n> ccc\n> dddd\n> \n> last\n"
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		c, got := newTest(t)
		l := c.Lines(false, "> ")
		for rest := []byte(in); len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			if k, err := l.Write(rest[:n]); k != n || err != nil {
				t.Fatal(k, err)
			}
			rest = rest[n:]
		}
		l.Flush()
		if got() != want {
			t.Fatalf("got %q, want %q", got(), want)
		}
	}
}

// A line without an end does not grow without a bound.
func TestLinesLong(t *testing.T) {
	c, got := newTest(t)
	l := c.Lines(false, "> ")
	chunk := bytes.Repeat([]byte("x"), 300_000)
	for range 10 {
		l.Write(chunk)
		if cap(l.rest) > 4*maxLine {
			t.Fatalf("%d bytes are held", cap(l.rest))
		}
	}
	l.Flush()
	if n := strings.Count(got(), "x"); n != 10*len(chunk) {
		t.Errorf("%d bytes came out, %d went in", n, 10*len(chunk))
	}
}

func TestNoPrefixPassesBytes(t *testing.T) {
	c, got := newTest(t)
	l := c.Lines(false, "")
	l.Write([]byte("a\rb\x00"))
	if got() != "a\rb\x00" {
		t.Errorf("got %q", got())
	}
}

// The first write that fails is delivered, once.
func TestBroken(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	c := New(w, w)
	c.Notice("a")
	c.Notice("b")
	select {
	case <-c.Broken():
	default:
		t.Fatal("a closed pipe went unnoticed")
	}
	select {
	case err := <-c.Broken():
		t.Fatalf("delivered twice: %v", err)
	default:
	}
}
