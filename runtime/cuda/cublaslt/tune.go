package cublaslt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// patience is how long a first sight may wait for the stream.
var patience = 5 * time.Minute

// plan makes the plan of a product that is seen for the first time.
func (h *Handle) plan(s *cuda.Stream, want product, at operands, space device.Buffer) (*plan, error) {
	p, err := h.newPlan(want, at.bias)
	if err == nil {
		err = h.choose(s, p, space)
	}
	if err != nil {
		return nil, errors.Join(err, h.release(p))
	}
	slog.Debug("cublaslt: a product is planned", "device", h.dev.String(), "product", want.String(),
		"algorithm", p.choice.Algorithm, "time", p.choice.Time, "from", p.choice.From)
	return p, nil
}

// choose gives p its algorithm: the one that was chosen before, or the fastest.
func (h *Handle) choose(s *cuda.Stream, p *plan, space device.Buffer) error {
	name := p.product.String()
	if h.zeros {
		name += " of zeros"
	}
	if c, ok := h.choices.find(name); ok && h.take(p, c) {
		return nil
	}
	list, err := h.candidates(p)
	if err != nil {
		return err
	}
	best, took, err := h.fastest(s, p, list, space)
	var full *cuda.OutOfMemoryError
	if errors.As(err, &full) {
		// Nothing could be checked either, so the plainest is preferred.
		best = max(0, slices.IndexFunc(list, func(c candidate) bool {
			split, ok := h.lib.configOf(&c.algo, configSplit)
			return ok && split <= 1
		}))
		slog.Warn("cublaslt: too little memory to time algorithms, the library's first is taken", "device", h.dev.String(), "product", name, "error", full)
		p.algo = list[best].algo
		p.choice = h.choice(name, p.algo, 0, "untimed")
		return nil
	}
	if err != nil {
		return err
	}
	p.algo = list[best].algo
	p.choice = h.choice(name, p.algo, took, "timed")
	// Another rank of the host may have been faster: all take what it found.
	if kept := h.choices.keep(p.choice); kept.Config != p.choice.Config {
		h.take(p, kept)
	}
	return nil
}

// take gives p the algorithm of a choice, if the library would run it.
func (h *Handle) take(p *plan, c Choice) bool {
	algo, err := parseConfig(c.Config)
	if err == nil {
		err = h.usable(p, algo)
	}
	if err != nil {
		slog.Warn("cublaslt: a choice does not serve and is passed over", "device", h.dev.String(), "product", c.Product, "from", c.From, "error", err)
		return false
	}
	p.algo, p.choice = algo, c
	p.choice.Algorithm = h.lib.describe(&algo)
	return true
}

func (h *Handle) choice(name string, a algorithm, took time.Duration, from string) Choice {
	return Choice{Machine: h.choices.machine, Product: name, Algorithm: h.lib.describe(&a), Config: config(a), Time: took, From: from}
}

// fastest times the candidates on scratch memory and returns the fastest that
// computes what it should, the same twice.
func (h *Handle) fastest(s *cuda.Stream, p *plan, list []candidate, space device.Buffer) (best int, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t := &trial{h: h, s: s, p: p, space: space, ctx: ctx}
	if err := t.open(); err != nil {
		return 0, 0, err
	}
	defer func() { err = t.close(err) }()
	if h.zeros {
		s.Clear(t.memory) // check fills it again
	}
	times, err := t.time(list)
	if err != nil {
		return 0, 0, err
	}
	var wrong []error
	for _, i := range order(times) {
		fault, err := t.check(&list[i].algo)
		if err != nil {
			return 0, 0, err
		}
		if fault == nil {
			return i, times[i], nil
		}
		slog.Error("cublaslt: an algorithm computes wrongly and is passed over", "device", h.dev.String(), "library", cuda.LibraryVersion(h.lib.version),
			"product", p.product.String(), "algorithm", h.lib.describe(&list[i].algo), "fault", fault)
		wrong = append(wrong, fault)
	}
	return 0, 0, fmt.Errorf("none of %d algorithms of cuBLASLt %s works: %w", len(list), cuda.LibraryVersion(h.lib.version), errors.Join(wrong...))
}

// order lists the indices of the times that there are, the least first; the
// library's own order decides between equals.
func order(times []time.Duration) []int {
	var list []int
	for i, t := range times {
		if t > 0 {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(times[a], times[b]) })
	return list
}

// trial is scratch memory laid out like the operands of a product, with random
// numbers in it: the speed of a GPU depends on the bits that it moves, and zeros
// would be too fast.
type trial struct {
	h      *Handle
	s      *cuda.Stream
	p      *plan
	space  device.Buffer
	ctx    context.Context
	memory device.Buffer
	at     operands
}

// open allocates the memory and lays the operands out in it.
func (t *trial) open() error {
	w := t.p.product
	size := 0
	place := func(rows, cols int, l layout) (at int) {
		if l.trans {
			rows, cols = cols, rows
		}
		at = size
		if l.align < 256 {
			at += int(l.align) // a multiple of no more than that
		}
		size = (at + ((rows-1)*l.stride+cols)*l.dtype.Size() + 255) &^ 255
		return at
	}
	a, b, d := place(w.m, w.k, w.a), place(w.k, w.n, w.b), place(w.m, w.n, w.d)
	c := d
	if t.p.c != t.p.d {
		c = place(w.m, w.n, w.c)
	}
	bias := place(1, w.n, layout{dtype: w.d.dtype, align: 256, stride: w.n})
	var err error
	if t.memory, err = t.h.dev.Alloc(size + 256); err != nil {
		return err
	}
	base := (t.memory.Addr() + 255) &^ 255
	at := func(offset int) uintptr { return base + uintptr(offset) }
	t.at = operands{at(a), at(b), at(c), at(d), at(bias)}
	t.fill()
	return nil
}

// close waits for what runs, frees the memory and returns the first error. Memory
// that the GPU may still write when patience ends stays allocated.
func (t *trial) close(err error) error {
	if late := t.s.Synchronize(t.ctx); err == nil {
		err = late
	}
	if t.ctx.Err() != nil {
		return err
	}
	return errors.Join(err, t.h.dev.Free(t.memory))
}

// fill writes random numbers over all operands.
func (t *trial) fill() {
	n := t.memory.Len()
	have := min(len(noise()), n)
	t.s.Copy(t.memory.Slice(0, have), device.Host(noise()[:have]))
	for have < n {
		more := min(have, n-have)
		t.s.Copy(t.memory.Slice(have, have+more), t.memory.Slice(0, more))
		have += more
	}
}

// launch runs one of the candidates, which lies on the heap.
func (t *trial) launch(algo *algorithm) error {
	return t.h.launch(t.s, t.p, algo, t.at, t.space)
}

// time returns the median time of each candidate, 0 for one that the library
// proposed but does not launch.
func (t *trial) time(list []candidate) ([]time.Duration, error) {
	const rounds = 5
	const span = 300 * time.Microsecond // of launches in a row: events are coarse
	var refused error
	times := make([]time.Duration, len(list))
	for i := range list {
		// The first launch also loads the kernel.
		if err := t.launch(&list[i].algo); err != nil {
			refused = err
			continue
		}
		times[i] = 1
	}
	if len(order(times)) == 0 {
		return nil, fmt.Errorf("none of %d algorithms can be launched: %w", len(list), refused)
	}
	if err := t.measure(list, times, 1, 1); err != nil {
		return nil, err
	}
	least := times[order(times)[0]]
	return times, t.measure(list, times, rounds, int(min(max(span/least, 1), 64)))
}

// measure replaces the times that are not 0 by the median of so many rounds. In a
// round each candidate runs so many times in a row, so that a GPU that gets hotter
// or is shared for a while is so for all.
func (t *trial) measure(list []candidate, times []time.Duration, rounds, launches int) error {
	type span struct{ from, to device.Event }
	spans := make([][]span, len(list))
	var last device.Event
	for range rounds {
		for _, i := range order(times) {
			from := t.s.Record()
			for range launches {
				if err := t.launch(&list[i].algo); err != nil {
					return err
				}
			}
			last = t.s.Record()
			spans[i] = append(spans[i], span{from, last})
		}
	}
	if err := last.Sync(t.ctx); err != nil {
		return fmt.Errorf("timing %d algorithms: %w", len(list), err)
	}
	for _, i := range order(times) {
		var all []time.Duration
		for _, s := range spans[i] {
			took, err := s.to.Since(s.from)
			if err != nil {
				return err
			}
			all = append(all, took)
		}
		slices.Sort(all)
		times[i] = max(all[len(all)/2]/time.Duration(launches), 1)
	}
	return nil
}
