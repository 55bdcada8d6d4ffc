package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Lock lets one process at a time, of those that share a folder, build something.
// It ends with its process. In its file stands what the owner is doing, for those
// who wait.
type Lock struct {
	file *os.File
	said time.Time // when the file was last written
}

// TellEvery is how often a user is told of what takes long.
const TellEvery = 10 * time.Second

// Waiting processes look this often whether they may go on, and an owner writes this
// often what it has done.
const (
	lookEvery = 100 * time.Millisecond
	sayEvery  = time.Second
)

// TakeLock waits for the lock at path, for as long as its owner makes progress
// within patience.
func TakeLock(ctx context.Context, path string, patience time.Duration, tell func(string)) (*Lock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	l := &Lock{file: file}
	if err := l.wait(ctx, patience, tell); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return l, l.say("begins")
}

func (l *Lock) wait(ctx context.Context, patience time.Duration, tell func(string)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var owner string
	moved, told := time.Now(), time.Now()
	for {
		err := unix.Flock(int(l.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("%s: lock: %w", l.file.Name(), err)
		}
		if now := l.owner(); now != owner {
			owner, moved = now, time.Now()
		}
		if time.Since(moved) > patience {
			return fmt.Errorf("%s: another process holds this lock and has not moved for %s (%s): end it, or give data.cache another folder", l.file.Name(), patience, owner)
		}
		if time.Since(told) > TellEvery {
			told = time.Now()
			tell("waiting for another process that reads the same data: " + owner)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s (%s): %w", l.file.Name(), owner, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// owner is what stands in the file.
func (l *Lock) owner() string {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, 4096))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Progress says what the owner has done, now and then.
func (l *Lock) Progress(what string) error {
	if time.Since(l.said) < sayEvery {
		return nil
	}
	return l.say(what)
}

func (l *Lock) say(what string) error {
	l.said = time.Now()
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err = l.file.WriteAt(fmt.Appendf(nil, "process %d on %s: %s", os.Getpid(), host, what), 0)
	return err
}

// Release lets the next one in.
func (l *Lock) Release() error { return l.file.Close() }
