package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
)

// visit probes one peer: each of its addresses, then the ports, the length of packets
// and the clock on the best way that is open.
func (m *Meeting) visit(ctx context.Context, own call, peer int) (r result) {
	name := m.Names[peer]
	note := func(check string, err error) {
		if err != nil {
			r.Examination.unseen(check+" to "+name, m.Machine.Name, []error{err})
		}
	}
	defer func() {
		for i := range r.Examination.Findings {
			r.Examination.Findings[i].Where.Host = m.Machine.Name
		}
	}()
	var there call
	wait, cancel := context.WithTimeout(ctx, callBound)
	err := fetch(wait, m.Board, callKey(peer), &there)
	cancel()
	if err != nil {
		note("dials", fmt.Errorf("the host has not said where it listens: %w", err))
		return r
	}
	list := ways(own.Addrs, there.Addrs, routeTo)
	if len(there.Ports) == 0 {
		note("dials", errors.New("it can listen on none of comm.ports"))
		return r
	}
	if len(list) == 0 {
		r.Examination.Findings = []Finding{{
			Check: "dials", Severity: Error, Where: Where{Peer: name},
			What:     fmt.Sprintf("no route leads to any address of %s that is not this host's too", name),
			Evidence: fmt.Sprintf("here: %s; there: %s", addressTexts(own.Addrs), addressTexts(there.Addrs)),
			Fix:      "put both hosts into one network, or add a route (ip route get ADDRESS)",
		}}
		return r
	}
	open := m.dialAll(ctx, list, there, &r)
	if ctx.Err() != nil { // what has not been answered by now says nothing
		r.Dials = nil
		note("dials", errTimeUp)
		return r
	}
	if open == nil {
		return r // judged with the dials of the others
	}
	if m.Last > m.First {
		found := m.dialPorts(ctx, open.way, there.Ports, there)
		if ctx.Err() != nil {
			note("ports", errTimeUp)
			return r
		}
		r.Examination.Findings = append(r.Examination.Findings, blocked(found, name)...)
	}
	remote := netip.AddrPortFrom(open.IP, open.port)
	found, err := lane{remote, open.mtu}.examine(ctx, m.interfaceOf(own, open.way), name)
	note("mtu", err)
	r.Examination.Findings = append(r.Examination.Findings, found...)
	if peer == 0 {
		s, err := askClock(ctx, remote, m.clock)
		note("clock", err)
		if err == nil {
			r.Examination.Findings = append(r.Examination.Findings, s.finding(name)...)
		}
	}
	return r
}

// errTimeUp is why a probe was not brought to its end.
var errTimeUp = fmt.Errorf("the time for all probes (%s) was up before it was done", probeBound)

// openWay is one on which the peer itself answers.
type openWay struct {
	way
	port uint16
}

// dialAll dials all ways at the peer's first port, and returns the first of those that
// are open. Where none is, a firewall may be open for other ports of the range.
func (m *Meeting) dialAll(ctx context.Context, list []way, there call, r *result) *openWay {
	dials := make([][]Dial, len(list))
	var wait sync.WaitGroup
	for i, w := range list {
		wait.Go(func() { dials[i] = m.dialPorts(ctx, w, there.Ports[:1], there) })
	}
	wait.Wait()
	r.Dials = slices.Concat(dials...)
	isOpen := func(d Dial) bool { return d.Outcome == Connected }
	if i := slices.IndexFunc(r.Dials, isOpen); i >= 0 {
		return &openWay{list[i], there.Ports[0]}
	}
	for _, w := range list {
		more := m.dialPorts(ctx, w, there.Ports[1:], there)
		if i := slices.IndexFunc(more, isOpen); i >= 0 {
			r.Dials = append(r.Dials, more[i])
			return &openWay{w, more[i].Remote.Port()}
		}
	}
	return nil
}

// interfaceOf is the one here by which a way leaves.
func (m *Meeting) interfaceOf(own call, w way) string {
	for _, a := range own.Addrs {
		if a.IP == w.local {
			return a.Name
		}
	}
	return w.Name // loopback
}

func addressTexts(list []address) string {
	var out []string
	for _, a := range list {
		out = append(out, fmt.Sprintf("%s (%s)", a.IP, a.Name))
	}
	return orNone(out)
}
