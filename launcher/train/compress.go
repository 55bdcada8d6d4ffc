package train

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/launcher/config"
)

// compression is what parallel.compress asks for. nil, which is for none, may be asked
// for everything.
type compression struct {
	*compress.Compressor
	cost    compress.Cost
	counted compress.Stats // of the steps that were told of
}

// newCompression is what p asks for, nil for none.
func newCompression(p config.Parallel) (*compression, error) {
	o := compress.Options{Scheme: compress.Scheme(p.Compress)}
	switch p.Compress {
	case "none":
		return nil, nil
	case "powersgd":
		o.Rank, o.Start = p.CompressRank, p.CompressStart
	case "topk":
		o.Fraction = p.CompressFraction
	}
	c, err := compress.New(o)
	if err != nil {
		return nil, fmt.Errorf("parallel.compress: %w", err)
	}
	return &compression{Compressor: c}, nil
}

// compressReplicas works out what compression takes under plain data parallelism.
func (a *architecture) compressReplicas() error {
	if a.compression == nil {
		return nil
	}
	p, err := ddp.NewPlan(a.params, bucketOptions(a.cfg, a.on, nil))
	if err == nil {
		a.compression.cost = a.compression.Cost(p.Layout(max(a.world, 1)))
	}
	return err
}

// hook is what ddp and zero take.
func (c *compression) hook() compress.Hook {
	if c == nil {
		return nil
	}
	return c.Compressor
}

// memory is what it takes of a rank.
func (c *compression) memory() int64 {
	if c == nil {
		return 0
	}
	return c.cost.Memory
}

// private is what a checkpoint keeps of it for this rank: what compression has left of
// the gradients, once a step has ended.
func (c *compression) private() (list []private) {
	if c == nil {
		return nil
	}
	for _, s := range c.State() {
		list = append(list, private{"compress." + s.Name, s.Tensor})
	}
	return list
}

// state is the bytes of private.
func (c *compression) state() int64 {
	if c == nil {
		return 0
	}
	return c.cost.State
}

// about is a line for the user.
func (c *compression) about() string {
	if c.cost.Plain == 0 {
		return c.String() + ", which one rank does without"
	}
	return fmt.Sprintf("%s, a rank sends %s of gradients at a time in place of %s", c, byteCount(c.cost.Sent), byteCount(c.cost.Plain))
}

// step is told of every step, with the factor of clipping that it had. It takes back a
// step that was skipped, and returns what the step sent and lost.
func (c *compression) step(coef float64) (s compressed) {
	if c == nil {
		return s
	}
	if math.IsNaN(coef) {
		c.Discard()
	}
	now, old := c.Stats(), c.counted
	c.counted = now
	return compressed{now.Sent - old.Sent, now.Plain - old.Plain, now.Given - old.Given, now.Lost - old.Lost}
}

// compressed is the Stats of some steps.
type compressed compress.Stats

func (s *compressed) add(t compressed) {
	*s = compressed{s.Sent + t.Sent, s.Plain + t.Plain, s.Given + t.Given, s.Lost + t.Lost}
}

// savings is what parallel.compress has come to; both are 0 without it, and with one rank.
// On GPUs the error is that of a sample.
type savings struct {
	CompressFactor float64 `json:"compress_factor,omitempty"` // bytes of gradients that would have been sent, over those that were
	CompressError  float64 `json:"compress_error,omitempty"`  // length of what was left behind over that of what there was to send
}

func savingsOf(s compressed) (x savings) {
	if s.Sent > 0 {
		x.CompressFactor = float64(s.Plain) / float64(s.Sent)
	}
	if s.Given > 0 {
		x.CompressError = math.Sqrt(s.Lost / s.Given)
	}
	return x
}

// line is for the summary, "" where nothing was compressed.
func (x savings) line() string {
	if x.CompressFactor == 0 {
		return ""
	}
	line := fmt.Sprintf("gradients to %.3gx fewer bytes", x.CompressFactor)
	if x.CompressError > 0 {
		line += fmt.Sprintf(", leaving behind %.2g %% of their length", 100*x.CompressError)
	}
	return line
}
