// Package publish puts whole folders in their place: what was written beside it appears
// under its name at once, or not at all.
package publish

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Temp makes an empty folder beside final, hidden, for Folder to move.
func Temp(final string) (string, error) {
	parent := filepath.Dir(final)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	dir := filepath.Join(parent, fmt.Sprintf("%s%016x", prefix(final), rand.Uint64()))
	return dir, os.Mkdir(dir, 0o755)
}

// File writes a file of such a folder, which must not exist, and syncs it to disk.
func File(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Clear removes what Temp has made for final and nobody has moved or removed, for its
// process died. No other may be about to write final.
func Clear(final string) error {
	parent := filepath.Dir(final)
	list, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range list {
		if number, ok := strings.CutPrefix(e.Name(), prefix(final)); ok && len(number) == 16 {
			err = errors.Join(err, os.RemoveAll(filepath.Join(parent, e.Name())))
		}
	}
	return err
}

func prefix(final string) string { return "." + filepath.Base(final) + ".tmp-" }

// Folder syncs dir and gives it the name final. What has that name is replaced, as
// Exchange does it, and removed.
func Folder(dir, final string) error {
	if err := Sync(dir); err != nil {
		return err
	}
	old, err := Exchange(dir, final, dir+".old")
	if err != nil {
		return err
	}
	if err := Sync(filepath.Dir(final)); err != nil {
		return err
	}
	if old == "" {
		return nil
	}
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("%s is complete, but what it replaces could not be removed: %w", final, err)
	}
	return nil
}

// Exchange gives dir the name final, and returns where the folder is now that had it;
// "": there was none. The two are exchanged in one step. On a file system that cannot
// do that (NFS), the old one is first moved to the name aside: a crash right between
// leaves neither under the name final. That the names last is the caller's to Sync.
func Exchange(dir, final, aside string) (old string, err error) {
	err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, final, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return dir, nil
	case errors.Is(err, unix.ENOENT): // the usual case: nothing to replace
		return "", os.Rename(dir, final)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		if _, err := os.Lstat(final); errors.Is(err, fs.ErrNotExist) {
			return "", os.Rename(dir, final)
		}
		return aside, moveAside(dir, final, aside)
	}
	return "", fmt.Errorf("exchanging %s and %s: %w", dir, final, err)
}

func moveAside(dir, final, aside string) error {
	if err := os.Rename(final, aside); err != nil {
		return err
	}
	if err := os.Rename(dir, final); err != nil {
		return errors.Join(err, os.Rename(aside, final))
	}
	return nil
}

// Sync makes a folder's entries last.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
