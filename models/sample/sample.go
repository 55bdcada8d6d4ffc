// Package sample lets a model continue a text.
//
// The choice of a token is a pure function of the logits, the options and the
// token's number, so that equal weights give equal text on any number of ranks.
package sample

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Options say how tokens are chosen.
type Options struct {
	MaxTokens   int     // new ones, at most
	Temperature float64 // divides the logits; 0: always the likeliest token
	TopK        int     // choose among the k likeliest; 0: among all
	TopP        float64 // choose among the likeliest that together reach p; 0 or 1: among all
	Seed        uint64
	Stop        []int32 // tokens that end the text and are left out
	// Each is called with each new token, as it is chosen; false ends the text behind it.
	Each func(id int32) bool
}

func (o Options) check() error {
	switch {
	case o.MaxTokens < 1:
		return fmt.Errorf("sampling %d tokens; it must be at least 1", o.MaxTokens)
	case !(o.Temperature >= 0) || math.IsInf(o.Temperature, 0):
		return fmt.Errorf("a temperature of %v; it must be finite, and not negative", o.Temperature)
	case o.TopK < 0:
		return fmt.Errorf("top-k of %d; it must not be negative", o.TopK)
	case !(o.TopP >= 0 && o.TopP <= 1):
		return fmt.Errorf("top-p of %v; it must be from 0 to 1", o.TopP)
	}
	return nil
}

// Generator is a generator and where it runs: the environment that it was built
// with, and its weights.
type Generator struct {
	models.Generator
	Env     models.Env
	Weights param.Weights
}

// Text continues prompt until a token of o.Stop, the tokenizer's end of text, or
// o.MaxTokens, and returns the prompt and what follows. A prompt begins as the
// tokenizer has a text begin: with what its Template puts there, as BPE's does, else
// with its beginning of text. ctx bounds the whole.
func Text(ctx context.Context, g Generator, tok tokenizer.Tokenizer, prompt string, o Options) (string, error) {
	ids, err := Prompt(tok, prompt)
	if err != nil {
		return "", err
	}
	if eos, ok := tok.EOS(); ok {
		o.Stop = append(slices.Clone(o.Stop), eos)
	}
	more, err := Tokens(ctx, g, ids, o)
	if err != nil {
		return "", err
	}
	return tok.Decode(append(ids, more...)), nil
}

// Prompt is the tokens of a text that is to be continued.
func Prompt(tok tokenizer.Tokenizer, text string) ([]int32, error) {
	ids := tok.Encode(text)
	begin, begins := tok.BOS()
	if t, ok := tok.(surrounding); ok {
		before, _ := t.Template()
		ids = slices.Concat(before, ids)
	} else if begins {
		ids = slices.Insert(ids, 0, begin)
	}
	if len(ids) == 0 && begins {
		ids = []int32{begin}
	}
	if len(ids) == 0 {
		return nil, errors.New("sampling: the prompt is empty, and the tokenizer has no token that begins a text")
	}
	return ids, nil
}

// surrounding is a tokenizer that knows what goes around a text; *tokenizer.BPE is one.
type surrounding interface {
	Template() (before, after []int32)
}

// Tokens continues prompt and returns the new tokens.
func Tokens(ctx context.Context, g Generator, prompt []int32, o Options) ([]int32, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := g.Reset(len(prompt) + o.MaxTokens); err != nil {
		return nil, err
	}
	d := g.Env.Device
	logits, err := tensor.Alloc(d, dtype.F32, g.Vocab())
	if err != nil {
		return nil, fmt.Errorf("sampling: logits: %w", err)
	}
	host, err := d.AllocHost(logits.Buf.Len())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sampling: logits: %w", err), d.Free(logits.Buf))
	}
	out, err := tokens(ctx, g, prompt, logits, tensor.New(host, dtype.F32, g.Vocab()), o)
	if err != nil {
		return nil, err // nothing is freed: the stream may still write it
	}
	return out, errors.Join(d.Free(logits.Buf), d.Free(host))
}

// tokens has the model write to logits and reads them on the host.
func tokens(ctx context.Context, g Generator, prompt []int32, logits, host tensor.Tensor, o Options) ([]int32, error) {
	choose := newChooser(o, g.Vocab())
	var out []int32
	for unread := prompt; len(out) < o.MaxTokens; unread = out[len(out)-1:] {
		if err := g.Next(g.Weights, unread, logits); err != nil {
			return nil, err
		}
		g.Env.Stream.Copy(host.Buf, logits.Buf)
		if err := g.Env.Stream.Synchronize(ctx); err != nil {
			return nil, fmt.Errorf("sampling token %d: %w", len(out), err)
		}
		id, err := choose.token(host.F32(), uint64(len(out)))
		if err != nil {
			return nil, fmt.Errorf("sampling token %d: %w", len(out), err)
		}
		if slices.Contains(o.Stop, id) {
			break
		}
		out = append(out, id)
		if o.Each != nil && !o.Each(id) {
			break
		}
	}
	return out, nil
}

// chooser draws tokens.
type chooser struct {
	Options
	random models.Rand
	order  []candidate // scratch
}

// candidate is a token, its logit and, once the sum is known, its weight.
type candidate struct {
	id            int32
	logit, weight float64
}

// byLikelihood puts the likeliest first; of equals, the lower id.
func byLikelihood(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.logit, a.logit), cmp.Compare(a.id, b.id))
}

func newChooser(o Options, vocab int) *chooser {
	return &chooser{Options: o, random: models.NewRand(o.Seed, "sample"), order: make([]candidate, vocab)}
}

// token chooses token number n from its logits.
func (c *chooser) token(logits []float32, n uint64) (int32, error) {
	for i, x := range logits {
		if x != x || math.IsInf(float64(x), 1) {
			return 0, fmt.Errorf("logit %d is %v: the weights are damaged, or training diverged", i, x)
		}
		c.order[i] = candidate{id: int32(i), logit: float64(x)}
	}
	if c.Temperature == 0 {
		return slices.MinFunc(c.order, byLikelihood).id, nil
	}
	slices.SortFunc(c.order, byLikelihood)
	among := c.order
	if c.TopK > 0 {
		among = among[:min(c.TopK, len(among))]
	}
	sum := 0.0
	for i := range among {
		among[i].weight = math.Exp((among[i].logit - among[0].logit) / c.Temperature)
		sum += among[i].weight
	}
	if c.TopP > 0 && c.TopP < 1 {
		among, sum = nucleus(among, c.TopP*sum)
	}
	at := c.random.Float64(n) * sum
	for _, a := range among {
		if at -= a.weight; at < 0 {
			return a.id, nil
		}
	}
	return among[len(among)-1].id, nil // at was within rounding of the sum
}

// nucleus is the shortest beginning whose weights reach mass, and their sum.
func nucleus(among []candidate, mass float64) ([]candidate, float64) {
	sum := 0.0
	for i, a := range among {
		if sum += a.weight; sum >= mass {
			return among[:i+1], sum
		}
	}
	return among, sum
}
