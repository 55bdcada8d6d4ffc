package data

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/data/store"
	"github.com/gorun-dev/gorun/runtime/mapped"
)

// Documents is a Dataset whose sequences hold several documents, which attention
// must not leave.
type Documents interface {
	Dataset
	// Docs writes to docs [T], for each position of sequence i, the first position
	// of its document. It allocates nothing.
	Docs(i int, docs []int32)
}

// A piece is a sample, or a part of a longer one: tokens at to at+n of a store, the
// last of which is a target only. It takes n-1 positions.
type piece struct {
	at    int64
	n     int32
	store int32
}

// singles has a piece a sequence. What it does not fill is padded: token 0, which no
// target follows.
type singles struct {
	stores []*store.Store
	pieces []piece
	seqLen int
	info   Info
}

func (d *singles) Len() int    { return len(d.pieces) }
func (d *singles) SeqLen() int { return d.seqLen }
func (d *singles) Info() Info  { return d.info }

func (d *singles) Read(i int, tokens, targets []int32) (int, error) {
	at, n, err := d.copy(d.pieces[i], tokens, targets)
	pad(tokens[at:], targets[at:])
	return n, err
}

func pad(tokens, targets []int32) {
	clear(tokens)
	for i := range targets {
		targets[i] = Ignore
	}
}

// copy writes p to the beginning of tokens and targets, and returns the positions
// that it takes and the targets that count.
func (d *singles) copy(p piece, tokens, targets []int32) (taken, counted int, err error) {
	st := d.stores[p.store]
	defer mapped.Shortened(st.Path(), debug.SetPanicOnFault(true), &err)
	src := st.Tokens(p.at, int(p.n))
	taken = int(p.n) - 1
	for j := range taken {
		t := binary.LittleEndian.Uint32(src[4*j:])
		next := binary.LittleEndian.Uint32(src[4*j+4:])
		tokens[j], targets[j] = int32(t&store.IDMask), Ignore
		if next&store.Learned != 0 {
			targets[j] = int32(next & store.IDMask)
			counted++
		}
	}
	return taken, counted, nil
}

// packs has several pieces a sequence, and padding behind them, which is like a
// document of its own.
type packs struct {
	singles
	starts []int32 // of each sequence in pieces, and the end
}

var _ Documents = (*packs)(nil)

func (d *packs) Len() int { return len(d.starts) - 1 }

func (d *packs) Read(i int, tokens, targets []int32) (total int, err error) {
	at := 0
	for _, p := range d.pieces[d.starts[i]:d.starts[i+1]] {
		taken, n, err := d.copy(p, tokens[at:], targets[at:])
		if err != nil {
			return 0, err
		}
		at, total = at+taken, total+n
	}
	pad(tokens[at:], targets[at:])
	return total, nil
}

func (d *packs) Docs(i int, docs []int32) {
	at := 0
	for _, p := range d.pieces[d.starts[i]:d.starts[i+1]] {
		start := at
		for ; at < start+int(p.n)-1; at++ {
			docs[at] = int32(start)
		}
	}
	for start := at; at < len(docs); at++ {
		docs[at] = int32(start)
	}
}

// A selection is the samples of one store that a dataset is made of.
type selection struct {
	st      *store.Store
	source  source
	samples []int32
	held    bool // held back: who has the rest says what was skipped
}

// all is every sample of a store.
func all(st *store.Store, s source) selection {
	list := make([]int32, st.Len())
	for i := range list {
		list[i] = int32(i)
	}
	return selection{st: st, source: s, samples: list}
}

// split holds back a share of the samples, chosen by the seed and their tokens:
// equal samples are on the same side, so that it may be some more.
func (s selection) split(share float64, seed uint64) (train, eval selection) {
	rand := models.NewRand(seed, "data.eval_split")
	draw := make([]uint64, len(s.samples))
	for i, x := range s.samples {
		draw[i] = rand.Uint64(s.st.Hash(int(x)))
	}
	train, eval = selection{st: s.st, source: s.source}, selection{st: s.st, source: s.source}
	n := int(math.Round(share * float64(len(draw))))
	if n == 0 {
		return s, eval
	}
	last := slices.Sorted(slices.Values(draw))[n-1]
	for i, x := range s.samples {
		if draw[i] <= last {
			eval.samples = append(eval.samples, x)
		} else {
			train.samples = append(train.samples, x)
		}
	}
	return train, eval
}

// plan turns selections into pieces.
type plan struct {
	o      Options
	stores []*store.Store
	pieces []piece
	info   Info
}

// add cuts the samples of s into pieces, and repeats them as the source's weight
// says: so often all of them, and for what is left of it a part that the seed
// decides.
func (p *plan) add(s selection) error {
	number := int32(len(p.stores))
	p.info.count(s)
	p.stores = append(p.stores, s.st)
	var pieces []piece
	starts := []int32{0} // of the samples that are of use
	for _, x := range s.samples {
		before := len(pieces)
		var err error
		if pieces, err = p.cut(pieces, s, int(x), number); err != nil {
			return err
		}
		if len(pieces) > before {
			starts = append(starts, int32(len(pieces)))
		}
	}
	n := len(starts) - 1
	times, part := math.Modf(s.source.weight)
	for range int(times) {
		p.pieces = append(p.pieces, pieces...)
	}
	order := NewOrder(p.o.Seed, max(n, 1))
	for k := range int(math.Round(part * float64(n))) {
		i := order.At(int64(k))
		p.pieces = append(p.pieces, pieces[starts[i]:starts[i+1]]...)
	}
	p.info.Samples += n
	return nil
}

// cut adds to pieces those of one sample that hold a target.
func (p *plan) cut(pieces []piece, s selection, i int, number int32) ([]piece, error) {
	from, to := s.st.Sample(i)
	n, t := to-from, int64(p.o.SeqLen)
	p.info.Tokens += n
	ends := to
	if n-1 > t {
		switch p.o.Truncation {
		case "error":
			return nil, fmt.Errorf("%s: a sample of %d tokens, which data.seq_len = %d does not hold; raise it, or give data.truncation cut, drop or split", s.where(i), n, t)
		case "drop":
			p.info.Dropped++
			p.info.UnusedTokens += n
			note(&p.info.FirstDropped, s.where(i))
			return pieces, nil
		case "cut":
			p.info.CutDocuments++
			p.info.UnusedTokens += n - 1 - t
			note(&p.info.FirstCut, s.where(i))
			ends = from + t + 1
		}
	}
	before := len(pieces)
	for at := from; at+1 < ends; at += t {
		x := piece{at: at, n: int32(min(t+1, ends-at)), store: number}
		if targets := s.st.Targets(x.at+1, int(x.n)-1); targets > 0 {
			pieces = append(pieces, x)
		} else {
			p.info.UnusedTokens += int64(x.n - 1)
		}
	}
	if len(pieces) == before {
		p.info.NoTarget++
		note(&p.info.FirstNoTarget, s.where(i))
	}
	return pieces, nil
}

// count adds what a store was made of.
func (i *Info) count(s selection) {
	i.Files += len(s.source.files)
	i.EmptyFiles += s.source.empty
	for _, f := range s.source.files {
		i.Bytes += f.size()
	}
	if s.st.Skipped() > 0 && !s.held {
		i.Skipped += s.st.Skipped()
		note(&i.FirstSkipped, s.st.FirstSkipped())
	}
}

func note(first *string, where string) {
	if *first == "" {
		*first = where
	}
}

// where names a sample's file and line.
func (s selection) where(i int) string {
	f, line := s.st.Origin(i)
	return fmt.Sprintf("%s:%d", s.source.files[f].path, line)
}

// dataset makes sequences of the pieces.
func (p *plan) dataset(what string) (Dataset, error) {
	info := &p.info
	if len(p.pieces) == 0 {
		why := "the files hold no rows"
		if info.Samples > 0 {
			why = "data.weights leaves none of them"
		}
		return nil, fmt.Errorf("%s: no sample is left to learn from: %s", what, cmp.Or(strings.Join(info.Warnings(), "; "), why))
	}
	lengths := make([]int32, len(p.pieces))
	filled := int64(0)
	for i, x := range p.pieces {
		lengths[i] = x.n - 1
		filled += int64(x.n - 1)
		info.Targets += int64(p.stores[x.store].Targets(x.at+1, int(x.n)-1))
	}
	d := singles{stores: p.stores, pieces: p.pieces, seqLen: p.o.SeqLen}
	sequences := len(p.pieces)
	var starts []int32
	if p.o.Packing {
		var order []int32
		order, starts = pack(lengths, p.o.SeqLen, p.o.Seed)
		d.pieces = make([]piece, len(order))
		for at, i := range order {
			d.pieces[at] = p.pieces[i]
		}
		sequences = len(starts) - 1
	}
	info.Sequences = sequences
	info.Padding = int64(sequences)*int64(p.o.SeqLen) - filled
	info.Fingerprint = d.fingerprint(starts)
	d.info = *info
	if p.o.Packing {
		return &packs{d, starts}, nil
	}
	return &d, nil
}

// fingerprint is of the stores' content and of what is read of it in which order.
func (d *singles) fingerprint(starts []int32) uint64 {
	h := newFingerprint()
	for _, s := range d.stores {
		h.add(s.Sum())
	}
	for _, p := range d.pieces {
		h.add(uint32(p.at), uint32(p.at>>32), uint32(p.n), uint32(p.store))
	}
	for _, s := range starts {
		h.add(uint32(s))
	}
	h.add(uint32(d.seqLen))
	return uint64(h)
}
