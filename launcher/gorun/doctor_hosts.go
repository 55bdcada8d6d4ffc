package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/comm/store"
	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/cluster"
	"github.com/gorun-dev/gorun/launcher/console"
	"github.com/gorun-dev/gorun/launcher/doctor"
)

// doctorProtocol is what doctors must have alike to talk to each other. Versions of
// gorun may differ: that is a finding.
const doctorProtocol = "doctor 1"

// storeBound is how long node 0's store, which has just been talked to, may take to
// answer again.
const storeBound = 10 * time.Second

// consult examines this host, and with several nodes all of them; the report is nil
// on those that node 0 speaks for. Where the nodes cannot meet, each reports itself,
// and why.
func (l *launch) consult(ctx context.Context, m *doctor.Machine, spec *agent.Spec, endpoint string, first, last int) (*doctor.Report, int, error) {
	if l.nnodes == 1 {
		seen := []doctor.Examination{doctor.Examine(ctx, m)}
		if first > 0 {
			seen = append(seen, doctor.Ports(ctx, m, first, last))
		}
		r := doctor.NewReport([]string{m.Name}, seen...)
		return r, r.Status(), nil
	}
	con := console.New(os.Stdout, os.Stderr)
	defer con.Close()
	n, err := l.joinDoctors(ctx, m, spec, endpoint, con)
	if err != nil {
		if _, ended := errors.AsType[*agent.ExitError](context.Cause(ctx)); ended || l.parent != nil {
			return nil, 0, err // node 0 says it, with what else it knows
		}
		r := doctor.NewReport([]string{m.Name}, doctor.Examine(ctx, m), doctor.Apart(m.Name, endpoint, err))
		return r, r.Status(), nil
	}
	r, status, err := l.hold(ctx, m, spec, n.Layout(), first, last)
	return r, status, errors.Join(err, n.Close())
}

// joinDoctors meets the other nodes as a job does.
func (l *launch) joinDoctors(ctx context.Context, m *doctor.Machine, spec *agent.Spec, endpoint string, con *console.Console) (node, error) {
	if spec.Token == "" {
		spec.Token = rand.Text() // --hosts passes it on
	}
	o := cluster.Options{
		Job: l.jobID, RandomJob: "doctor_" + strings.ToLower(rand.Text()[:8]), Token: spec.Token,
		NNodes: l.nnodes, NodeRank: l.nodeRank, NProc: m.Workers, Endpoint: endpoint,
		MasterAddr: l.masterAddr, MasterPort: l.masterPort,
		Version: doctorProtocol, Timeout: l.joinTimeout,
		Say: func(string, ...any) {}, // gorun itself starts those whom it waits for
	}
	switch {
	case l.parent != nil:
		return l.joinHosted(ctx, spec, o)
	case l.hosts != nil:
		return l.joinHosts(ctx, spec, o, con)
	default:
		return l.joinOthers(ctx, o, con)
	}
}

// hold is the examination of all nodes, on this one.
func (l *launch) hold(ctx context.Context, m *doctor.Machine, spec *agent.Spec, layout *cluster.Layout, first, last int) (*doctor.Report, int, error) {
	ctx, cancel := context.WithTimeout(ctx, doctor.Bound)
	defer cancel()
	names := hostNames(layout.Nodes)
	m.Name, m.World = names[layout.Self], layout.World()
	reach, stop := context.WithTimeout(ctx, storeBound)
	board, err := store.Dial(reach, layout.StoreAddr, store.Options{Token: spec.Token, Job: layout.Job, Host: m.Name, Timeout: doctor.Bound})
	stop()
	if err != nil {
		return nil, 0, fmt.Errorf("node %d cannot reach node 0's store: %w", layout.Self, err)
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	go routineLost(ctx, board, lost)
	meeting := &doctor.Meeting{
		Machine: m, Board: board, Self: layout.Self, Names: names, Version: version(), First: first, Last: last,
	}
	r, status, err := meeting.Hold(ctx)
	if gone := board.Err(); err != nil && gone != nil {
		err = fmt.Errorf("node 0 (host %s) has ended, or is cut off, in the middle of the examination: %w", names[0], gone)
	}
	return r, status, errors.Join(err, board.Close())
}

// routineLost ends an examination with node 0's store. One, started by hold, which ends
// it.
func routineLost(ctx context.Context, board *store.Client, lost context.CancelCauseFunc) {
	select {
	case <-board.Done():
		lost(board.Err())
	case <-ctx.Done():
	}
}

// hostNames are the nodes' host names; those that several have get the node's number.
func hostNames(nodes []cluster.Node) []string {
	var out []string
	for _, n := range nodes {
		name := n.Host
		if slices.ContainsFunc(nodes, func(o cluster.Node) bool { return o.Index != n.Index && o.Host == n.Host }) {
			name = fmt.Sprintf("%s (node %d)", n.Host, n.Index)
		}
		out = append(out, name)
	}
	return out
}
