package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Prune deletes checkpoints under root until the newest that verifies and the
// keep-1 before it remain (keep is at least 1), and returns what it deleted. Before
// the first deletion it reads that newest one in full, as Open does, so nothing is
// given up for a checkpoint that cannot be read back; if none verifies, nothing is
// deleted. Folders that are incomplete do not count and go, save those newer than
// the newest complete one: they stay to be looked at. The checkpoints of the steps in
// stay, the best for instance, stay too, beside those that keep counts.
//
// Temporary folders whose writer is dead go as well. While a draft is open, none is
// touched.
func Prune(root string, keep int, moved Moved, stay ...int64) (deleted []string, err error) {
	if keep < 1 {
		return nil, fmt.Errorf("checkpoint: keep must be at least 1, not %d", keep)
	}
	stale, err := clearTemporary(root)
	if err != nil {
		return stale, err
	}
	refs, err := List(root)
	if err != nil || len(refs) <= keep {
		return stale, err
	}
	newest, _, err := Newest(root, moved)
	if errors.Is(err, ErrNone) {
		return stale, nil
	}
	if err != nil {
		return stale, err
	}
	deleted = stale
	kept := 1
	for _, r := range slices.Backward(refs) {
		if r.Step >= newest.Step || slices.Contains(stay, r.Step) {
			continue
		}
		if kept < keep {
			if _, err := Inspect(r.Dir); err == nil {
				kept++
				continue
			}
		}
		if err := remove(root, r.Dir); err != nil {
			return deleted, err
		}
		deleted = append(deleted, r.Dir)
	}
	return deleted, nil
}

// remove takes the folder's name away first: a half-deleted checkpoint must not
// look like a published one.
func remove(root, dir string) error {
	temp := filepath.Join(root, tempName(filepath.Base(dir)))
	if err := os.Rename(dir, temp); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	reached("pruning")
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// clearTemporary removes temporary folders, all of them: under the lock none has a
// writer.
func clearTemporary(root string) (cleared []string, err error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if !slices.ContainsFunc(entries, isTemporary) {
		return nil, nil
	}
	lock, err := lockRoot(root)
	if errors.Is(err, ErrBusy) {
		return nil, nil // one of them is being written
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if entries, err = os.ReadDir(root); err != nil { // again: the list may have aged
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	for _, e := range entries {
		if !isTemporary(e) {
			continue
		}
		dir := filepath.Join(root, e.Name())
		if err := os.RemoveAll(dir); err != nil {
			return cleared, fmt.Errorf("checkpoint: %w", err)
		}
		cleared = append(cleared, dir)
	}
	return cleared, nil
}

func isTemporary(e os.DirEntry) bool { return e.IsDir() && temporary.MatchString(e.Name()) }
