package ddp

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// BroadcastWeights copies root's weights to all ranks, bit by bit. params is the
// list that New got; weight tells where each one's memory is, as
// (*param.Replica).Weight does, and is asked for the frozen ones too. The copy
// comes after the work enqueued on the compute stream so far, and before what is
// enqueued later; the host waits for it, until ctx ends.
func (d *DDP) BroadcastWeights(ctx context.Context, params []*param.Param, weight func(*param.Param) tensor.Tensor, root int) error {
	d.comm.Wait(d.compute.Record())
	for _, p := range params {
		w := weight(p)
		d.group.Broadcast(d.comm, w.Buf, w.DType, root)
	}
	if err := d.comm.Synchronize(ctx); err != nil {
		return fmt.Errorf("ddp: rank %d: broadcasting the weights of rank %d: %w", d.group.Rank(), root, err)
	}
	return nil
}

// CheckReplicas compares a checksum of every weight over the ranks: before the
// first step, and as often as a training loop likes, outside of a step. Every
// rank calls it and gets the same answer. It sees the weights as they are behind
// the work enqueued on the compute stream so far; the host waits, until ctx ends.
//
// Where weights differ the error is a *DriftError.
func (d *DDP) CheckReplicas(ctx context.Context, params []*param.Param, weight func(*param.Param) tensor.Tensor) error {
	var sums []byte
	d.compute.Do("ddp: checksum weights", func() error {
		for _, p := range params {
			sums = binary.LittleEndian.AppendUint32(sums, crc32.Checksum(weight(p).Buf.Bytes(), castagnoli))
		}
		return nil
	})
	if err := d.compute.Synchronize(ctx); err != nil {
		return fmt.Errorf("ddp: rank %d: checksums of the weights: %w", d.group.Rank(), err)
	}
	all, err := d.gather(ctx, sums)
	if err != nil {
		return fmt.Errorf("ddp: rank %d: comparing the ranks' weights: %w", d.group.Rank(), err)
	}
	var drift DriftError
	for i, p := range params {
		who := map[string][]int{}
		for r, sums := range all {
			sum := string(sums[4*i : 4*i+4])
			who[sum] = append(who[sum], r)
		}
		if len(who) > 1 {
			drift.Weights = append(drift.Weights, Drift{p.Name, outliers(who)})
		}
	}
	if drift.Weights != nil {
		return &drift
	}
	return nil
}

// outliers is the ranks outside of the majority, or all of them where there is none.
func outliers(who map[string][]int) []int {
	total := 0
	var most string
	for sum, ranks := range who {
		total += len(ranks)
		if len(ranks) > len(who[most]) {
			most = sum
		}
	}
	majority := 2*len(who[most]) > total
	var out []int
	for r := range total {
		if !majority || !slices.Contains(who[most], r) {
			out = append(out, r)
		}
	}
	return out
}

// DriftError says that the ranks' copies of the weights are not the same.
type DriftError struct{ Weights []Drift }

// Drift is one weight and the ranks that differ from the majority; all ranks
// where there is no majority.
type Drift struct {
	Name  string
	Ranks []int
}

func (e *DriftError) Error() string {
	var s strings.Builder
	s.WriteString("ddp: the ranks' weights have drifted apart:")
	for i, d := range e.Weights {
		if i == 12 {
			fmt.Fprintf(&s, "\n  and %d more", len(e.Weights)-i)
			break
		}
		fmt.Fprintf(&s, "\n  %s on %s", d.Name, ranksText(d.Ranks))
	}
	return s.String()
}
