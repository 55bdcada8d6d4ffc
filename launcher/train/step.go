package train

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// step makes one optimizer step on the loader's current batch, which counts
// targets targets over all ranks, and returns the sum of all ranks' losses and
// this rank's times.
func (j *job) step(ctx context.Context, targets, lr float64) (lossSum float64, t times, err error) {
	scale := float32(1 / targets)
	var lossKnown device.Event
	marks := []device.Event{j.compute.Record()}
	j.ops.Zero(j.compute, j.loss)
	for m, b := range j.batches {
		if err := j.sink.StepBegin(m == len(j.batches)-1); err != nil {
			return 0, t, err
		}
		j.loader.Micro(m, b.Tokens.I32(), b.Targets.I32())
		j.model.Forward(j.weights, b, j.loss, true)
		marks = append(marks, j.compute.Record())
		if m == len(j.batches)-1 {
			lossKnown = j.addLosses()
		}
		j.model.Backward(j.weights, j.sink, scale)
		marks = append(marks, j.compute.Record())
		if err := j.sink.Finish(ctx); err != nil {
			return 0, t, err
		}
	}
	beforeOptim := j.compute.Record()
	j.compute.Wait(lossKnown)
	j.optim.step(j.compute, j.ops, j.weights, j.sink, j.lossSum, lr)
	end := j.compute.Record()
	if err := end.Sync(ctx); err != nil {
		return 0, t, err
	}

	for m := range j.batches {
		forward, err := marks[2*m+1].Since(marks[2*m])
		if err != nil {
			return 0, t, err
		}
		backward, err := marks[2*m+2].Since(marks[2*m+1])
		if err != nil {
			return 0, t, err
		}
		t.forward += milliseconds(forward)
		t.backward += milliseconds(backward)
	}
	optim, err := end.Since(beforeOptim)
	if err != nil {
		return 0, t, err
	}
	stats, err := j.sink.Stats(ctx)
	if err != nil {
		return 0, t, err
	}
	t.optim, t.exposed = milliseconds(optim), milliseconds(stats.Exposed)
	return j.lossSum.F64()[0], t, nil
}

// addLosses adds up the ranks' losses beside the backward pass, so that every
// rank's optimizer knows of one that is not finite.
func (j *job) addLosses() (done device.Event) {
	j.comms.Wait(j.compute.Record())
	j.comms.Do("loss", func() error {
		copy(j.lossSum.F64(), j.loss.F64())
		return nil
	})
	j.group.AllReduce(j.comms, j.lossSum.Buf, dtype.F64, comm.Sum)
	return j.comms.Record()
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// exchange adds up sums (at most 8) over the ranks and takes the maximum of each
// of maxima (at most 16), in place.
func (j *job) exchange(ctx context.Context, sums, maxima []float64) error {
	s, m := j.sums.Buf.Slice(0, 8*len(sums)), j.maxima.Buf.Slice(0, 8*len(maxima))
	copy(device.View[float64](s), sums)
	copy(device.View[float64](m), maxima)
	j.group.AllReduce(j.comms, s, dtype.F64, comm.Sum)
	j.group.AllReduce(j.comms, m, dtype.F64, comm.Max)
	if err := j.comms.Synchronize(ctx); err != nil {
		return err
	}
	copy(sums, device.View[float64](s))
	copy(maxima, device.View[float64](m))
	return nil
}

// evaluate is the mean loss over the evaluation list.
func (j *job) evaluate(ctx context.Context) (float64, error) {
	b := j.batches[0]
	j.ops.Zero(j.compute, j.loss)
	var counted int
	for m := range j.eval.Batches() {
		n, err := j.eval.Read(m, b.Tokens.I32(), b.Targets.I32())
		if err != nil {
			return 0, err
		}
		counted += n
		j.model.Forward(j.weights, b, j.loss, false)
		// The batch is written again in the next round.
		if err := j.compute.Synchronize(ctx); err != nil {
			return 0, err
		}
	}
	sums := []float64{j.loss.F64()[0], float64(counted)}
	if err := j.exchange(ctx, sums, nil); err != nil {
		return 0, err
	}
	if sums[1] == 0 {
		return 0, fmt.Errorf("the evaluation data holds no target that counts")
	}
	return sums[0] / sums[1], nil
}

// sent is the number of bytes that this rank has sent so far.
func (j *job) sent() (n int64) {
	for _, w := range j.group.Stats().Wires {
		n += w.Sent
	}
	return n
}

// peakMemory is the most memory that this process has held, in bytes.
func peakMemory() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Maxrss) * 1024
}

func progress(r stepRecord, total int, eta time.Duration, val *float64) status.Progress {
	p := status.Progress{
		Step: r.Step, Total: total, Loss: r.Loss, LR: r.LR, GradNorm: r.GradNorm, TokensPerS: r.TokensPerS,
		ETA: status.Float(eta.Seconds()),
	}
	if val != nil {
		v := status.Float(*val)
		p.ValLoss = &v
	}
	return p
}
