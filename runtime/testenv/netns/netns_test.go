package netns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// deadline bounds each wait of these tests.
const deadline = time.Minute

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd, err, complaints.String())
	}
	return strings.TrimSpace(string(out))
}

func TestHostsAreHostsOfTheirOwn(t *testing.T) {
	hosts := New(t, Options{Hosts: 3, Shm: 1 << 20})
	var seen []string
	for _, h := range hosts {
		if got := output(t, h.Command("hostname")); got != h.Name {
			t.Errorf("%s is called %s", h.Name, got)
		}
		if got := output(t, h.Command("sh", "-c", "df -B1 --output=size /dev/shm | tail -1")); got != "1048576" {
			t.Errorf("%s: /dev/shm has %s bytes", h.Name, got)
		}
		if got := output(t, h.Command("cat", "/proc/1/comm")); got != "cat" {
			t.Errorf("%s: process 1 is %s", h.Name, got)
		}
		seen = append(seen, strings.Fields(output(t, h.Command("readlink", "/proc/self/ns/net", "/proc/self/ns/ipc", "/proc/self/ns/pid", "/proc/self/ns/mnt")))...)
		own := output(t, h.Command("getent", "ahostsv4", h.Name))
		if !strings.HasPrefix(own, "127.0.1.1 ") {
			t.Errorf("%s looks itself up as %s", h.Name, own)
		}
	}
	slices.Sort(seen)
	if n := len(slices.Compact(seen)); n != 12 {
		t.Errorf("3 hosts have %d namespaces, want 12", n)
	}
	if got := output(t, hosts[2].Command("getent", "ahostsv4", "host1")); !strings.HasPrefix(got, "10.99.0.2 ") {
		t.Errorf("host2 looks host1 up as %s", got)
	}
}

func TestTheExitStatusIsTheProgramsOwn(t *testing.T) {
	h := New(t, Options{Hosts: 1})[0]
	err := h.Command("sh", "-c", "exit 7").Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 7 {
		t.Errorf("exit 7 came out as %v", err)
	}
}

// A process that nobody waits for is gone, and no zombie, when its parent is.
func TestProcess1Buries(t *testing.T) {
	h := New(t, Options{Hosts: 1})[0]
	// The inner shell dies at once; its child, now process 1's, ends with its input.
	out := output(t, h.Command("sh", "-c", `mkfifo $0; sh -c 'cat <$0 & echo $!' $0 >$0.pid; pid=$(cat $0.pid); echo >$0
		i=0; while [ -e /proc/$pid ] && [ $i -lt 100000 ]; do i=$((i+1)); done; [ -e /proc/$pid ] || echo buried`, t.TempDir()+"/fifo"))
	if !strings.HasSuffix(out, "buried") {
		t.Errorf("%q", out)
	}
}

// What runs on a host ends with the test.
func TestNothingIsLeft(t *testing.T) {
	var cmd *exec.Cmd
	t.Run("job", func(t *testing.T) {
		h := New(t, Options{Hosts: 1})[0]
		cmd = h.Command("sh", "-c", "trap '' TERM HUP INT; echo up; setsid sleep 1000 & wait")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, 3))
	})
	if cmd == nil {
		t.Skip("no host")
	}
	if err := cmd.Wait(); err == nil { // hangs where the sleep lives on: it holds the pipe
		t.Error("the job ended well")
	}
}

// listener answers each connection on h by sending back what comes.
func listener(t *testing.T, h *Host) netip.AddrPort {
	t.Helper()
	var l net.Listener
	err := h.In(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(h.Addr, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends when l is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// dial connects from a host; within bounds the attempt.
func dial(h *Host, to netip.AddrPort, within time.Duration) (c net.Conn, err error) {
	err = h.In(func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), within)
		return err
	})
	return c, err
}

// echo sends so many bytes through a new connection and awaits them back.
func echo(h *Host, to netip.AddrPort, bytes int, within time.Duration) error {
	c, err := dial(h, to, within)
	if err != nil {
		return err
	}
	defer c.Close()
	return echoOn(c, bytes, within)
}

// echoOn is echo on a connection that is there.
func echoOn(c net.Conn, bytes int, within time.Duration) error {
	c.SetDeadline(time.Now().Add(within))
	go c.Write(make([]byte, bytes)) // ends with the connection
	n, err := io.ReadFull(c, make([]byte, bytes))
	if err != nil {
		return fmt.Errorf("%d of %d bytes came back: %w", n, bytes, err)
	}
	return nil
}

func TestHostsReachEachOther(t *testing.T) {
	for _, o := range []Options{{}, {IPv6: true}, {Decoys: true, MTU: 9000}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			hosts := New(t, o)
			at := listener(t, hosts[0])
			if err := echo(hosts[1], at, 1<<20, deadline); err != nil {
				t.Error(err)
			}
			if _, err := net.DialTimeout("tcp", at.String(), 100*time.Millisecond); err == nil {
				t.Error("a host is reached from outside")
			}
		})
	}
}

func TestDecoys(t *testing.T) {
	h := New(t, Options{Decoys: true})[1]
	up := map[string]bool{}
	var order []string
	if err := h.In(func() error {
		list, err := net.Interfaces()
		for _, i := range list {
			up[i.Name] = i.Flags&net.FlagRunning != 0
			order = append(order, i.Name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"docker0": true, "br-swarm": true, "veth9": true, "down0": false, "local0": true, "eth0": true} {
		if got, there := up[name]; !there || got != want {
			t.Errorf("%s: there %t, running %t; want running %t", name, there, got, want)
		}
	}
	if slices.Index(order, "docker0") > slices.Index(order, "eth0") {
		t.Errorf("eth0 comes before docker0: %v", order)
	}
}

func TestUnplug(t *testing.T) {
	hosts := New(t, Options{})
	at := listener(t, hosts[0])
	hosts[0].Unplug()
	if err := echo(hosts[1], at, 1, 300*time.Millisecond); err == nil {
		t.Error("a host without a cable answers")
	}
	hosts[0].Plug()
	if err := echo(hosts[1], at, 1, deadline); err != nil {
		t.Error(err)
	}
}

func TestLoseOneDirection(t *testing.T) {
	hosts := New(t, Options{})
	at := [2]netip.AddrPort{listener(t, hosts[0]), listener(t, hosts[1])}
	c, err := dial(hosts[1], at[0], deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, d := range []Direction{Sent, Received} {
		hosts[0].Lose(d, All())
		for i, from := range hosts {
			if err := echo(from, at[1-i], 1, 300*time.Millisecond); err == nil {
				t.Errorf("%s: a connection from %s came about", d, from.Name)
			}
		}
		hosts[0].Heal()
	}
	// It was the way there and back that was cut, nothing else.
	c.SetDeadline(time.Now().Add(deadline))
	c.Write([]byte{1})
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// Of 200 datagrams at 50 %, 100 are lost, give or take: six standard deviations of
// a binomial are 42. A socket's buffer holds all of them.
func TestLosePercent(t *testing.T) {
	hosts := New(t, Options{})
	at := listener(t, hosts[0])
	if err := echo(hosts[1], at, 1, deadline); err != nil { // now they know each other's Ethernet address
		t.Fatal(err)
	}
	hosts[1].Lose(Sent, Percent(50))
	const n = 200
	var in net.PacketConn
	err := errors.Join(
		hosts[0].In(func() (err error) {
			in, err = net.ListenPacket("udp", netip.AddrPortFrom(hosts[0].Addr, 0).String())
			return err
		}),
		hosts[1].In(func() error {
			c, err := net.Dial("udp", in.LocalAddr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			for range n {
				c.Write([]byte("x"))
			}
			hosts[1].Heal()
			_, err = c.Write([]byte("last"))
			return err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	in.SetReadDeadline(time.Now().Add(deadline))
	got, b := 0, make([]byte, 10)
	for {
		k, _, err := in.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		if string(b[:k]) == "last" {
			break
		}
		got++
	}
	if got < 100-42 || got > 100+42 {
		t.Errorf("%d of %d datagrams came at a loss of 50 %%", got, n)
	}
}

// Hosts whose links take long packets, and a switch that does not: short exchanges
// work, long ones stall without an error.
func TestLoseLonger(t *testing.T) {
	hosts := New(t, Options{MTU: 9000})
	at := listener(t, hosts[0])
	hosts[0].Lose(Sent, Longer(1500))
	hosts[0].Lose(Received, Longer(1500))
	if err := echo(hosts[1], at, 1000, deadline); err != nil {
		t.Errorf("1000 bytes: %v", err)
	}
	c, err := dial(hosts[1], at, deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := echoOn(c, 100<<10, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("100 KiB: %v", err)
	}
	// A host that knows of the limit says so when it connects.
	hosts[1].SetMTU(1500)
	if err := echo(hosts[1], at, 100<<10, deadline); err != nil {
		t.Errorf("100 KiB after SetMTU: %v", err)
	}
}

func TestRate(t *testing.T) {
	hosts := New(t, Options{Rate: 100e6})
	at := listener(t, hosts[0])
	// 2 MiB there and, at the same time, back: 168 ms at 100 Mbit/s, of which 128 KiB
	// may come at once.
	begin := time.Now()
	if err := echo(hosts[1], at, 2<<20, deadline); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 140*time.Millisecond {
		t.Errorf("2 MiB over 100 Mbit/s took %s", took)
	}
}
