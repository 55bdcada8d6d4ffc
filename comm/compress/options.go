package compress

import (
	"cmp"
	"fmt"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Scheme is a way to make gradients smaller.
type Scheme string

// FP16 holds numbers from 6e-8 to 65504: gradients that are smaller become zero, and
// larger ones infinite, which skips the step. BF16 has f32's range and fewer digits.
const (
	FP16     Scheme = "fp16"
	BF16     Scheme = "bf16"
	Int8     Scheme = "int8"
	PowerSGD Scheme = "powersgd"
	TopK     Scheme = "topk"
)

// The defaults that zero stands for.
const (
	DefaultRank     = 1
	DefaultMinRate  = 2
	DefaultFraction = 0.01
)

// Options choose a scheme. They must be the same on every rank.
type Options struct {
	Scheme Scheme
	// Rank is that of PowerSGD's matrices; default 1. A larger one sends more and errs less.
	Rank int
	// MinRate is the least factor by which PowerSGD must shrink a parameter: others, and
	// all that have one dimension, are sent whole; default 2.
	MinRate float64
	// Start is how many steps send whole gradients before PowerSGD begins. The first
	// steps of a training suffer most from what compression leaves behind.
	Start int
	// Fraction is the share of each parameter's elements that TopK sends, one at least;
	// default 0.01. Each takes 8 bytes.
	Fraction float64
}

// New makes a compressor. It fails on an option that is out of range or of another
// scheme.
func New(o Options) (*Compressor, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Rank = cmp.Or(o.Rank, DefaultRank)
	o.MinRate = cmp.Or(o.MinRate, DefaultMinRate)
	o.Fraction = cmp.Or(o.Fraction, DefaultFraction)
	c := &Compressor{}
	switch o.Scheme {
	case FP16:
		c.scheme = half{dtype.F16}
	case BF16:
		c.scheme = half{dtype.BF16}
	case Int8:
		c.scheme = int8s{}
	case TopK:
		c.scheme = topK{o.Fraction}
	case PowerSGD:
		c.scheme = &powerSGD{rank: o.Rank, minRate: o.MinRate, start: o.Start}
	}
	return c, nil
}

func (o Options) check() error {
	switch o.Scheme {
	case FP16, BF16, Int8, PowerSGD, TopK:
	default:
		return fmt.Errorf("compress: there is no scheme %q: want %s, %s, %s, %s or %s", string(o.Scheme), FP16, BF16, Int8, PowerSGD, TopK)
	}
	for _, x := range []struct {
		name   string
		of     Scheme
		given  bool
		wrong  bool
		value  any
		limits string
	}{
		{"Rank", PowerSGD, o.Rank != 0, o.Rank < 0, o.Rank, "at least 1"},
		{"MinRate", PowerSGD, o.MinRate != 0, !(o.MinRate >= 1), o.MinRate, "at least 1"},
		{"Start", PowerSGD, o.Start != 0, o.Start < 0, o.Start, "a number of steps"},
		{"Fraction", TopK, o.Fraction != 0, !(o.Fraction > 0 && o.Fraction <= 1), o.Fraction, "above 0 and at most 1"},
	} {
		switch {
		case x.given && x.of != o.Scheme:
			return fmt.Errorf("compress: %s is for %s, and the scheme is %s", x.name, x.of, o.Scheme)
		case x.given && x.wrong:
			return fmt.Errorf("compress: %s is %v: want %s", x.name, x.value, x.limits)
		}
	}
	return nil
}
