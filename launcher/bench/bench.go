// Package bench measures collectives between the workers of a job, and verifies
// what they compute.
//
// options.go says what is measured, collective.go what there is to know of each
// collective, pattern.go which data travel, memory.go where they lie, runner.go and
// timing.go how it is timed, overlap.go and product.go what a matrix product beside it
// costs, report.go and table.go how it is shown.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Engine is a group of the ranks whose collectives are measured.
type Engine struct {
	Name  string // in the report; "" where there is one alone
	Group *comm.Group
	Port  string // of RDMA, with its address, that the group uses on this rank; "" where it uses none
}

// Run measures one collective of each engine, one after the other at every size, and
// writes the report to out on rank 0. The groups have the same ranks, and move memory
// of dev. All ranks call it with the same options. An error of rank 0 says also that
// elements were wrong. When ctx ends, the groups are aborted.
//
// On the CPU the source is written anew before every iteration, as a training step
// writes its gradients, and a barrier follows: neither is timed. Many iterations are
// enqueued at once, and timed on the stream by events before and after; the median
// counts. On GPUs they follow each other without either, as in nccl-tests, and the mean
// counts. An iteration takes as long as its slowest rank. With Blocking each call is
// enqueued when the one before has ended, and timed on the host until it knows of the
// end.
func Run(ctx context.Context, dev device.Device, engines []Engine, o Options, out io.Writer) (err error) {
	for _, e := range engines {
		stop := context.AfterFunc(ctx, func() { e.Group.Abort(context.Cause(ctx)) })
		defer stop()
	}
	var runners []*runner
	defer func() {
		for _, r := range runners {
			if closed := r.close(); err == nil { // else closed says the same again
				err = closed
			}
		}
	}()
	for _, e := range engines {
		r, err := newRunner(ctx, dev, e, o)
		if err != nil {
			return err
		}
		runners = append(runners, r)
	}
	w, err := openReport(out, runners)
	if err != nil { // of this rank alone
		for _, e := range engines {
			e.Group.Abort(err)
		}
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	lead := runners[0]
	for cycle := 0; o.Cycles == 0 || cycle < o.Cycles; cycle++ {
		for i, s := range o.specs(lead.parsed, lead.group.Size()) {
			for _, r := range runners {
				if err := r.use(s); err != nil {
					return err
				}
				if cycle == 0 && i == 0 {
					if r.found, err = r.survey(); err != nil {
						return err
					}
				}
			}
			if cycle == 0 && i == 0 {
				if err := w.head(); err != nil {
					return err
				}
			}
			if err := measureAll(runners, w); err != nil {
				return err
			}
		}
	}
	return w.end()
}

// measureAll measures and reports all sizes.
func measureAll(runners []*runner, w *report) error {
	for _, sz := range runners[0].sizes {
		var rows []measured
		for _, r := range runners {
			m, err := r.measure(sz)
			if err != nil {
				return err
			}
			rows = append(rows, m)
		}
		if err := w.row(rows); err != nil {
			return err
		}
	}
	return nil
}

// found is what the survey learned.
type found struct {
	transport  string              // those that carried data, such as "shm" or "shm+tcp"
	ports      []string            // of RDMA, by rank; nil where it carried nothing
	algorithms [2][]comm.Algorithm // of each size, by placement; nil where there is no such form
}

// survey calls the collective once with each size. It shows which ways it takes,
// and touches all memory.
func (r *runner) survey() (f found, err error) {
	before := r.group.Stats().Wires
	for _, pl := range r.placements() {
		for _, sz := range r.sizes {
			dst, src := r.buffers(pl, sz)
			work := r.kind.call(r, dst, src)
			if err := work.Wait(r.ctx); err != nil { // a stream of a GPU is through before
				return f, err
			}
			f.algorithms[pl] = append(f.algorithms[pl], work.Result().Algorithm)
		}
	}
	var used []string
	for i, w := range r.group.Stats().Wires {
		if w.Sent+w.Received > before[i].Sent+before[i].Received {
			used = append(used, w.Transport)
		}
	}
	if f.transport, err = r.union(used); err != nil {
		return f, err
	}
	if slices.Contains(strings.Split(f.transport, "+"), "rdma") {
		f.ports, err = r.gather(r.engine.Port)
	}
	return f, err
}

// union joins the names that any rank gives, in the order of ranks.
func (r *runner) union(names []string) (string, error) {
	all, err := r.gather(strings.Join(names, "+"))
	if err != nil {
		return "", err
	}
	var union []string
	seen := map[string]bool{"": true}
	for _, text := range all {
		for name := range strings.SplitSeq(text, "+") {
			if !seen[name] {
				seen[name] = true
				union = append(union, name)
			}
		}
	}
	if len(union) == 0 {
		return "none", nil
	}
	return strings.Join(union, "+"), nil
}

// agree refuses ranks that were started with other options.
func (r *runner) agree(mine string) error {
	all, err := r.gather(mine)
	if err != nil {
		return err
	}
	for rank, theirs := range all {
		if theirs != all[0] {
			return fmt.Errorf("rank %d on %s measures %s, and rank 0 on %s measures %s: give every node the same arguments",
				rank, r.group.Host(rank), theirs, r.group.Host(0), all[0])
		}
	}
	return nil
}

// longest is the most bytes of a text that gather takes.
const longest = 4096

// gather returns every rank's text.
func (r *runner) gather(text string) ([]string, error) {
	if len(text) > longest {
		return nil, fmt.Errorf("a text of %d bytes, at most %d go to the other ranks: %.40q", len(text), longest, text)
	}
	n := r.group.Size()
	mine, all := make([]byte, longest), make([]byte, n*longest)
	copy(mine, text)
	r.group.AllGather(r.host, device.Host(all), device.Host(mine), u8)
	if err := r.host.Synchronize(r.ctx); err != nil {
		return nil, err
	}
	texts := make([]string, n)
	for i := range texts {
		texts[i] = strings.TrimRight(string(all[i*longest:][:longest]), "\x00")
	}
	return texts, nil
}
