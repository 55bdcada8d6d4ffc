package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile lies in the output folder of a job that runs. The kernel drops the
// lock when the agent ends, however it ends, so a file that is left means nothing.
const lockFile = ".gorun.lock"

// holder is who writes an output folder, as the lock file says.
type holder struct {
	Job   string    `json:"job"`
	Host  string    `json:"host"`
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
}

// lockOutput makes the output folder and takes it for this job. The file must
// stay open as long as the job writes there.
func lockOutput(dir, job string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("output folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("output folder %s cannot be written: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("output folder %s: another job is writing it%s; wait for its end, or choose another folder: --set output=FOLDER", dir, whoHolds(f))
		}
		return nil, fmt.Errorf("output folder %s: lock: %w", dir, err)
	}
	host, err := os.Hostname()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("this host's name: %w", err)
	}
	b, err := json.Marshal(holder{Job: job, Host: host, PID: os.Getpid(), Since: time.Now().Truncate(time.Second)})
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(append(b, '\n'), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("output folder %s: %w", dir, err)
	}
	return f, nil
}

func whoHolds(f *os.File) string {
	var h holder
	b, err := io.ReadAll(f)
	if err != nil || json.Unmarshal(b, &h) != nil {
		return "" // it has the lock but has not said who it is yet
	}
	return fmt.Sprintf(" (job %s, pid %d on host %s, since %s)", h.Job, h.PID, h.Host, h.Since.Format(time.DateTime))
}
