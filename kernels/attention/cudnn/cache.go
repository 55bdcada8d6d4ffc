package cudnn

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// cache keeps compiled plans on disk, beside the compiled kernels: one takes up to
// two seconds to make and two milliseconds to restore. What a plan depends on is
// its key, for nothing is known of plans restored under another version of cuDNN or
// of the driver, or on another card.
type cache struct {
	folder string // "" where there is none
	cudnn  string // "9.14.0"
	driver string // "13.0 580.159.03"
	card   string // "NVIDIA H200, 132 multiprocessors"
}

// entry is a file of the cache. Sum guards the plan, which holds machine code.
type entry struct {
	CuDNN  string `json:"cudnn"`
	Driver string `json:"driver"`
	Card   string `json:"card"`
	Graph  string `json:"graph"`
	Sum    string `json:"sha256"`
	Plan   string `json:"plan"`
}

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// key is the entry that a plan of g must have, but for the plan.
func (c *cache) key(g *graph) entry {
	return entry{CuDNN: c.cudnn, Driver: c.driver, Card: c.card, Graph: g.String()}
}

func (e entry) path(folder string) string {
	name := fmt.Sprintf("%q", []string{e.CuDNN, e.Driver, e.Card, e.Graph})
	return filepath.Join(folder, "cudnn-"+digest([]byte(name))[:32]+".json")
}

// find returns the text of a plan of g. A file that is missing, damaged or of
// another key is a miss.
func (c *cache) find(g *graph) (text []byte, ok bool) {
	if c.folder == "" {
		return nil, false
	}
	want := c.key(g)
	data, err := os.ReadFile(want.path(c.folder))
	if err != nil {
		return nil, false
	}
	var e entry
	if json.Unmarshal(data, &e) != nil || digest([]byte(e.Plan)) != e.Sum {
		return nil, false
	}
	want.Sum, want.Plan = e.Sum, e.Plan
	return []byte(e.Plan), e == want
}

// keep writes the text of a plan of g. Processes may do so at once: each renames a
// finished file of its own into place.
func (c *cache) keep(g *graph, text []byte) error {
	e := c.key(g)
	e.Sum, e.Plan = digest(text), string(text)
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.folder, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(c.folder, "cudnn-*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(f.Name(), e.path(c.folder))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is what matters
	}
	return err
}
