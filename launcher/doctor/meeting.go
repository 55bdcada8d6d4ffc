package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// The bounds of what several hosts do together. Each is long after what it waits for
// has its own end.
const (
	callBound   = 30 * time.Second // from one host's call to that of the last
	probeBound  = time.Minute      // for all probes of a host over TCP
	pingsBound  = time.Minute      // for those over RDMA
	resultBound = 20 * time.Second // for handing in what was seen
	finalBound  = 10 * time.Second // for host 0's last word

	workBound = localBound + callBound + probeBound + pingsBound + resultBound
)

// Bound is how long Meeting.Hold takes at most, whatever the network does.
const Bound = workBound + finalBound

// Meeting is one host's part in the examination of several. All of them hold it at the
// same time.
type Meeting struct {
	Machine *Machine
	Board   Board
	Self    int      // this host's number, from 0
	Names   []string // of all hosts, each its own
	Version string   // of gorun
	First   int      // ports on which probes listen, as comm.ports has them: from First
	Last    int      // to Last; both 0 for any one

	clock func() time.Time // nil is time.Now
	ping  pinger           // nil is that of the machine
	room  chan struct{}    // holds a token for each dial that is under way
}

// dialsAtOnce bounds the sockets that probes take, and what they ask of the network.
const dialsAtOnce = 256

// result is what one host hands in.
type result struct {
	Examination Examination `json:"examination"`
	Inventory   Inventory   `json:"inventory"`
	Dials       []Dial      `json:"dials"`
	Pings       []Ping      `json:"pings"`
}

// Hold examines this host and the ways from it to all others, and returns, on host 0,
// the report of all hosts; on the others their number of warnings and errors alone
// (Report.Status), which is the same on all.
func (m *Meeting) Hold(ctx context.Context) (report *Report, status int, err error) {
	begin := time.Now()
	ctx, cancel := context.WithDeadline(ctx, begin.Add(Bound))
	defer cancel()
	if m.clock == nil {
		m.clock = time.Now
	}
	if m.ping == nil {
		m.ping = m.Machine.pingOver
	}
	m.room = make(chan struct{}, dialsAtOnce)
	list, err := m.Machine.interfaces()
	if err != nil {
		return nil, 0, err
	}
	own := call{Name: m.Names[m.Self], Addrs: offered(list, m.Machine.Interface)}
	at := netip.Addr{}
	if m.Machine.Interface != "" && len(own.Addrs) == 1 {
		at = own.Addrs[0].IP
	}
	a, err := m.Machine.newAnswerer(ctx, at, m.First, m.Last, m.clock)
	if err != nil {
		return nil, 0, err
	}
	defer a.close()
	own.ID, own.Ports = a.id, a.ports
	devices, err := m.Machine.rdmaDevices()
	if err != nil {
		return nil, 0, err
	}
	own.RDMA = activePorts(devices, m.Machine.env("NCCL_IB_HCA"))
	if err := post(ctx, m.Board, callKey(m.Self), own); err != nil {
		return nil, 0, fmt.Errorf("telling the other hosts where to probe: %w", err)
	}
	r := result{Examination: Examine(ctx, m.Machine)}
	var missing []error
	if r.Inventory, missing = m.Machine.inventory(m.Version); len(missing) > 0 {
		r.Examination.unseen("inventory", m.Machine.Name, missing)
	}
	if m.First > 0 {
		r.Examination.Findings = append(r.Examination.Findings, m.Machine.ports(len(a.ports), a.busy, a.denied)...)
	}
	m.probe(ctx, own, &r)
	pings, end := context.WithDeadline(ctx, begin.Add(workBound-resultBound))
	m.pingAll(pings, own, &r)
	end()
	if err := post(ctx, m.Board, resultKey(m.Self), r); err != nil {
		return nil, 0, fmt.Errorf("handing in what was seen: %w", err)
	}
	// Until all are done somebody may still probe this host.
	late, stop := context.WithDeadline(ctx, begin.Add(workBound))
	defer stop()
	all := m.results(late)
	if m.Self == 0 {
		report = m.report(all)
		status = report.Status()
		return report, status, m.Board.Set(ctx, statusKey, fmt.Append(nil, status))
	}
	said, err := m.Board.Wait(ctx, statusKey)
	if err != nil {
		return nil, 0, fmt.Errorf("host 0 (%s) has not put the report together: %w", m.Names[0], err)
	}
	_, err = fmt.Sscan(string(said), &status)
	return nil, status, err
}

func callKey(host int) string   { return fmt.Sprintf("doctor/call/%d", host) }
func resultKey(host int) string { return fmt.Sprintf("doctor/result/%d", host) }

const statusKey = "doctor/status"

// unseen notes why something was not looked at.
func (e *Examination) unseen(check, host string, why []error) {
	var text []string
	for _, err := range why {
		text = append(text, err.Error())
	}
	e.Unseen = append(e.Unseen, Unseen{Check: check, Host: host, Why: strings.Join(text, "; ")})
}

// probe goes to all other hosts at once.
func (m *Meeting) probe(ctx context.Context, own call, r *result) {
	ctx, cancel := context.WithTimeout(ctx, callBound+probeBound)
	defer cancel()
	var mu sync.Mutex // guards r
	var wait sync.WaitGroup
	for peer := range m.Names {
		if peer == m.Self {
			continue
		}
		wait.Go(func() {
			v := m.visit(ctx, own, peer)
			mu.Lock()
			defer mu.Unlock()
			r.Dials = append(r.Dials, v.Dials...)
			r.Examination.Findings = append(r.Examination.Findings, v.Examination.Findings...)
			r.Examination.Unseen = append(r.Examination.Unseen, v.Examination.Unseen...)
		})
	}
	wait.Wait()
}

// results waits for what the hosts hand in; nil for those that do not. On another host
// than 0 only that it is there counts.
func (m *Meeting) results(ctx context.Context) []*result {
	all := make([]*result, len(m.Names))
	var wait sync.WaitGroup
	for i := range all {
		wait.Go(func() {
			r := &result{}
			var err error
			if m.Self == 0 {
				err = fetch(ctx, m.Board, resultKey(i), r)
			} else {
				_, err = m.Board.Wait(ctx, resultKey(i))
			}
			if err == nil {
				all[i] = r
			}
		})
	}
	wait.Wait()
	return all
}

// report puts together what all hosts have seen. It runs on host 0.
func (m *Meeting) report(all []*result) *Report {
	var seen []Examination
	var dials []Dial
	var pings []Ping
	var inventories []Inventory
	for i, r := range all {
		if r == nil {
			seen = append(seen, Examination{Findings: []Finding{{
				Check: "meeting", Severity: Error, Where: Where{Host: m.Names[i]},
				What:     "the host has joined, and not handed in what it saw",
				Evidence: fmt.Sprintf("nothing came within %s", workBound),
				Fix:      "run gorun doctor on that host alone; its processes may be stopped, or the way to host 0 broken",
			}}})
			continue
		}
		for n := range r.Dials {
			r.Dials[n].From = m.Names[i]
		}
		seen = append(seen, r.Examination)
		dials = append(dials, r.Dials...)
		pings = append(pings, r.Pings...)
		inventories = append(inventories, r.Inventory)
	}
	seen = append(seen, Examination{Findings: append(judge(dials), compare(inventories)...)})
	r := NewReport(m.Names, seen...)
	r.Dials, r.Pings = dials, pings
	return r
}
