package agent

import (
	"bytes"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	tailLines   = 50   // stderr lines kept for error.json
	tailLineLen = 4096 // bytes kept of each

	// recently is how long a program may take from its last words to its end. One that
	// prints an exception and goes on is taken for a dying one for so long.
	recently = 10 * time.Second
)

// tail remembers the last lines of a worker's stderr and what they say about
// its death.
type tail struct {
	mu        sync.Mutex // guards what follows
	ring      [tailLines]string
	n         int       // lines seen
	rest      []byte    // the line that has not ended yet, cut at tailLineLen
	panicLine string    // the last line that begins a Go panic, a fatal error, or the news of a signal
	lastWords time.Time // when the last panic or Python traceback began; zero before
}

// traceback begins what Python writes of an exception that nobody caught, torch with
// the rank before it.
var traceback = regexp.MustCompile(`^(\[rank\d+\]: ?)?Traceback \(most recent call last\):`)

// goSignal begins what Go's runtime writes where a signal from outside, or in C, ends the
// program: SIGSEGV: segmentation violation.
var goSignal = regexp.MustCompile(`^SIG[A-Z0-9]+: [a-z]`)

func (t *tail) Write(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			t.keep(b)
			return
		}
		t.keep(b[:end])
		t.line(string(t.rest))
		t.rest = t.rest[:0]
		b = b[end+1:]
	}
}

func (t *tail) keep(b []byte) {
	if room := tailLineLen - len(t.rest); len(b) > room {
		b = b[:room]
	}
	t.rest = append(t.rest, b...)
}

func (t *tail) line(s string) {
	if strings.HasPrefix(s, "panic: ") || strings.HasPrefix(s, "fatal error: ") || goSignal.MatchString(s) {
		t.panicLine, t.lastWords = s, time.Now()
	} else if traceback.MatchString(s) {
		t.lastWords = time.Now()
	}
	t.ring[t.n%tailLines] = s
	t.n++
}

// lines returns what is remembered, oldest first.
func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]string, 0, tailLines+1)
	for i := max(0, t.n-tailLines); i < t.n; i++ {
		out = append(out, valid(t.ring[i%tailLines]))
	}
	if len(t.rest) > 0 {
		out = append(out, valid(string(t.rest)))
	}
	return out[max(0, len(out)-tailLines):]
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// message is what the worker said about its end: a panic's first line, else its
// last words, which is where Python and most tools name the error.
func (t *tail) message() string {
	lines := t.lines()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.panicLine != "" {
		return valid(t.panicLine)
	}
	for i := len(lines) - 1; i >= 0; i-- {
		if s := strings.TrimSpace(lines[i]); s != "" {
			return s
		}
	}
	return ""
}

// dying says whether the worker had begun to say why it ends when the attempt broke,
// at most recently before.
func (t *tail) dying(broke time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.lastWords.IsZero() && !t.lastWords.After(broke) && broke.Sub(t.lastWords) < recently
}
