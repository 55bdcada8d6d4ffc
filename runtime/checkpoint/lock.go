package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrBusy: another draft is open under the same root.
var ErrBusy = errors.New("another writer is at work in this checkpoint folder")

const lockName = ".writer"

// lockRoot takes the root's writer lock, which the kernel releases when its holder
// closes the file or dies. A temporary folder beside a free lock has no writer. The
// file stays where it is, so that two processes never lock two files of that name.
func lockRoot(root string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(root, lockName), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		holder, _ := io.ReadAll(io.LimitReader(f, 256)) // only for the message
		f.Close()
		return nil, fmt.Errorf("checkpoint: %s: %w (%s)", root, ErrBusy, strings.TrimSpace(string(holder)))
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("checkpoint: locking %s: %w (the file system must offer file locks)", f.Name(), err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	text := fmt.Sprintf("process %d on %s\n", os.Getpid(), host)
	if err := errors.Join(f.Truncate(0), writeAt0(f, text)); err != nil {
		f.Close()
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return f, nil
}

func writeAt0(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}
