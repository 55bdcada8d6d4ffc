// Package checkpoint keeps the files of one checkpoint in one folder, so that a
// folder either holds all of them, whole, or does not count.
//
//	d, err := checkpoint.Begin(root, step)           // root/step-00000100.tmp-<random>
//	defer d.Discard()                                // no effect once published
//	err = d.WriteFile("model.safetensors", fill)     // size and checksum recorded
//	c, err := d.Publish(meta, otherRanksEntries...)  // manifest, sync, rename
//
// Several ranks may write into one draft: one begins it and sends Path to the
// others; they Join, write, and send their Entries back; the first publishes. How
// the path and the entries travel is the caller's affair, and so is that nobody
// writes any more when Publish is called.
//
// Tensors may lie in pieces in the files of several ranks: an Index says where, and
// Checkpoint.Tensors reads any elements of them, on any number of ranks.
//
// The newest checkpoint is the highest step that verifies. There is no pointer file
// that could say otherwise.
package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// Ref is a published folder, not verified.
type Ref struct {
	Step int64
	Dir  string
}

var (
	published = regexp.MustCompile(`^step-([0-9]{8,18})$`)
	temporary = regexp.MustCompile(`^step-([0-9]{8,18})\.tmp-[A-Za-z0-9]+$`)
)

func folder(step int64) string { return fmt.Sprintf("step-%08d", step) }

// stepOf reads the step from a published folder's name.
func stepOf(name string) (int64, bool) {
	m := published.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	step, err := strconv.ParseInt(m[1], 10, 64)
	return step, err == nil && folder(step) == name // 18 digits fit; "step-000000100" is not ours
}

// List returns the published folders under root, lowest step first. A root that
// does not exist has none.
func List(root string) ([]Ref, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var refs []Ref
	for _, e := range entries {
		if step, ok := stepOf(e.Name()); ok && e.IsDir() {
			refs = append(refs, Ref{step, filepath.Join(root, e.Name())})
		}
	}
	slices.SortFunc(refs, func(a, b Ref) int { return cmp.Compare(a.Step, b.Step) })
	return refs, nil
}

// reached tells tests how far a save has come, so that they can kill it there.
var reached = func(stage string) {}
