package zero

import (
	"cmp"
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/param"
)

// facts describes this rank's options and parameters.
func (z *Zero) facts(params []*param.Param) (list agree.Facts) {
	o := z.options
	list.Add("Options.Stage", o.Stage)
	list.Add("Options.BucketCap", cmp.Or(o.BucketCap, DefaultBucketCap))
	list.Add("Options.FirstBucket", cmp.Or(o.FirstBucket, DefaultFirstBucket))
	list.Add("Options.GradDType", o.GradDType)
	list.Add("Options.ReduceDType", o.ReduceDType)
	list.Add("Options.Compress", o.Compress)
	list.Add("Options.Op", o.Op)
	list.Add("Options.NoOverlap", o.NoOverlap)
	list.Add("Options.Tied", o.Tied)
	list.Add("number of parameters", len(params))
	for i, p := range params {
		value := fmt.Sprintf("%s%v in block %d", p.DType, p.Shape, p.Block)
		if p.Frozen {
			value += " frozen"
		}
		if p.NoDecay {
			value += " without weight decay"
		}
		list.Add(p.Name, value)
		list.Add(fmt.Sprintf("parameter %d", i), p.Name)
	}
	list.Add("shard plan", z.plan.Hash())
	return list
}

// compareRanks fails on every rank alike where the ranks' facts differ.
func (z *Zero) compareRanks(ctx context.Context, params []*param.Param) error {
	return agree.Compare(ctx, z.group, z.hostComm, "zero", z.facts(params))
}
