package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// skewAllowed is how far two clocks may be apart before it shows: in logs that do not
// fit together, in files that seem to come from the future.
const skewAllowed = 500 * time.Millisecond

// clockRounds are the questions of which the fastest counts.
const clockRounds = 8

// skew is by how much the peer's clock is ahead of this host's, give or take.
type skew struct{ ahead, within time.Duration }

// askClock compares the clocks: the peer's was read between question and answer, so
// half their distance bounds the error.
func askClock(ctx context.Context, remote netip.AddrPort, clock func() time.Time) (skew, error) {
	c, err := (&net.Dialer{Timeout: dialBound}).DialContext(ctx, "tcp", remote.String())
	if err != nil {
		return skew{}, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(helloBound)); err != nil {
		return skew{}, err
	}
	best := skew{within: helloBound}
	b := make([]byte, 8)
	for range clockRounds {
		here, start := clock(), time.Now()
		if _, err := c.Write([]byte{askTime}); err != nil {
			return skew{}, err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return skew{}, err
		}
		half := time.Since(start) / 2
		there := time.Unix(0, int64(binary.BigEndian.Uint64(b)))
		if half < best.within {
			best = skew{there.Round(0).Sub(here.Round(0).Add(half)), half}
		}
	}
	return best, nil
}

// finding reports clocks that are apart by more than allowed, whatever the error.
func (s skew) finding(peer string) []Finding {
	if s.ahead.Abs() <= skewAllowed+s.within {
		return nil
	}
	than := "ahead of"
	if s.ahead < 0 {
		than = "behind"
	}
	return []Finding{{
		Check: "clock", Severity: Warning, Where: Where{Peer: peer},
		What:     fmt.Sprintf("%s's clock is %s %s this host's: logs do not fit together, and files seem to come from another time", peer, s.ahead.Abs().Round(time.Millisecond), than),
		Evidence: fmt.Sprintf("the clock was asked %d times over TCP; the fastest answer bounds the error to %s", clockRounds, s.within.Round(time.Microsecond)),
		Fix:      "run a time service on every host (chrony, systemd-timesyncd): timedatectl set-ntp true",
	}}
}
