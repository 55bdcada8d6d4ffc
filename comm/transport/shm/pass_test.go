package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// A busy host may keep a rank from showing its token for so long that rank 0 takes
// it for a stranger: it comes again.
func TestATurnedAwayPeerComesAgain(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@gorun-" + t.Name(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	token := []byte(strings.Repeat("t", tokenBytes))
	exchange := newBoard()
	exchange.Set(t.Context(), "k", fmt.Appendf(nil, "%s%s %x", readyPrefix, t.Name(), token))
	type fetched struct {
		fd  int
		err error
	}
	came := make(chan fetched)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go func() {
		fd, err := follow(ctx, Options{Rank: 1, Size: 2, Ranks: groupRanks(2), Key: "k", Exchange: exchange})
		came <- fetched{fd, err}
	}()
	for _, turnedAway := range []bool{true, true, false} {
		conn, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if !turnedAway {
			if rank, err := greet(conn, token, int(os.Stderr.Fd()), 2); rank != 1 || err != nil {
				t.Errorf("rank %d, %v", rank, err)
			}
		}
		conn.Close()
	}
	f := <-came
	if f.err != nil {
		t.Fatal(f.err)
	}
	unix.Close(f.fd)

	// One that finds nobody there any more does not.
	l.Close()
	if _, err := follow(ctx, Options{Rank: 1, Size: 2, Ranks: groupRanks(2), Key: "k", Exchange: exchange}); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
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
