package rdma

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// Exchange is the part of the job's store that belongs to one group.
type Exchange interface {
	Set(ctx context.Context, key string, value []byte) error
	// Wait blocks until the key exists.
	Wait(ctx context.Context, key string) ([]byte, error)
}

// Options of one rank's end.
type Options struct {
	Rank     int
	Hosts    []string // of all ranks, for errors
	Port     string   // as Near has it; empty: the host's first
	Exchange Exchange
	Settings Settings
	Traffic  *transport.Traffic
	Logger   *slog.Logger
	// Check is asked about a message that came before its receive was posted: an
	// error says that it will never be.
	Check func(peer int, h transport.Header) error
	// Lost is told why the mesh failed, once.
	Lost func(error)

	API *verbs.API // nil: the system's libibverbs
	Sys string     // where sysfs is; empty: /sys
}

// Settings are what a user may choose. The zero value chooses by itself.
type Settings struct {
	// HCA lists devices as NCCL does: mlx5_0, mlx5_0:1 (with its port), several with
	// commas; = before the list asks for exact names instead of beginnings, ^ excludes.
	HCA string
	// GID is the index in the port's table of addresses, plus 1. 0: by rule.
	GID int
	// TrafficClass is the byte in the packets' header from which switches tell classes
	// of traffic: the DSCP times 4.
	TrafficClass int
	// Timeout is a code: 4.096 µs * 2^Timeout pass before a packet without an answer
	// is sent again. 0: 20, 4.3 s.
	Timeout int
	// Retries is how often, at most 7, plus 1. 0: 7 times.
	Retries int
	// PKey is the index in the port's table of partitions.
	PKey int
	// QPs is the number of queue pairs to a peer. 0: 2.
	QPs int
}

// variable is one of NCCL's variables: which setting it is, what it may be, and what
// is added to it.
type variable struct {
	name      string
	to        *int
	low, high int
	plus      int
}

// FromEnvironment takes what s leaves open from NCCL's variables. Values that mean
// nothing are errors that name the variables, whether s leaves them open or not.
func (s Settings) FromEnvironment(getenv func(string) string) (Settings, error) {
	var errs []error
	if text := strings.TrimSpace(getenv("NCCL_IB_HCA")); text != "" {
		if err := CheckHCA(text); err != nil {
			errs = append(errs, fmt.Errorf("NCCL_IB_HCA=%s: %w", text, err))
		} else if s.HCA == "" {
			s.HCA = text
		}
	}
	for _, v := range []variable{
		{"NCCL_IB_GID_INDEX", &s.GID, -1, 4095, 1}, // -1: by rule
		{"NCCL_IB_TC", &s.TrafficClass, 0, 255, 0},
		{"NCCL_IB_TIMEOUT", &s.Timeout, 1, 31, 0},
		{"NCCL_IB_RETRY_CNT", &s.Retries, 0, 7, 1},
		{"NCCL_IB_PKEY", &s.PKey, 0, 65535, 0},
		{"NCCL_IB_QPS_PER_CONNECTION", &s.QPs, 1, maxQPs, 0},
	} {
		text := strings.TrimSpace(getenv(v.name))
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 0, 32) // NCCL takes 0x68, too
		if err != nil || n < int64(v.low) || n > int64(v.high) {
			errs = append(errs, fmt.Errorf("%s=%s: want a number from %d to %d", v.name, text, v.low, v.high))
		} else if *v.to == 0 {
			*v.to = int(n) + v.plus
		}
	}
	return s, errors.Join(append(errs, s.Check())...)
}

// Check refuses settings that no device takes.
func (s Settings) Check() error {
	for _, v := range []struct {
		name      string
		value     int
		low, high int
	}{
		{"comm.gid_index", s.GID - 1, -1, 4095}, {"comm.traffic_class", s.TrafficClass, 0, 255},
		{"comm.ib_timeout", s.Timeout, 0, 31}, {"comm.ib_retries", s.Retries - 1, -1, 7},
		{"comm.pkey", s.PKey, 0, 65535}, {"comm.queue_pairs", s.QPs, 0, maxQPs},
	} {
		if v.value < v.low || v.value > v.high {
			return fmt.Errorf("%s is %d: want %d to %d", v.name, v.value, v.low, v.high)
		}
	}
	if err := CheckHCA(s.HCA); err != nil {
		return fmt.Errorf("comm.ib_hca: %w", err)
	}
	return nil
}

// complete fills in the defaults.
func (s Settings) complete() Settings {
	if s.Timeout == 0 {
		s.Timeout = 20
	}
	if s.Retries == 0 {
		s.Retries = 8
	}
	if s.QPs == 0 {
		s.QPs = 2
	}
	return s
}

// patience is how long a write may take to complete, one way or the other: the
// device's own tries, twice over, for it may count generously, and a pause.
func (s Settings) patience() time.Duration {
	return 2*time.Duration(s.Retries)*s.once() + 3*time.Second
}

// once is the time that the device waits for an answer before it tries again.
func (s Settings) once() time.Duration { return 4096 << s.Timeout * time.Nanosecond }
