package bench

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
)

// beside is what a collective and a matrix product take at the same time, in seconds
// of one call and one product.
type beside struct {
	call    float64
	product float64
	alone   float64 // the product while nothing else runs, before and after
	slower  float64 // the product, as a share of its time alone
}

const (
	// productTime is about how long products run, in seconds, for a time to be had.
	productTime = 20e-3
	mostRounds  = 64
	mostCalls   = 4096
	// tries is how often more calls are made where they ended before the products.
	tries = 4
)

// rounds is how many products are timed together.
func rounds(seconds float64) int {
	return min(max(int(math.Ceil(productTime/seconds)), 1), mostRounds)
}

// timeProduct is the seconds of one product of n on the slowest rank, all ranks at work.
func (r *runner) timeProduct(n int) (float64, error) {
	if err := r.combine([]int64{0}, comm.Max); err != nil { // begin together
		return 0, err
	}
	s := r.product.on()
	begin := s.Record()
	for range n {
		r.product.enqueue()
	}
	end := s.Record()
	if err := end.Sync(r.ctx); err != nil {
		return 0, err
	}
	d, err := end.Since(begin)
	if err != nil {
		return 0, err
	}
	device.Release(begin, end)
	took := []int64{d.Nanoseconds() / int64(n)}
	err = r.combine(took, comm.Max)
	return float64(max(took[0], 1)) / 1e9, err
}

// prepareProduct finds out how many products are timed together.
func (r *runner) prepareProduct() (err error) {
	if r.product, err = newProduct(r.dev, r.o.Overlap); err != nil {
		return fmt.Errorf("--overlap %d: %w", r.o.Overlap, err)
	}
	if _, err := r.timeProduct(1); err != nil { // chooses its algorithm
		return err
	}
	one, err := r.timeProduct(1)
	r.rounds = rounds(one)
	return err
}

// timeBeside runs products and calls at the same time. Calls are enqueued until they
// outlast the products; all ranks make as many.
func (r *runner) timeBeside(pl placement, s size, seconds float64) (*beside, error) {
	dst, src := r.buffers(pl, s)
	n := r.rounds
	before, err := r.timeProduct(n)
	if err != nil {
		return nil, err
	}
	shared := []int64{int64(seconds * 1e9)} // every rank's is the same but for rank0
	if err := r.combine(shared, comm.Max); err != nil {
		return nil, err
	}
	calls := int(1.5*before*float64(n)/math.Max(float64(shared[0])/1e9, 1e-9)) + 2
	for try := 1; ; try++ {
		calls = min(calls, mostCalls)
		b, covered, err := r.together(n, calls, dst, src)
		if err != nil {
			return nil, err
		}
		if covered || try == tries || calls == mostCalls {
			after, err := r.timeProduct(n)
			b.alone = (before + after) / 2
			b.slower = b.product/b.alone - 1
			return b, err
		}
		calls *= 2
	}
}

// together times n products beside so many calls. covered says that the calls outlasted
// the products on all ranks.
func (r *runner) together(n, calls int, dst, src device.Buffer) (b *beside, covered bool, err error) {
	comms, compute := r.stream, r.product.on()
	r.group.Barrier(comms)
	start := comms.Record()
	compute.Wait(start)
	begin := compute.Record()
	for range n {
		r.product.enqueue()
	}
	end := compute.Record()
	first := comms.Record()
	for range calls {
		r.kind.call(r, dst, src)
	}
	last := comms.Record()
	if err := r.sync(); err != nil {
		return nil, false, err
	}
	if err := end.Sync(r.ctx); err != nil {
		return nil, false, err
	}
	product, err := end.Since(begin)
	if err != nil {
		return nil, false, err
	}
	collective, err := last.Since(first)
	if err != nil {
		return nil, false, err
	}
	device.Release(start, begin, end, first, last)
	least := []int64{(collective - product).Nanoseconds()}
	if err := r.combine(least, comm.Min); err != nil {
		return nil, false, err
	}
	took := []int64{product.Nanoseconds() / int64(n), collective.Nanoseconds() / int64(calls)}
	if err := r.combine(took, comm.Max); err != nil {
		return nil, false, err
	}
	return &beside{product: float64(took[0]) / 1e9, call: float64(took[1]) / 1e9}, least[0] >= 0, nil
}
