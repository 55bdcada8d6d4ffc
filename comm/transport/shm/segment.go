package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// createFile makes the file behind a team's memory, n bytes long. It has no name
// and goes when the last rank does.
func createFile(n int) (fd int, err error) {
	free, err := available("/")
	if err != nil {
		return -1, fmt.Errorf("shm: %w", err)
	}
	if int64(n) > free {
		return -1, fmt.Errorf("shm: the team needs %d bytes of shared memory, %d are free: start fewer ranks on this host, or raise its memory limit", n, free)
	}
	fd, err = unix.MemfdCreate("gorun-team", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("shm: memfd_create: %w", err)
	}
	// Nobody may take pages away again: touching them would end the process with SIGBUS.
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("shm: seal the team's memory: %w", err)
	}
	if err = allocate(fd, 0, n); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// allocate takes the pages of a range of the file, so that want of memory shows
// here, as an error, and not as a signal at the first touch.
func allocate(fd, off, n int) error {
	for {
		err := unix.Fallocate(fd, 0, int64(off), int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("shm: allocate %d bytes of shared memory: %w", n, err)
		}
		return nil
	}
}

// release gives the pages of a range back. Nobody maps them.
func release(fd, off, n int) error {
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
}

// reopen opens the file of fd once more: what it returns has locks of its own.
func reopen(fd int) (int, error) {
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	own, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("shm: open the team's memory again: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return own, nil
}

func mapFile(fd, off, n int) ([]byte, error) {
	mem, err := unix.Mmap(fd, int64(off), n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes of shared memory: %w", n, err)
	}
	return mem, nil
}

// populate takes all page faults of a mapping now: at the first collective they
// would cost more than the collective. A page that others have touched faults
// again in each further mapping, so every rank does this.
func populate(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) { // Linux before 5.14
		for off := 0; off < len(mem); off += pageBytes {
			atomic.AddUint32((*uint32)(unsafe.Pointer(&mem[off])), 0)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("shm: fault in %d bytes of shared memory: %w", len(mem), err)
	}
	return nil
}

// populateControl faults in what this rank touches of the control segment: the
// slots of other pairs of ranks are most of it, where ranks are many.
func populateControl(c *control, rank int) error {
	if err := populate(c.mem[:c.slotOff(0, 0, 0)]); err != nil {
		return err
	}
	for r := range c.ranks {
		for _, off := range []int{c.slotOff(rank, r, 0), c.slotOff(r, rank, 0)} {
			if err := populate(c.mem[off : off+depth*c.chunk]); err != nil {
				return err
			}
		}
	}
	return nil
}
