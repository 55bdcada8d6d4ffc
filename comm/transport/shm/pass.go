package shm

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How the file travels: rank 0 listens on an abstract unix socket, whose random
// name and a random token go through the exchange. A peer must run as the same
// user and show the token; it gets the open file. Unlike /proc/<pid>/fd this works
// between containers that see different process numbers.

const (
	tokenBytes = 16
	// greetTime is how long a connection may take to show its token: strangers are
	// waited for no longer. A peer that a busy host has kept from it comes again.
	greetTime = time.Second
	comeAgain = 50 * time.Millisecond

	readyPrefix = "ready "
	errorPrefix = "error "
)

// lead makes the file and hands it to every peer. If it cannot, it tells them why.
func lead(ctx context.Context, o Options, size int) (fd int, err error) {
	fd, err = createFile(size)
	if o.Size == 1 {
		return fd, err
	}
	if err != nil {
		if e := o.Exchange.Set(ctx, o.Key, []byte(errorPrefix+err.Error())); e != nil {
			err = errors.Join(err, e)
		}
		return -1, err
	}
	if err := hand(ctx, o, fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// hand announces the socket and serves it until every peer has the file.
func hand(ctx context.Context, o Options, fd int) error {
	var random [2 * tokenBytes]byte
	rand.Read(random[:])
	name, token := hex.EncodeToString(random[:tokenBytes]), random[tokenBytes:]
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@gorun-" + name, Net: "unix"})
	if err != nil {
		return fmt.Errorf("shm: listen for the ranks of this host: %w", err)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := o.Exchange.Set(ctx, o.Key, fmt.Appendf(nil, "%s%s %x", readyPrefix, name, token)); err != nil {
		return fmt.Errorf("shm: announce the team's socket: %w", err)
	}
	var has [maxRanks]bool
	for left := o.Size - 1; left > 0; {
		conn, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("shm: %v did not come for the team's memory: %w", missing(o, has), err)
		}
		rank, err := greet(conn, token, fd, o.Size)
		conn.Close()
		if err == nil && !has[rank] { // others are strangers, or lost their way
			has[rank] = true
			left--
		}
	}
	return nil
}

func missing(o Options, has [maxRanks]bool) string {
	var names []string
	for r := 1; r < o.Size; r++ {
		if !has[r] {
			names = append(names, fmt.Sprintf("rank %d", o.Ranks[r]))
		}
	}
	return strings.Join(names, ", ")
}

// greet gives the file to a peer that proves to be one, and returns its rank.
func greet(conn *net.UnixConn, token []byte, fd, size int) (int, error) {
	if err := sameUser(conn); err != nil {
		return 0, err
	}
	if err := conn.SetDeadline(time.Now().Add(greetTime)); err != nil {
		return 0, err
	}
	var hello [tokenBytes + 1]byte
	if _, err := conn.Read(hello[:]); err != nil {
		return 0, err
	}
	rank := int(hello[tokenBytes])
	if subtle.ConstantTimeCompare(hello[:tokenBytes], token) != 1 || rank < 1 || rank >= size {
		return 0, errors.New("a wrong token or rank")
	}
	_, _, err := conn.WriteMsgUnix([]byte{1}, syscall.UnixRights(fd), nil)
	return rank, err
}

// follow fetches the file from rank 0.
func follow(ctx context.Context, o Options) (fd int, err error) {
	value, err := o.Exchange.Wait(ctx, o.Key)
	if err != nil {
		return -1, fmt.Errorf("shm: wait for the team's socket: %w", err)
	}
	if text, ok := strings.CutPrefix(string(value), errorPrefix); ok {
		return -1, fmt.Errorf("shm: rank %d could not make the team's memory: %s", o.Ranks[0], text)
	}
	rest, ok := strings.CutPrefix(string(value), readyPrefix)
	name, hexToken, both := strings.Cut(rest, " ")
	token, err := hex.DecodeString(hexToken)
	if !ok || !both || err != nil || len(token) != tokenBytes {
		return -1, fmt.Errorf("shm: %q under key %s is no announcement of a team", value, o.Key)
	}
	for {
		fd, err = fetch(ctx, o, name, token)
		if !errors.Is(err, errTurnedAway) {
			return fd, err
		}
		select {
		case <-time.After(comeAgain):
		case <-ctx.Done():
			return -1, err
		}
	}
}

// errTurnedAway is inside fetch's error where rank 0 ended the connection: it takes
// who is silent for a stranger.
var errTurnedAway = errors.New("it ended the connection")

// fetch asks rank 0 for the file, once.
func fetch(ctx context.Context, o Options, name string, token []byte) (fd int, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", "@gorun-"+name)
	if err != nil {
		return -1, fmt.Errorf("shm: reach rank %d on this host: %w: the ranks must share a network namespace", o.Ranks[0], err)
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := sameUser(conn); err != nil {
		return -1, err
	}
	if _, err = conn.Write(append(token[:tokenBytes:tokenBytes], byte(o.Rank))); err == nil {
		fd, err = receive(conn)
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		err = fmt.Errorf("%w (%w)", errTurnedAway, err)
		fallthrough
	case err != nil:
		return -1, fmt.Errorf("shm: fetch the team's memory from rank %d: %w", o.Ranks[0], err)
	}
	return fd, nil
}

func receive(conn *net.UnixConn) (int, error) {
	var b [1]byte
	oob := make([]byte, syscall.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(b[:], oob)
	if err != nil {
		return -1, err
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	if len(messages) != 1 {
		return -1, errors.New("no file came")
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// sameUser checks the other end's user as the kernel knows it.
func sameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("shm: who is at the other end of the team's socket: %w", credErr)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("shm: the other end of the team's socket belongs to user %d, want %d", cred.Uid, os.Geteuid())
	}
	return nil
}
