package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// hold has several hosts meet, all of them this machine; each may be changed first.
func hold(t *testing.T, n int, change func(i int, m *Meeting)) (*Report, []int) {
	t.Helper()
	board := newMemory()
	statuses := make([]int, n)
	var report *Report
	var wait sync.WaitGroup
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("node", i))
	}
	for i := range n {
		f := newFake(t)
		f.Name = names[i]
		m := &Meeting{Machine: f.Machine, Board: board, Self: i, Names: names, Version: "v1"}
		if change != nil {
			change(i, m)
		}
		wait.Go(func() {
			r, status, err := m.Hold(t.Context())
			if err != nil {
				t.Errorf("node %d: %v", i, err)
			}
			statuses[i] = status
			if i == 0 {
				report = r
			} else if r != nil {
				t.Errorf("node %d has a report of its own", i)
			}
		})
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for i, s := range statuses {
		if s != report.Status() {
			t.Errorf("node %d ends with status %d, want %d", i, s, report.Status())
		}
	}
	return report, statuses
}

// onlyFinding returns the one warning or error of a report.
func onlyFinding(t *testing.T, r *Report) Finding {
	t.Helper()
	var out []Finding
	for _, f := range r.Findings {
		if f.Severity > Note {
			out = append(out, f)
		}
	}
	if len(out) != 1 {
		t.Fatalf("%d findings:\n%s", len(out), dump(r.Findings))
	}
	return out[0]
}

func TestMeeting(t *testing.T) {
	r, _ := hold(t, 3, nil)
	if r.Status() != 0 {
		t.Errorf("findings:\n%s", dump(r.Findings))
	}
	if len(r.Dials) != 6 {
		t.Errorf("%d dials, want one of each host to each other", len(r.Dials))
	}
	for _, d := range r.Dials {
		if d.Outcome != Connected || !d.Local.IsValid() || !d.Remote.IsValid() || d.From == d.To || d.From == "" || d.To == "" {
			t.Errorf("%+v", d)
		}
	}
}

func TestClocksApart(t *testing.T) {
	for ahead, want := range map[time.Duration]string{ // the error is that of a TCP answer
		3 * time.Second: `^node0's clock is [23]\S*s behind this host's`,
		-time.Hour:      `^node0's clock is (59m59|1h0m0)\S*s ahead of this host's`,
	} {
		r, _ := hold(t, 2, func(i int, m *Meeting) {
			if i == 1 {
				m.clock = func() time.Time { return time.Now().Add(ahead) }
			}
		})
		f := onlyFinding(t, r)
		if f.Check != "clock" || f.Where != (Where{Host: "node1", Peer: "node0"}) || f.Severity != Warning || matching([]Finding{f}, want) == nil {
			t.Errorf("%s: %+v", ahead, f)
		}
	}
}

func TestVersionsDiffer(t *testing.T) {
	r, _ := hold(t, 3, func(i int, m *Meeting) {
		if i == 1 {
			m.Version = "v2"
		}
	})
	f := onlyFinding(t, r)
	if f.Check != "versions" || f.Severity != Error || f.Where.Host != "node1" || f.Evidence != "node0, node2: v1; node1: v2" {
		t.Errorf("%+v", f)
	}
}

// A port of the range that another program has is said, and does not count as blocked.
func TestPortsInUse(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	r, _ := hold(t, 2, func(i int, m *Meeting) {
		m.Machine.Workers = 1
		if i == 1 {
			m.First, m.Last = taken, taken
		}
	})
	f := onlyFinding(t, r)
	if f.Check != "ports" || f.Severity != Error || f.Where.Host != "node1" || f.What != fmt.Sprintf("1 of the ports of comm.ports are in use: %d; 0 are left for 1 worker", taken) {
		t.Errorf("%+v", f)
	}
	if len(matchingUnseen(r, "node0", "it can listen on none of comm.ports")) != 1 {
		t.Errorf("%+v", r.Unseen)
	}
}

// A host alone looks whether it may listen there, and whether there are enough.
func TestPortsOfOneHost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	f := newFake(t)
	f.Workers = 1
	e := Ports(t.Context(), f.Machine, taken, taken)
	want := fmt.Sprintf("1 of the ports of comm.ports are in use: %d; 0 are left for 1 worker", taken)
	if len(e.Findings) != 1 || e.Findings[0].Severity != Error || e.Findings[0].What != want {
		t.Errorf("%+v, want %q", e, want)
	}
	for _, c := range []struct {
		workers, free int
		busy          []uint16
		severity      Severity
		want          string
	}{
		{4, 4, nil, Note, ""},
		{4, 3, nil, Error, "comm.ports has 3 ports for 4 workers"},
		{2, 2, []uint16{40001}, Note, "1 of the ports of comm.ports are in use: 40001"},
		{2, 1, []uint16{40001}, Error, "1 of the ports of comm.ports are in use: 40001; 1 are left for 2 workers"},
	} {
		f.Workers = c.workers
		list := f.ports(c.free, c.busy, nil)
		if got := len(list) > 0; got != (c.want != "") || got && (list[0].What != c.want || list[0].Severity != c.severity) {
			t.Errorf("%+v: %+v", c, list)
		}
	}
	if r, _ := hold(t, 2, nil); r.Status() > 0 { // any ports will do
		t.Errorf("%+v", r.Findings)
	}
}

// Ports that only root may have are a finding, on a host alone and among several.
func TestPortsThatNeedRights(t *testing.T) {
	deny := func(ctx context.Context, address string) (net.Listener, error) {
		if _, port, err := net.SplitHostPort(address); err != nil || port == "80" || port == "81" {
			return nil, &net.OpError{Op: "listen", Net: "tcp", Err: errors.Join(err, os.NewSyscallError("bind", syscall.EACCES))}
		}
		return listen(ctx, address)
	}
	const want = "2 of the ports of comm.ports may not be listened on by this user: 80-81"
	check := func(f Finding) {
		t.Helper()
		if f.Check != "ports" || f.Severity != Error || f.What != want || f.Fix != "give ports from 1024 on (comm.ports, --ports)" {
			t.Errorf("%+v", f)
		}
	}
	f := newFake(t)
	f.Listen = deny
	e := Ports(t.Context(), f.Machine, 80, 81)
	if len(e.Findings) != 1 || len(e.Unseen) > 0 {
		t.Fatalf("%+v", e)
	}
	check(e.Findings[0])
	f.file("proc/sys/net/ipv4/ip_unprivileged_port_start", "90")
	if list := f.ports(1, []uint16{82}, []uint16{80, 81}); len(list) != 2 || list[0].What != want || list[0].Fix != "give ports from 90 on (comm.ports, --ports)" {
		t.Errorf("%+v", list)
	}
	r, _ := hold(t, 2, func(i int, m *Meeting) {
		if i == 1 {
			m.First, m.Last, m.Machine.Listen = 80, 81, deny
		}
	})
	check(onlyFinding(t, r))
	if len(matchingUnseen(r, "node0", "it can listen on none of comm.ports")) != 1 {
		t.Errorf("%+v", r.Unseen)
	}
}

func matchingUnseen(r *Report, host, why string) (out []Unseen) {
	for _, u := range r.Unseen {
		if u.Host == host && strings.Contains(u.Why, why) {
			out = append(out, u)
		}
	}
	return out
}

// A host that has handed nothing in is named, and the others' findings stay.
func TestSilentHost(t *testing.T) {
	m := Meeting{Names: []string{"a", "b"}}
	f := onlyFinding(t, m.report([]*result{{}, nil}))
	if f.Check != "meeting" || f.Where.Host != "b" || f.Severity != Error {
		t.Errorf("%+v", f)
	}
}

// The ways to fail of a dial are told apart.
func TestDialOutcomes(t *testing.T) {
	lo := netip.MustParseAddr("127.0.0.1")
	a, err := newFake(t).newAnswerer(t.Context(), lo, 0, 0, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // whose connections are closed at once
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { // ends with the listener
		defer close(over)
		for {
			c, err := deaf.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	port := func(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }
	for _, c := range []struct {
		what string
		ip   string
		port uint16
		id   string
		want Outcome
	}{
		{"the peer", "127.0.0.1", a.ports[0], a.id, Connected},
		{"another doctor", "127.0.0.1", a.ports[0], strings.Repeat("x", idLength), Stranger},
		{"another program", "127.0.0.1", port(deaf), a.id, Stranger},
		{"nobody", "127.0.0.1", port(gone), a.id, Refused},
		{"no such address", "255.255.255.255", 9, a.id, Unreachable},
	} {
		d := dial(t.Context(), lo, address{IP: netip.MustParseAddr(c.ip), Name: "lo"}, c.port, c.id)
		if d.Outcome != c.want || (d.Error == "") != (c.want == Connected) {
			t.Errorf("%s: %+v, want %s", c.what, d, c.want)
		}
	}
	deaf.Close()
	<-over
}
