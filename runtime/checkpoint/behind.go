package checkpoint

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// writeWindow is how much of a file is handed to the disk at once, in bytes.
const writeWindow = 32 << 20

// writeDepth is how many windows may be on their way.
const writeDepth = 4

// behind writes to a file and keeps the disk at work behind it: each window is handed
// to the disk as soon as it is full, and must have arrived when some more are.
// Left to itself the kernel begins late, so that copying and the disk take turns, and
// one sync at the end takes minutes in which nothing seems to move.
type behind struct {
	f      *os.File
	window int64
	depth  int64 // windows on their way
	at     int64 // bytes written
	sent   int64 // of these, handed to the disk: whole windows
	alone  bool  // the file system cannot: the sync at the end does it all
}

func (b *behind) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		piece := p[:min(int64(len(p)), b.sent+b.window-b.at)]
		m, err := b.f.Write(piece)
		n, b.at = n+m, b.at+int64(m)
		if err != nil {
			return n, err
		}
		p = p[m:]
		if b.at == b.sent+b.window {
			if err := b.hand(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// hand starts the window that has become full on its way, and waits for the one that
// was first of those on theirs.
func (b *behind) hand() error {
	const through = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	from := b.sent
	b.sent = b.at
	err := b.flush(from, unix.SYNC_FILE_RANGE_WRITE)
	if first := from - b.depth*b.window; err == nil && first >= 0 {
		err = b.flush(first, through)
	}
	if err != nil {
		return fmt.Errorf("sync_file_range: %w", err)
	}
	return nil
}

func (b *behind) flush(from int64, flags int) error {
	if b.alone {
		return nil
	}
	err := unix.SyncFileRange(int(b.f.Fd()), from, b.window, flags)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ESPIPE) {
		b.alone = true
		return nil
	}
	return err
}
