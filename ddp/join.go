package ddp

import (
	"context"
	"errors"
	"fmt"
)

// presence is what the last Join found out. All but out is the same on every
// rank. The zero value is that of a program without Join: all ranks have data.
type presence struct {
	out     bool // this rank has run out of data
	partial bool // some ranks have, and some have not
	lead    int  // the lowest rank that has data: its order and buffers count
}

// Join is for ranks that hold different amounts of data. Before each window every
// rank says whether it has data for it, and all learn how many have:
//
//	for {
//		batch, more := next()
//		present, err := sink.Join(ctx, more)
//		if err != nil {
//			return err
//		}
//		if present == 0 {
//			break // on every rank in the same round
//		}
//		sink.StepBegin(true)
//		if more {
//			// forward and backward
//		}
//		sink.Finish(ctx)
//		// the optimizer, on every rank
//	}
//
// A rank that says false shadows the others: it begins and finishes one synced
// micro-step without a backward pass, which takes part in all of their
// collectives with zeros. It applies the same gradients as they do, so that its
// weights stay theirs. It stays out until a Join has returned 0; behind that a
// new epoch may begin. To stop as soon as the first rank has run out, leave
// where present is below the group's size.
//
// Zeros add nothing to comm.Sum: with a loss that is scaled by 1/(all ranks'
// targets of the step) nothing else is to be done. comm.Avg divides by the size
// of the group, whoever is present; for the mean over the present ranks, scale
// the loss by size/present.
//
// Join is a small collective that the host waits for, until ctx ends. It belongs
// before the first StepBegin of a window. A rank that leaves without it is found
// by the group's deadline, or by what it calls instead.
func (d *DDP) Join(ctx context.Context, more bool) (present int, err error) {
	switch {
	case d.err != nil:
		return 0, d.err
	case d.window:
		return 0, d.fail(errors.New("Join within an accumulation window: it belongs before the window's first StepBegin"))
	case more && d.presence.out:
		return 0, d.fail(errors.New("Join(true) after Join(false): a rank that has run out of data stays out until all have, when Join returns 0"))
	}
	flag := []byte{0}
	if more {
		flag[0] = 1
	}
	flags, err := d.gather(ctx, flag)
	if err != nil {
		return 0, d.fail(fmt.Errorf("asking which ranks have data: %w", err))
	}
	now := presence{out: !more}
	for r, f := range flags {
		if f[0] == 0 {
			continue
		}
		if present == 0 {
			now.lead = r
		}
		present++
	}
	if present == 0 {
		now = presence{}
	}
	now.partial = present > 0 && present < len(flags)
	d.presence = now
	return present, nil
}
