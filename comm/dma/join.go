package dma

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// ErrWrongData is in the error of a Join whose GPUs reach each other's memory, as the
// driver says, and read there what nobody has written.
var ErrWrongData = errors.New("the GPUs exchange wrong data")

// Options describe a rank of a team.
type Options struct {
	Rank, Size int
	Exchange   Exchange
	// MaxBlocks bounds the thread blocks of a kernel of Exchange. 0: as many as the team
	// likes. The ranks take the least of theirs.
	MaxBlocks int
}

// Join makes the team of o.Size ranks, of which this is o.Rank, on d. It fails, on every
// rank alike, where two ranks have one GPU, where some GPU cannot reach another's memory,
// or where what arrives is not what was sent: errors.Is(err, ErrWrongData).
func Join(ctx context.Context, d *cuda.Device, o Options) (*Team, error) {
	return join(ctx, d, newMachine(), o)
}

func join(ctx context.Context, d *cuda.Device, m machine, o Options) (*Team, error) {
	if o.Size < 2 || o.Size > MaxRanks {
		return nil, fmt.Errorf("collectives between GPUs: %d ranks, want 2 to %d", o.Size, MaxRanks)
	}
	t := &Team{d: d, machine: m, me: o.Rank, size: o.Size, exchange: o.Exchange, limits: limitsOf[o.Size],
		sums: map[dtype.DType]*cuda.Function{}, kernels: map[string]*cuda.Function{}}
	err := t.agree(ctx, "prepared", t.prepare(ctx, o.MaxBlocks))
	if err == nil {
		err = t.agree(ctx, "met", t.meet(ctx))
	}
	if err == nil {
		err = t.hello(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, t.Abort(err, abortWithin), t.Close())
	}
	return t, nil
}

// card is what a rank tells of its GPU.
type card struct {
	UUID       string
	Count, Big int // of thread blocks, at most: see grid
}

// prepare makes what a rank needs for itself. It meets the others, also where it fails.
func (t *Team) prepare(ctx context.Context, blocks int) error {
	own := t.prepareOwn()
	c := card{UUID: t.d.UUID(), Count: min(usualBlocks, max(t.d.SMs()/2, 1)), Big: min(maxBlocks, t.d.SMs())}
	if blocks > 0 {
		c.Count, c.Big = min(c.Count, blocks), min(c.Big, blocks)
	}
	mine, err := json.Marshal(c)
	if err != nil {
		return errors.Join(own, err)
	}
	all, err := t.exchange(ctx, "cards", mine)
	if err != nil {
		return errors.Join(own, err)
	}
	t.most, t.mostBig, t.linked = maxBlocks, maxBlocks, true
	for r, b := range all {
		var other card
		if err := json.Unmarshal(b, &other); err != nil {
			return errors.Join(own, fmt.Errorf("rank %d's GPU %q: %w", r, b, err))
		}
		if r < t.me && other.UUID == c.UUID {
			return errors.Join(own, fmt.Errorf("ranks %d and %d have the same GPU, %s: one for each rank is wanted", r, t.me, c.UUID))
		}
		t.most, t.mostBig = min(t.most, other.Count), min(t.mostBig, other.Big)
		if r != t.me {
			linked, err := t.d.NVLinked(other.UUID)
			own = errors.Join(own, err)
			t.linked = t.linked && linked
		}
		t.cards = append(t.cards, other.UUID)
	}
	return own
}

func (t *Team) prepareOwn() error {
	if err := t.load(); err != nil {
		return err
	}
	s, err := t.d.NewStream("team's rescue")
	if err != nil {
		return err
	}
	t.rescue = s.(*cuda.Stream)
	t.words, err = t.d.AllocHost(wordsBytes)
	return err
}

// verdict is how a step of Join went on a rank.
type verdict struct {
	Text  string
	Wrong bool // ErrWrongData
}

// agree makes one rank's failure every rank's.
func (t *Team) agree(ctx context.Context, key string, mine error) error {
	var v verdict
	if mine != nil {
		v = verdict{mine.Error(), errors.Is(mine, ErrWrongData)}
	}
	said, err := json.Marshal(v)
	if err != nil {
		return errors.Join(mine, err)
	}
	all, err := t.exchange(ctx, key, said)
	if err != nil {
		return errors.Join(mine, fmt.Errorf("collectives between GPUs: %w", err))
	}
	for r, b := range all {
		if err := json.Unmarshal(b, &v); err != nil {
			return errors.Join(mine, fmt.Errorf("collectives between GPUs: rank %d says %q: %w", r, b, err))
		}
		switch {
		case v.Wrong:
			return wrong(fmt.Sprintf("collectives between GPUs: rank %d: %s", r, v.Text))
		case v.Text != "":
			return fmt.Errorf("collectives between GPUs: rank %d: %s", r, v.Text)
		}
		v = verdict{}
	}
	return nil
}

// wrong is ErrWrongData that says where.
type wrong string

func (w wrong) Error() string        { return string(w) }
func (w wrong) Is(target error) bool { return target == ErrWrongData }

// meet agrees on what joins the GPUs, and shares the team's own memory.
func (t *Team) meet(ctx context.Context) (err error) {
	all, err := t.exchange(ctx, "linked", strconv.AppendBool(nil, t.linked))
	if err != nil {
		return err
	}
	for _, linked := range all {
		t.linked = t.linked && string(linked) == "true"
	}
	if t.flags, err = t.share(ctx, "flags", (2*t.size+1)*lineBytes); err != nil {
		return err
	}
	if t.scratch, err = t.share(ctx, "scratch", t.size*SlotBytes); err != nil {
		return err
	}
	if t.box, err = t.share(ctx, "box", inbox{t.size}.bytes()); err != nil {
		return err
	}
	if t.pairBox, err = t.share(ctx, "pairs", pairbox{t.size}.bytes()); err != nil {
		return err
	}
	hello, err := t.share(ctx, "hello", 4*helloCount)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.regions = append(t.regions, hello)
	return nil
}
