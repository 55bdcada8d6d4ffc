package shm

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// stranger connects to the socket of a team before its peers do, and says too
// little or the wrong thing.
type stranger struct {
	*board
	t     *testing.T
	conns chan net.Conn
}

func (s stranger) Set(ctx context.Context, key string, value []byte) error {
	name, _, _ := strings.Cut(strings.TrimPrefix(string(value), readyPrefix), " ")
	for _, hello := range []string{"", strings.Repeat("x", tokenBytes) + "\x01", "short"} {
		c, err := net.Dial("unix", "@gorun-"+name)
		if err != nil {
			s.t.Error(err)
			break
		}
		if _, err := c.Write([]byte(hello)); err != nil {
			s.t.Error(err)
		}
		s.conns <- c
	}
	return s.board.Set(ctx, key, value)
}

func TestStrangersGetNothing(t *testing.T) {
	s := stranger{newBoard(), t, make(chan net.Conn, 3)}
	errs := make(chan error)
	for r := range 2 {
		go func() {
			team, err := Join(t.Context(), Options{Rank: r, Size: 2, Ranks: groupRanks(2), Key: "k", Exchange: s, Timeout: 20 * time.Second})
			if err == nil {
				err = team.Close()
			}
			errs <- err
		}()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		c := <-s.conns
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("a stranger was given %d bytes", n)
		}
		c.Close()
	}
}
