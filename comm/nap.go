package comm

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap pauses for less than a millisecond, which a timer of Go's takes at least where the
// process is idle. A signal may end it early.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil)
}
