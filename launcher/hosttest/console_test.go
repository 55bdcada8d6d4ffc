package hosttest

import (
	"bytes"
	"regexp"
	"sync"
	"time"
)

// console keeps what a command prints.
type console struct {
	mu      sync.Mutex // guards what follows
	text    []byte
	changed chan struct{} // closed at the next write
}

func newConsole() *console { return &console{changed: make(chan struct{})} }

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, b...)
	close(c.changed)
	c.changed = make(chan struct{})
	return len(b), nil
}

func (c *console) String() string {
	text, _ := c.look()
	return string(text)
}

func (c *console) look() (text []byte, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.text), c.changed
}

// await waits until pattern is there, until over, or until the time is up.
func (c *console) await(pattern string, over <-chan struct{}, within time.Duration) bool {
	want, late := regexp.MustCompile(pattern), time.After(within)
	for {
		text, changed := c.look()
		if want.Match(text) {
			return true
		}
		select {
		case <-changed:
		case <-over:
			text, _ = c.look()
			return want.Match(text)
		case <-late:
			return false
		}
	}
}
