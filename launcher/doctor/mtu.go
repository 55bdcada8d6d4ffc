package doctor

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// transferBytes fit into any receiver's first window, so that the other kernel
	// acknowledges them all, however busy the doctor behind it is.
	transferBytes = 32 << 10
	transferBound = 3 * time.Second
	mtuWays       = 16  // sizes that are tried at once
	smallestMTU   = 576 // what IPv4 asks of every path
)

// lane is a way to a peer, by which packets of full size are sent. TCP sets
// don't-fragment in all of them.
type lane struct {
	remote netip.AddrPort
	mtu    int // of the interface here, or there where that is less: TCP sends no longer packets
}

// headers are those of IP and TCP in a packet.
func (l lane) headers() int {
	if l.remote.Addr().Is4() {
		return 40
	}
	return 60
}

// carries sends data in packets of at most size bytes, and says whether the other
// kernel has acknowledged all of it within the bound.
func (l lane) carries(ctx context.Context, size int) (bool, error) {
	d := net.Dialer{Timeout: dialBound}
	if size < l.mtu {
		d.Control = func(_, _ string, c syscall.RawConn) error { return limitSegments(c, size-l.headers()) }
	}
	c, err := d.DialContext(ctx, "tcp", l.remote.String())
	if err != nil {
		return false, err
	}
	defer c.Close()
	tcp := c.(*net.TCPConn)
	if err := tcp.SetLinger(0); err != nil { // what is left is not to be sent again
		return false, err
	}
	data := make([]byte, transferBytes)
	data[0] = askSink
	if err := tcp.SetDeadline(time.Now().Add(transferBound)); err != nil {
		return false, err
	}
	if _, err := tcp.Write(data); err != nil {
		return false, ifSurprising(err)
	}
	return acknowledged(ctx, tcp)
}

// limitSegments makes TCP send at most so many bytes in a packet.
func limitSegments(c syscall.RawConn, bytes int) error {
	const most = 32767 // the kernel takes no larger one; only loopback has longer packets
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, min(bytes, most))
	}); e != nil {
		return e
	}
	return err
}

// acknowledged waits until the other kernel has taken all that was sent.
func acknowledged(ctx context.Context, c *net.TCPConn) (bool, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(transferBound)
	for {
		left, err := 0, error(nil)
		if e := raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); e != nil {
			return false, e
		}
		if err != nil || left == 0 {
			return err == nil, err
		}
		select {
		case <-tick.C:
		case <-late:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// ifSurprising is nil for an error that only says that data did not get through.
func ifSurprising(err error) error {
	if outcome(err) == Filtered {
		return nil
	}
	return err
}

// largest finds the longest packet that passes, given that those of the lane's MTU do
// not: it tries sizes between one that does and one that does not, many at once. 0
// where not even the smallest passes.
func (l lane) largest(ctx context.Context) (int, error) {
	passes, fails := 0, l.mtu
	try := []int{smallestMTU, 1280, 1400, 1420, 1450, 1480, 1492, 1500, 2044, 4096, 8192, 8900, 9000}
	for {
		results, err := l.carryAll(ctx, within(try, passes, fails))
		if err != nil {
			return 0, err
		}
		for size, ok := range results {
			if ok {
				passes = max(passes, size)
			}
		}
		for size, ok := range results {
			if !ok && size > passes {
				fails = min(fails, size)
			}
		}
		if passes == 0 || fails-passes <= 1 {
			return passes, nil
		}
		try = []int{passes + 1} // a usual MTU most often is the limit
		for i := 1; i < mtuWays; i++ {
			try = append(try, passes+max(i+1, i*(fails-passes)/mtuWays))
		}
	}
}

// within are the sizes strictly between two others.
func within(sizes []int, low, high int) (out []int) {
	for _, s := range sizes {
		if s > low && s < high {
			out = append(out, s)
		}
	}
	return out
}

// carryAll tries several sizes at once.
func (l lane) carryAll(ctx context.Context, sizes []int) (map[int]bool, error) {
	var mu sync.Mutex // guards results and failed
	results, failed := map[int]bool{}, error(nil)
	var wait sync.WaitGroup
	for _, size := range sizes {
		wait.Go(func() {
			ok, err := l.carries(ctx, size)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			}
			results[size] = ok
		})
	}
	wait.Wait()
	return results, failed
}

// examine sends packets of full size, and reports a hole with what passes.
func (l lane) examine(ctx context.Context, iface, peer string) ([]Finding, error) {
	ok, err := l.carries(ctx, l.mtu)
	if err != nil || ok {
		return nil, err
	}
	size, err := l.largest(ctx)
	if err != nil {
		return nil, err
	}
	f := Finding{
		Check: "mtu", Severity: Error, Where: Where{Interface: iface, Peer: peer},
		What:     fmt.Sprintf("packets of more than %d bytes vanish on the way to %s, though the interfaces take %d: small messages arrive, large ones hang", size, peer, l.mtu),
		Evidence: fmt.Sprintf("%d KiB over TCP to %s with don't-fragment: %d-byte packets were not acknowledged within %s, %d-byte packets were", transferBytes>>10, l.remote, l.mtu, transferBound, size),
		Fix:      fmt.Sprintf("set the same MTU on the interfaces and on every switch and tunnel between them, or ip link set %s mtu %d on both hosts; let ICMP \"fragmentation needed\" and \"packet too big\" pass", iface, size),
	}
	if size == 0 {
		f.What = fmt.Sprintf("connections to %s open, and no data passes, not even in packets of %d bytes", peer, smallestMTU)
		f.Evidence = fmt.Sprintf("%d KiB over TCP to %s: nothing was acknowledged within %s", transferBytes>>10, l.remote, transferBound)
		f.Fix = "look for a firewall or a load balancer between the hosts that lets connections open alone"
	}
	return []Finding{f}, nil
}
