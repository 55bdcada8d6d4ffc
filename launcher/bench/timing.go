package bench

import (
	"math"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
)

// sample is what some iterations took.
type sample struct {
	took      []int64 // nanoseconds of a call, for each iteration
	algorithm comm.Algorithm
}

// time returns how long a call takes.
func (r *runner) time(pl placement, s size) (seconds float64, a comm.Algorithm, err error) {
	dst, src := r.buffers(pl, s)
	timed := r.timeOnStream
	switch {
	case r.o.Blocking:
		timed = r.timeOnHost
	case r.dev.Kind() != device.CPU:
		timed = r.timeOnGPU
	}
	content := r.pattern.source(r.group.Rank(), 0)
	if !src.OnHost() {
		if err := r.write(src, content); err != nil {
			return 0, "", err
		}
	}
	if _, err := timed(r.o.Warmup, content, dst, src); err != nil {
		return 0, "", err
	}
	got, err := timed(r.o.Iterations, content, dst, src)
	if err != nil {
		return 0, "", err
	}
	seconds, err = r.typical(got.took)
	return seconds, got.algorithm, err
}

// typical makes one time in seconds of the iterations' nanoseconds: of all ranks' by
// Average, and of the iterations the median, or with Tail the 99th percentile.
func (r *runner) typical(took []int64) (seconds float64, err error) {
	switch r.o.Average {
	case "mean":
		err = r.combine(took, comm.Avg)
	case "min":
		err = r.combine(took, comm.Min)
	case "rank0": // whose report it is
	default:
		err = r.combine(took, comm.Max)
	}
	if r.o.Tail {
		return percentile(took, 0.99) / 1e9, err
	}
	return median(took) / 1e9, err
}

// batch is how many iterations are enqueued at once: the CPU stream's queue holds so
// many, and the host need not run beside them.
const batch = 512

// timeOnStream enqueues n iterations on a stream of the CPU and times them there. The
// source is written anew before each.
func (r *runner) timeOnStream(n int, content block, dst, src device.Buffer) (s sample, err error) {
	for len(s.took) < n {
		k := min(n-len(s.took), batch/r.o.Aggregate+1)
		begin, end, host := make([]device.Event, k), make([]device.Event, k), make([]int64, k)
		var last *comm.Work
		enqueued := make(chan struct{})
		r.host.Do("wait for the host", func() error {
			<-enqueued
			return nil
		})
		for i := range k {
			if err := r.write(src, content); err != nil {
				return s, err
			}
			r.group.Barrier(r.stream)
			begin[i] = r.stream.Record()
			last, host[i] = r.iterate(dst, src)
			end[i] = r.stream.Record()
		}
		close(enqueued)
		if err := last.Wait(r.ctx); err != nil {
			return s, err
		}
		if err := r.sync(); err != nil {
			return s, err
		}
		for i := range k {
			d, err := end[i].Since(begin[i])
			if err != nil {
				return s, err
			}
			if s.took = append(s.took, d.Nanoseconds()/int64(r.o.Aggregate)); r.o.HostTime {
				s.took[len(s.took)-1] = host[i]
			}
		}
		s.algorithm = last.Result().Algorithm
	}
	return s, nil
}

// iterate makes the calls of one iteration. host is the nanoseconds that one took its
// caller.
func (r *runner) iterate(dst, src device.Buffer) (last *comm.Work, host int64) {
	began := time.Now()
	for range r.o.Aggregate {
		last = r.kind.call(r, dst, src)
	}
	return last, time.Since(began).Nanoseconds() / int64(r.o.Aggregate)
}

// timeOnGPU makes n iterations in a row, as a loop does that does not wait, and times
// them by events of the GPU. The source stays as it is. Where the median is wanted,
// all iterations count as one, for events between them would take time of their own.
func (r *runner) timeOnGPU(n int, _ block, dst, src device.Buffer) (s sample, err error) {
	var last *comm.Work
	var host int64
	r.group.Barrier(r.stream)
	events := []device.Event{r.stream.Record()}
	for i := range n {
		var took int64
		last, took = r.iterate(dst, src)
		host += took
		if r.o.Tail || i == n-1 {
			events = append(events, r.stream.Record())
		}
	}
	if err := r.sync(); err != nil || n == 0 {
		return s, err
	}
	if err := last.Wait(r.ctx); err != nil {
		return s, err
	}
	calls := int64(r.o.Aggregate)
	if !r.o.Tail {
		calls *= int64(n)
	}
	for i, e := range events[1:] {
		d, err := e.Since(events[i])
		if err != nil {
			return s, err
		}
		s.took = append(s.took, d.Nanoseconds()/calls)
	}
	if r.o.HostTime {
		s.took = []int64{host / int64(n)}
	}
	device.Release(events...)
	s.algorithm = last.Result().Algorithm
	return s, nil
}

// timeOnHost makes n calls, each after the other, and takes the times that the caller
// sees.
func (r *runner) timeOnHost(n int, content block, dst, src device.Buffer) (s sample, err error) {
	for range n {
		if src.OnHost() {
			if err := r.write(src, content); err != nil {
				return s, err
			}
		}
		r.group.Barrier(r.stream)
		if err := r.sync(); err != nil {
			return s, err
		}
		start := time.Now()
		work := r.kind.call(r, dst, src)
		if err := work.Wait(r.ctx); err != nil {
			return s, err
		}
		s.took = append(s.took, time.Since(start).Nanoseconds())
		s.algorithm = work.Result().Algorithm
	}
	return s, nil
}

// median of an odd number is the middle, else the mean of the two in the middle.
func median(v []int64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (float64(v[(len(v)-1)/2]) + float64(v[len(v)/2])) / 2
}

// percentile is the smallest value that a share of all do not exceed.
func percentile(v []int64, share float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return float64(v[int(math.Ceil(share*float64(len(v))))-1])
}
