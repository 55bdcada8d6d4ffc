package ddp

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

const (
	// DefaultBucketCap and DefaultFirstBucket are the limits that zero stands
	// for. A small first bucket lets communication start early.
	DefaultBucketCap   = 25 << 20
	DefaultFirstBucket = 1 << 20

	// viewAlign is the alignment of each parameter's gradient within its bucket:
	// what memory of a GPU itself is aligned to, so that matrix products and
	// vector loads find a gradient as they would find memory of its own. It is the
	// same everywhere, and so is the plan.
	viewAlign = 256
)

// PlanOptions is the part of Options that decides where a gradient lies. Zero
// values mean the defaults.
type PlanOptions struct {
	// BucketCap is the size in bytes at which a bucket is closed; default 25 MiB.
	BucketCap int
	// FirstBucket is the same for the first bucket of each type; default 1 MiB.
	FirstBucket int
	// GradDType is the type of all gradients; default: each its parameter's type.
	GradDType dtype.DType
	// Order names the trainable parameters in the order in which their
	// gradients are expected. Default: the reverse of the parameter list.
	Order []string
}

// Plan says which gradient lies where in which bucket, and in which order the
// buckets are reduced. It is a pure function of the parameter list and
// PlanOptions, so ranks that agree on those agree on every message.
type Plan struct {
	Buckets []Slots
	// Rebuilt reports that the order was given (by an earlier run, or by the
	// first step) and not taken from the parameter list.
	Rebuilt bool
	// Bytes is the memory of all buckets, padding included. It does not depend
	// on the order.
	Bytes int
}

// Slots is the layout of one bucket: parameters of one type, one after the
// other, each starting at a multiple of 256 bytes.
type Slots struct {
	DType   dtype.DType
	Params  []*param.Param // in the order in which they are expected
	Offsets []int          // of each parameter, in bytes from the bucket's start
	// Bytes is the size of the gradients alone. It is what the limits are
	// compared with, and what plans are published in.
	Bytes int
	// Padded is the size of the bucket's memory and of its reduction: Bytes and
	// the zeros between the gradients, fewer than 256 bytes a parameter.
	Padded int
}

// NewPlan lays out the gradients of the trainable parameters of params.
//
// It goes through them in order and appends each to the open bucket of its
// type; a bucket is closed as soon as its size reaches the limit. A parameter is
// never split, so buckets may be larger than the limit. Buckets are reduced in
// the order in which they are expected to be complete, whatever their type.
//
// It fails when names are not unique, no parameter is trainable, a gradient's
// type is no floating-point type, a limit is negative, or Order is not a
// permutation of the trainable parameters.
func NewPlan(params []*param.Param, o PlanOptions) (*Plan, error) {
	if o.BucketCap < 0 || o.FirstBucket < 0 {
		return nil, fmt.Errorf("ddp: BucketCap %d and FirstBucket %d must not be negative", o.BucketCap, o.FirstBucket)
	}
	order, err := param.Expected("ddp", params, o.Order)
	if err != nil {
		return nil, err
	}
	plan := &Plan{Rebuilt: len(o.Order) > 0}
	open := map[dtype.DType]*Slots{}
	seen := map[dtype.DType]bool{} // types whose first bucket is closed
	var buckets []*Slots
	last := map[*Slots]int{} // place of a bucket's last parameter in order
	for at, p := range order {
		dt := gradDType(p, o.GradDType)
		if !dt.Float() {
			return nil, fmt.Errorf("ddp: parameter %s: a gradient cannot be of type %s", p.Name, dt)
		}
		b := open[dt]
		if b == nil {
			b = &Slots{DType: dt}
			open[dt], buckets = b, append(buckets, b)
		}
		b.add(p)
		last[b] = at
		limit := cmp.Or(o.BucketCap, DefaultBucketCap)
		if !seen[dt] {
			limit = cmp.Or(o.FirstBucket, DefaultFirstBucket)
		}
		if b.Bytes >= limit {
			open[dt], seen[dt] = nil, true
		}
	}
	slices.SortFunc(buckets, func(a, b *Slots) int { return last[a] - last[b] })
	for _, b := range buckets {
		plan.Buckets = append(plan.Buckets, *b)
		plan.Bytes += b.Padded
	}
	return plan, nil
}

func (b *Slots) add(p *param.Param) {
	n := p.Numel() * b.DType.Size()
	b.Params = append(b.Params, p)
	b.Offsets = append(b.Offsets, b.Padded)
	b.Bytes += n
	b.Padded += alignUp(n)
}

// Order names the parameters in the order in which the plan expects them,
// bucket by bucket. As PlanOptions.Order it gives the same buckets again.
func (p *Plan) Order() []string {
	var names []string
	for _, b := range p.Buckets {
		for _, q := range b.Params {
			names = append(names, q.Name)
		}
	}
	return names
}

// Layout is the plan as a compress.Hook sees it, for a number of ranks.
func (p *Plan) Layout(ranks int) compress.Layout {
	l := compress.Layout{Ranks: ranks}
	for _, b := range p.Buckets {
		size := b.DType.Size()
		x := compress.Bucket{DType: b.DType, Numel: b.Padded / size, Params: b.Params}
		for _, at := range b.Offsets {
			x.Offsets = append(x.Offsets, at/size)
		}
		l.Buckets = append(l.Buckets, x)
	}
	return l
}

// Hash is 16 hexadecimal digits over everything that String shows and each
// parameter's place.
func (p *Plan) Hash() string {
	h := sha256.New()
	for i, b := range p.Buckets {
		for j, q := range b.Params {
			fmt.Fprintf(h, "%d %s %q %v %d\n", i, b.DType, q.Name, q.Shape, b.Offsets[j])
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// String is a table of the buckets, a line each, in the order of reduction.
func (p *Plan) String() string {
	var out strings.Builder
	when := "before the rebuild in the first step's ready order"
	if p.Rebuilt {
		when = "in a recorded ready order"
	}
	fmt.Fprintf(&out, "bucket plan %s, %s\n", p.Hash(), when)
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "bucket\ttype\tbytes\tparameters\t  first … last")
	for i, b := range p.Buckets {
		names := b.Params[0].Name
		if n := len(b.Params); n > 1 {
			names += " … " + b.Params[n-1].Name
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t  %s\n", i, b.DType, b.Bytes, len(b.Params), names)
	}
	w.Flush() // writes to memory: no error is possible
	return out.String()
}

func gradDType(p *param.Param, all dtype.DType) dtype.DType {
	if all != dtype.Invalid {
		return all
	}
	return p.DType
}

func alignUp(n int) int { return (n + viewAlign - 1) &^ (viewAlign - 1) }
