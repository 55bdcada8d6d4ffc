package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
)

const benchModel = `
model: {arch: llama, hidden: 512, heads: 8, kv_heads: 8, vocab: 4096}
data: {format: synthetic, seq_len: 16}
train: {max_steps: 100, micro_batch: 1, threads: 1}
eval: {every: 0}
checkpoint: {every: 100, keep: 1}
comm: {timeout: 10m}
`

// What a save costs beside a plain write of as many bytes to the same disk, synced, in
// turn with it: its rate, its share of that rate, and how long training stands still
// for it, with and without a copy. Medians; docs/benchmarks/checkpoint.md has figures.
func BenchmarkSave(b *testing.B) {
	for _, c := range []struct {
		strategy      string
		ranks, layers int
	}{{"ddp", 1, 8}, {"ddp", 2, 8}, {"ddp", 4, 8}, {"zero2", 1, 8}, {"zero2", 2, 8}, {"zero2", 4, 8}, {"zero2", 2, 28}} {
		b.Run(fmt.Sprintf("%s/ranks=%d/layers=%d", c.strategy, c.ranks, c.layers), func(b *testing.B) { benchmarkSave(b, c.strategy, c.ranks, c.layers) })
	}
}

func benchmarkSave(b *testing.B, strategy string, ranks, layers int) {
	dir := b.TempDir()
	cfg, err := config.Parse("bench.yaml", []byte(benchModel), []string{"output=" + dir, "parallel.strategy=" + strategy, fmt.Sprint("model.layers=", layers)})
	if err != nil {
		b.Fatal(err)
	}
	groups, err := comm.Local(ranks)
	if err != nil {
		b.Fatal(err)
	}
	m := &measured{b: b}
	errs := make([]error, ranks)
	var all sync.WaitGroup
	for r, g := range groups {
		all.Go(func() {
			j := &job{cfg: new(*cfg), out: status.NewWriter(&console{})}
			defer j.close()
			if errs[r] = j.open(b.Context(), place{ranks: ranks}, joining(g)); errs[r] == nil {
				errs[r] = m.rounds(j, filepath.Join(dir, "plain"))
			}
			if errs[r] != nil {
				g.Abort(errs[r])
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	m.report()
}

// measured are the figures of rank 0, one a round.
type measured struct {
	b                            *testing.B
	bytes                        int64
	plain, inFront, aside, stood []float64 // seconds
}

// rounds are, in turn and each round in another order: a plain write, a save in the
// foreground, and one beside which steps could go on. Before each, what is left of the
// one before goes to the disk.
func (m *measured) rounds(j *job, plain string) error {
	ctx := m.b.Context()
	ways := []func() error{
		func() error { return m.save(j, false) },
		func() error { return m.save(j, true) },
		func() (err error) {
			var took float64
			if j.rank() == 0 {
				took, err = plainly(plain, m.bytes)
				m.plain = append(m.plain, took)
			}
			return err
		},
	}
	if err := m.save(j, false); err != nil { // how much is it?
		return err
	}
	m.inFront = nil
	for i := range m.b.N {
		for k := range ways {
			if j.rank() == 0 {
				unix.Sync()
			}
			if err := j.group.Barrier(j.host).Wait(ctx); err != nil {
				return err
			}
			if err := ways[(i+k)%len(ways)](); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *measured) save(j *job, async bool) error {
	j.cfg.Checkpoint.Async = async
	before := j.totals.saves
	j.done++ // a step of its own
	if err := errors.Join(j.save(m.b.Context(), false), j.settle(m.b.Context())); err != nil || j.rank() != 0 {
		return err
	}
	now := j.totals.saves
	if now.n == before.n {
		return errors.New("nothing was saved")
	}
	m.bytes = now.bytes - before.bytes
	took, stood := now.writeS-before.writeS, (now.stallMS-before.stallMS)/1e3
	if async {
		m.aside, m.stood = append(m.aside, took), append(m.stood, stood)
	} else {
		m.inFront = append(m.inFront, took)
	}
	return nil
}

// plainly writes so many bytes to a file, one after another, and syncs it, as dd
// conv=fsync does.
func plainly(path string, bytes int64) (seconds float64, err error) {
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * i >> 3)
	}
	begun := time.Now()
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	for left := bytes; left > 0 && err == nil; left -= int64(len(block)) {
		_, err = f.Write(block[:min(left, int64(len(block)))])
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	seconds = time.Since(begun).Seconds()
	return seconds, os.Remove(path)
}

func (m *measured) report() {
	median := func(x []float64) float64 { return slices.Sorted(slices.Values(x))[len(x)/2] }
	mb := float64(m.bytes) / 1e6
	m.b.ReportMetric(0, "ns/op") // a round is of no interest
	m.b.ReportMetric(100*median(m.plain)/median(m.inFront), "%-of-plain")
	m.b.ReportMetric(1e3*median(m.stood), "async-stall-ms")
	m.b.Logf("%.0f MB; MB/s, the slowest, the median and the fastest round:", mb)
	for _, x := range []struct {
		what string
		took []float64
	}{{"plain write", m.plain}, {"save", m.inFront}, {"save beside", m.aside}} {
		m.b.Logf("  %-12s %5.0f %5.0f %5.0f", x.what, mb/slices.Max(x.took), mb/median(x.took), mb/slices.Min(x.took))
	}
	m.b.Logf("training stood still for %.0f, %.0f, %.0f ms, without a copy for %.0f, %.0f, %.0f", 1e3*slices.Min(m.stood), 1e3*median(m.stood), 1e3*slices.Max(m.stood),
		1e3*slices.Min(m.inFront), 1e3*median(m.inFront), 1e3*slices.Max(m.inFront))
}
