package data

import "fmt"

// An Evaluation is a fixed list of a dataset's sequences, dealt out to ranks.
// The list depends on nothing but the dataset and its length, so that losses of
// any two runs compare; and each of its sequences counts on exactly one rank.
type Evaluation struct {
	data  Dataset
	order Order
	n     int
	share Share
}

// NewEvaluation lists n sequences of d, or all where n is 0 or more than there
// are. share.GradAccum does not matter.
func NewEvaluation(d Dataset, n int, share Share) (*Evaluation, error) {
	share.GradAccum = 1
	if err := share.check(); err != nil {
		return nil, err
	}
	if n <= 0 || n > d.Len() {
		n = d.Len()
	}
	return &Evaluation{data: d, order: NewOrder(0, d.Len()), n: n, share: share}, nil
}

// Len is the number of sequences, over all ranks.
func (e *Evaluation) Len() int { return e.n }

// Batches is the number of micro-batches that every rank reads: the same for
// all, so that they stay in step.
func (e *Evaluation) Batches() int { return (e.n + e.share.Batch() - 1) / e.share.Batch() }

// Read writes this rank's micro-batch m to tokens and targets, [B*T] each, and
// returns the number of targets that count. Where the list has come to its end,
// no target does.
func (e *Evaluation) Read(m int, tokens, targets []int32) (int, error) {
	t, total := e.data.SeqLen(), 0
	for b := range e.share.MicroBatch {
		tok, tgt := tokens[b*t:(b+1)*t], targets[b*t:(b+1)*t]
		k := e.place(m, b)
		if k >= e.n {
			pad(tok, tgt)
			continue
		}
		n, err := e.data.Read(e.order.At(int64(k)), tok, tgt)
		if err != nil {
			return 0, fmt.Errorf("read sequence %d of the evaluation on rank %d: %w", k, e.share.Rank, err)
		}
		total += n
	}
	return total, nil
}

// place is that of sequence b of this rank's micro-batch m in the list.
func (e *Evaluation) place(m, b int) int {
	return (m*e.share.World+e.share.Rank)*e.share.MicroBatch + b
}

// Docs writes the bounds of documents in this rank's micro-batch m to docs [B*T], as
// Loader.Docs does.
func (e *Evaluation) Docs(m int, docs []int32) bool {
	d, ok := e.data.(Documents)
	if !ok {
		return false
	}
	t := d.SeqLen()
	for b := range e.share.MicroBatch {
		if k := e.place(m, b); k < e.n {
			d.Docs(e.order.At(int64(k)), docs[b*t:(b+1)*t])
		} else {
			clear(docs[b*t : (b+1)*t])
		}
	}
	return true
}
