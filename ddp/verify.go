package ddp

import (
	"cmp"
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/param"
)

// facts describes this rank's options and parameters.
func (d *DDP) facts(params []*param.Param) (list agree.Facts) {
	o := d.options
	list.Add("Options.BucketCap", cmp.Or(o.BucketCap, DefaultBucketCap))
	list.Add("Options.FirstBucket", cmp.Or(o.FirstBucket, DefaultFirstBucket))
	list.Add("Options.GradDType", o.GradDType)
	list.Add("Options.ReduceDType", o.ReduceDType)
	list.Add("Options.Compress", o.Compress)
	list.Add("Options.Op", o.Op)
	list.Add("Options.NoOverlap", o.NoOverlap)
	list.Add("Options.FindUnused", o.FindUnused)
	list.Add("Options.StaticGraph", o.StaticGraph)
	list.Add("Options.Rows", o.Rows)
	list.Add("number of parameters", len(params))
	list.Add("number of buffers", len(o.Buffers))
	for i, p := range params {
		value := fmt.Sprintf("%s%v", p.DType, p.Shape)
		if p.Frozen {
			value += " frozen"
		}
		if p.NoDecay {
			value += " without weight decay"
		}
		list.Add(p.Name, value)
		list.Add(fmt.Sprintf("parameter %d", i), p.Name)
	}
	for i, b := range o.Buffers {
		list.Add("buffer "+b.Name, b.Tensor)
		list.Add(fmt.Sprintf("buffer %d", i), b.Name)
	}
	order := "the default order"
	if d.plan.Rebuilt {
		order = "a given order"
	}
	list.Add("bucket plan", d.plan.Hash()+" in "+order)
	return list
}

// compareRanks fails on every rank alike where the ranks' facts differ.
func (d *DDP) compareRanks(ctx context.Context, params []*param.Param) error {
	return agree.Compare(ctx, d.group, d.hostComm, "ddp", d.facts(params))
}

// gather returns every rank's bytes; see agree.Gather.
func (d *DDP) gather(ctx context.Context, mine []byte) ([][]byte, error) {
	return agree.Gather(ctx, d.group, d.hostComm, "ddp", mine)
}
