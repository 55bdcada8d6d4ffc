package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// stepped is what a step leaves on this rank.
type stepped struct {
	loss, lossSum float64 // over this rank's targets, and over all ranks'
	norm, coef    float64 // of the gradients; see scalars
	times         times
	compressed    compressed
	ended         time.Time // when the device was done, by the host's clock
}

// step makes one optimizer step on the loader's current batch, which counts
// targets targets over all ranks. Nothing in it waits for the device before all is
// enqueued; then meanwhile runs, beside the device.
//
// The head and the loss are computed in the backward pass, which needs the logits: a
// mark behind Forward is before both.
func (j *job) step(ctx context.Context, targets, lr float64, meanwhile func() error) (r stepped, err error) {
	scale := float32(1 / targets)
	x := j.scalars
	var complete device.Event // the loss of this rank is
	begin := time.Now()       // the device stands still: the first mark is reached at once
	marks := []device.Event{j.compute.Record()}
	j.ops.Zero(j.compute, x.loss)
	for m, f := range j.feeds {
		last := m == len(j.feeds)-1
		if err := j.reducer.StepBegin(last); err != nil {
			return r, err
		}
		f.take(j.loader, m)
		f.upload(j.compute)
		batch := f.Batch
		batch.Step, batch.Sample = j.done, (m*j.size()+j.rank())*batch.B
		j.model.Forward(j.forward, batch, x.loss, true)
		marks = append(marks, j.compute.Record())
		j.model.Backward(j.weights, j.sink, scale)
		marks = append(marks, j.compute.Record())
		if last {
			j.compute.Copy(x.lossSum.Buf, x.loss.Buf)
		}
		complete = j.compute.Record()
		if err := j.reducer.Finish(ctx); err != nil {
			return r, err
		}
	}
	if err := j.reducer.Update(complete, lr); err != nil {
		return r, err
	}
	x.read(j.compute)
	end := j.compute.Record()
	if err := meanwhile(); err != nil {
		return r, err
	}
	if err := end.Sync(ctx); err != nil {
		return r, err
	}
	r.loss, r.lossSum, r.norm, r.coef = x.readings()
	r.compressed = j.arch.compression.step(r.coef)
	took, err := end.Since(marks[0])
	if err != nil {
		return r, err
	}
	r.ended = begin.Add(took)
	waited, err := j.reducer.Waits(ctx)
	if err != nil {
		return r, err
	}
	if r.times, err = stepTimes(marks, end, waited); err != nil {
		return r, err
	}
	if g := j.gpuTrace; g != nil && j.tracer.Enabled() {
		return r, g.buckets(marks[len(marks)-3], waited.buckets)
	}
	return r, nil
}

// stepTimes splits the device's time between the first of marks, two a micro-step
// behind that, and end. Each moment is in one part: what the compute stream waits for
// communication is exposed, and what it does behind the backward pass is the optimizer.
func stepTimes(marks []device.Event, end device.Event, w waits) (t times, err error) {
	var errs []error
	between := func(from, to device.Event) float64 {
		d, err := to.Since(from)
		errs = append(errs, err)
		return milliseconds(d)
	}
	for m := 0; m+2 < len(marks); m += 2 {
		t.forward += between(marks[m], marks[m+1])
		t.backward += between(marks[m+1], marks[m+2])
	}
	t.exposed = milliseconds(w.exposed)
	t.forward -= milliseconds(w.forward)
	t.backward -= milliseconds(w.backward)
	t.optim = between(marks[len(marks)-1], end) - milliseconds(w.exposed-w.forward-w.backward)
	return t, errors.Join(errs...)
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// exchange adds up sums (at most 8) over the ranks and takes the maximum of each
// of maxima (at most 16), in place.
func (j *job) exchange(ctx context.Context, sums, maxima []float64) error {
	s, m := j.sums.Buf.Slice(0, 8*len(sums)), j.maxima.Buf.Slice(0, 8*len(maxima))
	copy(device.View[float64](s), sums)
	copy(device.View[float64](m), maxima)
	j.group.AllReduce(j.host, s, dtype.F64, comm.Sum)
	j.group.AllReduce(j.host, m, dtype.F64, comm.Max)
	if err := j.host.Synchronize(ctx); err != nil {
		return err
	}
	copy(sums, device.View[float64](s))
	copy(maxima, device.View[float64](m))
	return nil
}

// evaluate is the mean loss over the evaluation list, and of images the share that is
// told right; NaN of others.
func (j *job) evaluate(ctx context.Context) (loss, accuracy float64, err error) {
	f := j.feeds[0]
	j.ops.Zero(j.compute, j.scalars.loss)
	var counted int
	for m := range j.eval.Batches() {
		n, err := f.takeEval(j.eval, m)
		if err != nil {
			return 0, 0, err
		}
		counted += n
		f.upload(j.compute)
		j.model.Forward(j.weights, f.Batch, j.scalars.loss, false)
		j.scalars.read(j.compute)
		// The batch is written again in the next round.
		if err := j.compute.Synchronize(ctx); err != nil {
			return 0, 0, err
		}
	}
	loss, _, _, _ = j.scalars.readings()
	correct := math.NaN()
	if c, ok := j.model.(classifier); ok {
		correct = float64(c.Correct())
	}
	sums := []float64{loss, float64(counted), correct}
	if err := j.exchange(ctx, sums, nil); err != nil {
		return 0, 0, err
	}
	if sums[1] == 0 {
		return 0, 0, fmt.Errorf("the evaluation data holds no target that counts")
	}
	return sums[0] / sums[1], sums[2] / sums[1], nil
}

// peakMemory is the most memory that this process has held, in bytes: of its GPU
// where it has one, without what NCCL has allocated.
func (j *job) peakMemory() float64 {
	if j.gpu != nil {
		return float64(j.gpu.Peak())
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Maxrss) * 1024
}
