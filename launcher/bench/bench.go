// Package bench measures collectives between the workers of a job, and verifies
// what they compute.
//
// options.go says what is measured, collective.go what there is to know of each
// collective, pattern.go which data travel, runner.go how it is timed, report.go
// how it is shown.
package bench

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Run measures one collective over the group, and writes the report to out on
// rank 0. All ranks call it with the same options. An error of rank 0 says also
// that elements were wrong. When ctx ends, the group is aborted.
//
// The source is written anew before every call, as a training step writes its
// gradients, and a barrier follows: neither is timed. A call takes as long as its
// slowest rank. The time of a size is the median over the iterations.
//
// As a rule many calls are enqueued at once, and timed on the stream by events
// before and after. With Blocking each call is enqueued when the one before has
// ended, and timed on the host until it knows of the end.
func Run(ctx context.Context, group *comm.Group, o Options, out io.Writer) (err error) {
	stop := context.AfterFunc(ctx, func() { group.Abort(context.Cause(ctx)) })
	defer stop()
	r, err := newRunner(ctx, group, o)
	if err != nil {
		return err
	}
	defer func() {
		if closed := r.close(); err == nil { // else closed says the same again
			err = closed
		}
	}()
	found, err := r.survey()
	if err != nil {
		return err
	}
	w := newReport(out, r, found)
	if group.Rank() == 0 {
		if err := w.head(); err != nil {
			return err
		}
	}
	for _, sz := range r.sizes {
		row, err := r.measure(sz)
		if err != nil {
			return err
		}
		if group.Rank() == 0 {
			if err := w.row(row); err != nil {
				return err
			}
		}
	}
	if group.Rank() != 0 {
		return nil
	}
	return w.end()
}

// found is what the survey learned.
type found struct {
	transport  string              // those that carried data, such as "shm" or "shm+tcp"
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
			if err := r.sync(); err != nil {
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
	f.transport, err = r.union(used)
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
const longest = 1024

// gather returns every rank's text.
func (r *runner) gather(text string) ([]string, error) {
	if len(text) > longest {
		return nil, fmt.Errorf("a text of %d bytes, at most %d go to the other ranks: %.40q", len(text), longest, text)
	}
	n := r.group.Size()
	mine, all := make([]byte, longest), make([]byte, n*longest)
	copy(mine, text)
	r.group.AllGather(r.stream, device.Host(all), device.Host(mine), u8)
	if err := r.sync(); err != nil {
		return nil, err
	}
	texts := make([]string, n)
	for i := range texts {
		texts[i] = strings.TrimRight(string(all[i*longest:][:longest]), "\x00")
	}
	return texts, nil
}
