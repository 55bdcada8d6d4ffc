package comm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/tune"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// tuneWithin is how much longer joining may take because links are measured; about
// so, for what a size takes is known afterwards.
const tuneWithin = 200 * time.Millisecond

// bench measures what a group has a choice of algorithms for.
type bench interface {
	// over names what the algorithms go over.
	over() string
	// key names all that the times depend on, as far as rank 0 can tell.
	key() string
	// owns reports whether a point is of such a measurement.
	owns(p tune.Point) bool
	// fits says why rank 0 cannot have measured points, which were kept under its key.
	fits(points []tune.Point) error
	// measure times algorithms, for about so long. All ranks do; rank 0's points count.
	measure(ctx context.Context, within time.Duration) ([]tune.Point, error)
}

// benches is what the group has a choice for, the same on all ranks.
func (g *Group) benches() (all []bench) {
	if g.link() != "" {
		all = append(all, linkBench{g})
	}
	if g.gpu != nil {
		if e, ok := g.gpu.engine.(*byPeers); ok {
			all = append(all, &peersBench{u: g.gpu, e: e, ex: exchangeUnder{g.o.Store, "comm/" + g.o.Name + "/tuning/gpu/"}})
		}
	}
	return all
}

// tuned is what a group has measured, for groups of some of its ranks.
type tuned struct {
	over  []string
	table *tune.Table
}

func (g *Group) tunedOver() *tuned {
	t := &tuned{table: g.tuned.table.Load()}
	for _, b := range g.benches() {
		t.over = append(t.over, b.over())
	}
	return t
}

// tuningOf is rank 0's answer to whether to measure.
type tuningOf struct {
	Points json.RawMessage `json:"points,omitempty"` // nil: measure
}

// tune measures what the group has a choice of algorithms for, or takes what was measured
// before: by the group that this one is a part of, or by an earlier job. Rank 0 decides
// for all, so that they choose alike. It runs before the group's first call.
func (g *Group) tune(ctx context.Context) error {
	benches := g.benches()
	if g.o.Tune == "off" || len(benches) == 0 {
		return nil
	}
	within, err := tuneTime()
	if err != nil {
		return err
	}
	var points []tune.Point
	for _, b := range benches {
		list, err := g.pointsOf(ctx, b, within)
		if err != nil {
			c := call{}
			c.Kind, c.DType, c.Root = transport.Barrier, dtype.U8, -1
			c.wire = c.Header
			return fmt.Errorf("measuring %s: %w", b.over(), g.fail(g.explain(&c, err)))
		}
		points = append(points, list...)
	}
	g.tuned.table.Store(tune.New(points))
	return nil
}

func (g *Group) pointsOf(ctx context.Context, b bench, within time.Duration) ([]tune.Point, error) {
	if from := g.o.tuned; from != nil && slices.Contains(from.over, b.over()) {
		return slices.DeleteFunc(from.table.Points(), func(p tune.Point) bool { return !b.owns(p) }), nil
	}
	ex := exchangeUnder{g.o.Store, "comm/" + g.o.Name + "/tuning/" + b.over() + "/"}
	table, found, err := g.kept(ctx, b, ex)
	if err == nil && !found {
		table, err = g.measured(ctx, b, ex, within)
	}
	if err != nil {
		return nil, err
	}
	return table.Points(), nil
}

// kept is the table of an earlier job, which rank 0 looks for.
func (g *Group) kept(ctx context.Context, b bench, ex exchangeUnder) (table *tune.Table, found bool, err error) {
	const key = "kept"
	if g.o.Rank == 0 {
		if folder, err := tune.Folder(); err == nil { // else measured says why nothing is kept
			if table, err = tune.Load(folder, b.key(), b.fits); err != nil {
				g.o.Logger.Warn("comm: what was measured of the links cannot be used, and they are measured again", "err", err)
			}
		}
		var answer tuningOf
		if table != nil {
			answer.Points = table.Encode()
		}
		said, err := json.Marshal(answer)
		if err != nil {
			return nil, false, err
		}
		return table, table != nil, ex.Set(ctx, key, said)
	}
	said, err := ex.Wait(ctx, key)
	if err != nil {
		return nil, false, err
	}
	var answer tuningOf
	if err := json.Unmarshal(said, &answer); err != nil || answer.Points == nil {
		return nil, false, err
	}
	table, err = tune.Decode(answer.Points)
	return table, true, err
}

// measured is the table that the ranks make together. Rank 0 keeps it.
func (g *Group) measured(ctx context.Context, b bench, ex exchangeUnder, within time.Duration) (*tune.Table, error) {
	const key = "measured"
	began := time.Now()
	// The key that the next job looks for, early as well: Go may use fewer processors before
	// long, where the process was bound to some of them.
	var kept string
	if g.o.Rank == 0 {
		kept = b.key()
	}
	points, err := b.measure(ctx, within)
	if err != nil {
		return nil, err
	}
	if g.o.Rank != 0 {
		said, err := ex.Wait(ctx, key)
		if err != nil {
			return nil, err
		}
		return tune.Decode(said)
	}
	table := tune.New(points)
	if err := ex.Set(ctx, key, table.Encode()); err != nil {
		return nil, err
	}
	took := time.Since(began).Round(time.Millisecond)
	if len(points) == 0 {
		g.o.Logger.Log(ctx, g.tuned.level, "comm: the links are too slow to be measured while joining; typical figures choose the algorithms", "group", g.o.Name, "over", b.over(), "took", took)
		return table, nil
	}
	g.o.Logger.Log(ctx, g.tuned.level, "comm: links measured", "group", g.o.Name, "over", b.over(), "points", len(points), "took", took)
	folder, err := tune.Folder()
	if err == nil {
		err = tune.Save(folder, kept, table)
	}
	if err != nil {
		g.o.Logger.Warn("comm: what was measured of the links is not kept, and the next job measures again", "err", err)
	}
	return table, nil
}

// tuneTime is how long to measure: what GORUN_COMM_TUNE says, such as 5s, else tuneWithin.
func tuneTime() (time.Duration, error) {
	const name = "GORUN_COMM_TUNE"
	text := os.Getenv(name)
	if text == "" {
		return tuneWithin, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s=%s: want how long joining may measure the links, such as 5s", name, text)
	}
	return d, nil
}
