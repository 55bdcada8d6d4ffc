package ddp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

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
		return fmt.Errorf("ddp: %s: broadcasting the weights of %s: %w", agree.Who(d.group, d.group.Rank()), agree.Who(d.group, root), err)
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
	if d.group.Size() == 1 {
		return nil
	}
	if n := len(d.params) + len(d.frozen); len(params) != n {
		return fmt.Errorf("ddp: %s: CheckReplicas of %d parameters: New got %d", agree.Who(d.group, d.group.Rank()), len(params), n)
	}
	for i, p := range params {
		d.memory.Checksum(d.compute, d.sums.Slice(8*i, 8*i+8), weight(p).Buf)
	}
	d.compute.Copy(d.sumsRead, d.sums)
	if err := d.compute.Synchronize(ctx); err != nil {
		return fmt.Errorf("ddp: %s: checksums of the weights: %w", agree.Who(d.group, d.group.Rank()), err)
	}
	all, err := d.gather(ctx, d.sumsRead.Bytes())
	if err != nil {
		return fmt.Errorf("ddp: %s: comparing the ranks' weights: %w", agree.Who(d.group, d.group.Rank()), err)
	}
	drift := DriftError{members: d.group}
	for i, p := range params {
		who := map[string][]int{}
		for r, sums := range all {
			sum := string(sums[8*i : 8*i+8])
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
type DriftError struct {
	Weights []Drift
	members agree.Members
}

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
		fmt.Fprintf(&s, "\n  %s on %s", d.Name, e.whose(d.Ranks))
	}
	s.WriteString("\nOnly the optimizer may change a replica, and on all ranks alike: look for what else writes to the weights there, " +
		"or for faulty memory, and go on from a checkpoint of before")
	return s.String()
}

// whose is "rank 1 on node7", or a list of at most four such.
func (e *DriftError) whose(ranks []int) string {
	var list []string
	for i, r := range ranks {
		if i == 4 {
			list = append(list, fmt.Sprintf("%d more", len(ranks)-i))
			break
		}
		list = append(list, agree.Who(e.members, r))
	}
	if len(ranks) == e.members.Size() {
		return strings.Join(list, ", ") + " (no majority agrees: any of them may be wrong)"
	}
	return strings.Join(list, ", ")
}
