package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/comm/agree"
)

// part is this rank's part of what all ranks do at once beside the training, such as
// writing to a disk: each for itself, in a goroutine, without a collective. One rank's
// slow disk so keeps none of another's collectives waiting. When all parts are done,
// gather tells every rank what came of them.
type part struct {
	what   string       // for errors: "the checkpoint of step 100"
	moved  atomic.Int64 // bytes read or written so far
	cancel context.CancelFunc
	done   chan struct{} // closed by routine
	result []byte
	err    error
}

// beside starts this rank's part of what f does. Every rank calls it. A f that writes
// ends soon once its context has; one that reads may go on until the process ends.
func (j *job) beside(what string, f func(ctx context.Context, p *part) ([]byte, error)) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{what: what, cancel: cancel, done: make(chan struct{})}
	go p.routine(ctx, f)
	return p
}

// routine is the goroutine of a part, which beside starts. It ends with f.
func (p *part) routine(ctx context.Context, f func(ctx context.Context, p *part) ([]byte, error)) {
	defer close(p.done)
	defer p.cancel()
	p.result, p.err = f(ctx, p)
}

// pending is 1 until this rank's part is done, then 0: the maximum over the ranks says
// whether all are.
func (p *part) pending() float64 {
	select {
	case <-p.done:
		return 0
	default:
		return 1
	}
}

// count is the Moved of package checkpoint.
func (p *part) count(bytes int) { p.moved.Add(int64(bytes)) }

// await waits until all ranks' parts are done. Every so often the ranks exchange
// whether they are, so that no collective takes longer than that, however long a disk
// does. A part that moves no byte for comm.timeout ends the job.
func (j *job) await(ctx context.Context, p *part) error {
	beat := min(time.Second, j.cfg.Comm.Timeout/4)
	moved, since := p.moved.Load(), time.Now()
	for {
		timer := time.NewTimer(beat)
		select {
		case <-p.done:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		timer.Stop()
		if now := p.moved.Load(); now != moved {
			moved, since = now, time.Now()
		}
		maxima := []float64{p.pending(), 0}
		if maxima[0] > 0 && time.Since(since) > j.cfg.Comm.Timeout {
			maxima[1] = float64(1 + j.rank())
		}
		if err := j.exchange(ctx, nil, maxima); err != nil {
			return fmt.Errorf("%s: %w", p.what, err)
		}
		if stuck := int(maxima[1]); stuck > 0 {
			return fmt.Errorf("%s: no byte has moved on %s for %s (comm.timeout): its disk does not answer", p.what, agree.Who(j.group, stuck-1), j.cfg.Comm.Timeout)
		}
		if maxima[0] == 0 {
			return nil
		}
	}
}

// gather brings every rank what all parts have come to, once they are done: their
// results, or in failed why some have none, the same text on all ranks.
func (j *job) gather(ctx context.Context, p *part) (results [][]byte, failed, err error) {
	mine := append([]byte{0}, p.result...)
	if p.err != nil {
		mine = append([]byte{1}, p.err.Error()...)
	}
	sizes, err := agree.Gather(ctx, j.group, j.host, p.what, binary.LittleEndian.AppendUint64(nil, uint64(len(mine))))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p.what, err)
	}
	longest := uint64(0)
	for _, n := range sizes {
		longest = max(longest, binary.LittleEndian.Uint64(n))
	}
	results, err = agree.Gather(ctx, j.group, j.host, p.what, append(mine, make([]byte, longest-uint64(len(mine)))...))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p.what, err)
	}
	var errs []error
	for r := range results {
		bad, text := results[r][0] == 1, results[r][1:binary.LittleEndian.Uint64(sizes[r])]
		results[r] = text
		switch {
		case bad && j.size() == 1:
			errs = append(errs, p.err)
		case bad:
			errs = append(errs, fmt.Errorf("%s: %s", agree.Who(j.group, r), text))
		}
	}
	return results, errors.Join(errs...), nil
}

// together does f on every rank and waits for all.
func (j *job) together(ctx context.Context, what string, f func(ctx context.Context, p *part) ([]byte, error)) (results [][]byte, failed, err error) {
	p := j.beside(what, f)
	if err := j.await(ctx, p); err != nil {
		p.cancel()
		return nil, nil, err
	}
	return j.gather(ctx, p)
}

// paced writes to w in pieces, counts them, and ends when ctx does.
type paced struct {
	ctx context.Context
	w   io.Writer
	*part
}

const paceBytes = 4 << 20

func (p paced) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		if err := p.ctx.Err(); err != nil {
			return n, err
		}
		m, err := p.w.Write(b[:min(len(b), paceBytes)])
		n += m
		p.count(m)
		if err != nil {
			return n, err
		}
		b = b[m:]
	}
	return n, nil
}
