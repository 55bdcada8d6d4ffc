package data

import (
	"context"
	"errors"
	"fmt"
)

// A Share is the part of a job that one rank does.
type Share struct {
	Rank, World int
	MicroBatch  int // B, sequences of a rank in a micro-step
	GradAccum   int // micro-steps in a step
	// Total is the sequences of the whole job; 0: there is no end. What the last
	// batch has beyond is empty: no target of it counts.
	Total int64
}

// Batch is the global batch: the sequences of a step over all ranks.
func (s Share) Batch() int { return s.World * s.MicroBatch * s.GradAccum }

func (s Share) check() error {
	if s.World < 1 || s.Rank < 0 || s.Rank >= s.World || s.MicroBatch < 1 || s.GradAccum < 1 {
		return fmt.Errorf("data: rank %d of %d with %d sequences x %d micro-steps makes no sense", s.Rank, s.World, s.MicroBatch, s.GradAccum)
	}
	return nil
}

// A Loader hands one rank its sequences, step after step, and reads the next
// step while the caller computes. Step k of the job consists of the sequences
// k*batch … (k+1)*batch-1 of the Order, however many ranks and micro-steps share
// them. It is used by one goroutine.
type Loader struct {
	data  Dataset
	docs  Documents // data, where its sequences hold several
	order Order
	share Share

	current, next *step
	coming        int // the step that the prefetcher was asked for, or -1
	asked         chan int
	done          chan error
	stop          context.CancelFunc
	stopped       context.Context
}

// A step is a rank's micro-batches of one step, one behind the other.
type step struct {
	tokens, targets []int32
	docs            []int32 // nil where a sequence is one document
	counts          []int   // of the targets that count, a micro-step each
}

// NewLoader starts a loader, whose first call of Step may name any step. Close
// ends it.
func NewLoader(d Dataset, seed uint64, share Share) (*Loader, error) {
	if err := share.check(); err != nil {
		return nil, err
	}
	if n, batch := d.Len(), share.Batch(); n < batch {
		return nil, fmt.Errorf("data.train holds %d sequences of data.seq_len = %d, and one step takes %d: train.micro_batch %d x train.grad_accum %d x %d ranks; lower one of them or data.seq_len, or name more data",
			n, d.SeqLen(), batch, share.MicroBatch, share.GradAccum, share.World)
	}
	l := &Loader{
		data: d, order: NewOrder(seed, d.Len()), share: share,
		coming: -1, asked: make(chan int, 1), done: make(chan error, 1),
	}
	l.docs, _ = d.(Documents)
	l.stopped, l.stop = context.WithCancel(context.Background())
	for _, s := range []**step{&l.current, &l.next} {
		n := share.GradAccum * share.MicroBatch * d.SeqLen()
		*s = &step{tokens: make([]int32, n), targets: make([]int32, n), counts: make([]int, share.GradAccum)}
		if l.docs != nil {
			(*s).docs = make([]int32, n)
		}
	}
	go l.prefetch()
	return l, nil
}

// prefetch reads the steps that it is asked for into l.next, which belongs to it
// from the request to the answer. NewLoader starts it, Close ends it; it closes
// l.done.
func (l *Loader) prefetch() {
	defer close(l.done)
	for {
		select {
		case <-l.stopped.Done():
			return
		case k := <-l.asked:
			l.done <- l.read(k, l.next)
		}
	}
}

// read fills s with this rank's part of step k.
func (l *Loader) read(k int, s *step) error {
	t, b := l.data.SeqLen(), l.share.MicroBatch
	clear(s.counts)
	for i := range l.share.GradAccum * b {
		// Within a step, ranks take turns by micro-batches.
		micro, at := i/b, i*t
		place := int64(k)*int64(l.share.Batch()) + int64((micro*l.share.World+l.share.Rank)*b+i%b)
		if l.share.Total > 0 && place >= l.share.Total {
			pad(s.tokens[at:at+t], s.targets[at:at+t])
			clear(s.docsOf(at, t))
			continue
		}
		sample := l.order.At(place)
		n, err := l.data.Read(sample, s.tokens[at:at+t], s.targets[at:at+t])
		if err != nil {
			return fmt.Errorf("read sequence %d for step %d on rank %d: %w", sample, k, l.share.Rank, err)
		}
		s.counts[micro] += n
		if l.docs != nil {
			l.docs.Docs(sample, s.docsOf(at, t))
		}
	}
	return nil
}

// docsOf is the bounds of t positions from at on, nil where there are none.
func (s *step) docsOf(at, t int) []int32 {
	if s.docs == nil {
		return nil
	}
	return s.docs[at : at+t]
}

var errClosed = errors.New("data: the loader is closed")

// Step makes step k, counted from 0, the current one and returns the number of
// this rank's targets that count in it. It waits for no longer than ctx allows.
// After an error the loader can only be closed.
func (l *Loader) Step(ctx context.Context, k int) (targets int, err error) {
	for l.coming != k {
		if l.coming >= 0 { // another step was expected: a jump
			if err := l.await(ctx); err != nil {
				return 0, err
			}
		}
		l.ask(k)
	}
	if err := l.await(ctx); err != nil {
		return 0, err
	}
	l.current, l.next = l.next, l.current
	l.ask(k + 1)
	for _, n := range l.current.counts {
		targets += n
	}
	return targets, nil
}

func (l *Loader) ask(k int) {
	l.coming = k
	l.asked <- k // never blocks: one request at a time
}

// await waits for the answer to the last request.
func (l *Loader) await(ctx context.Context) error {
	select {
	case err, open := <-l.done:
		if !open {
			return errClosed
		}
		l.coming = -1
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the data of step %d on rank %d: %w", l.coming, l.share.Rank, context.Cause(ctx))
	}
}

// Micro copies micro-batch m of the current step to tokens and targets, [B*T]
// each, and returns the number of targets that count in it.
func (l *Loader) Micro(m int, tokens, targets []int32) int {
	n := l.share.MicroBatch * l.data.SeqLen()
	copy(tokens[:n], l.current.tokens[m*n:])
	copy(targets[:n], l.current.targets[m*n:])
	return l.current.counts[m]
}

// Docs copies the bounds of documents in micro-batch m of the current step to docs
// [B*T]: for each position, the first position within its sequence of its document.
// It is false, and writes nothing, where each sequence is one document.
func (l *Loader) Docs(m int, docs []int32) bool {
	if l.docs == nil {
		return false
	}
	n := l.share.MicroBatch * l.data.SeqLen()
	copy(docs[:n], l.current.docs[m*n:])
	return true
}

// Close ends the prefetcher and waits for it: for the read that it is in, if
// any.
func (l *Loader) Close() {
	l.stop()
	for range l.done { // until prefetch has closed it
	}
}
