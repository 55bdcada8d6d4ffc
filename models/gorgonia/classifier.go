package gorgonia

import (
	"context"
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Classifier is a built-in classifier of images whose both passes Gorgonia computes:
// a models.Model for the loop that trains the others. Of a batch, Tokens are the
// pixels, 0 to 255, an image a sequence; an image's label is the target of its last
// position, and no other counts.
//
// A tape is one program for both passes, and runs on the host. So Forward with train
// only keeps the batch, Backward runs the tape and returns when it has ended, and the
// time of both stands under the backward pass. Gradients go out within it. What goes
// wrong fails the stream.
type Classifier struct {
	config  Config
	env     models.Env
	compute stream

	taps   Taps
	params []*param.Param
	train  *graph
	target *G.Node // [B,classes] f32: a factor of the loss in the place of an image's label
	tape   G.VM    // of train and its gradients
	test   *graph
	tester G.VM

	images, factors tensor.Tensor // f32, what the inputs see
	labels          []int32       // of the batch; negative: does not count
	loss            tensor.Tensor // of the last Forward with train
	correct         int
	bytes           int64
}

var _ models.Model = (*Classifier)(nil)

// stream is a stream of host memory, which runs what it is given in order.
type stream interface {
	device.Stream
	Do(name string, f func() error)
}

// NewClassifier builds a classifier for batches of env.B images. env.Ops is not used.
// Close ends it.
func NewClassifier(c Config, env models.Env) (*Classifier, error) {
	if err := env.Check(); err != nil {
		return nil, err
	}
	compute, ok := env.Stream.(stream)
	switch {
	case !ok:
		return nil, fmt.Errorf("gorgonia: the %s computes in host memory, and the stream is of %s", c.Arch, env.Device)
	case env.T != c.Side*c.Side:
		return nil, fmt.Errorf("gorgonia: sequences of %d tokens: want %d, the pixels of an image", env.T, c.Side*c.Side)
	}
	list, err := c.layers()
	if err != nil {
		return nil, err
	}
	plan, err := c.Plan(env.B)
	if err != nil {
		return nil, err
	}
	m := &Classifier{bytes: plan.Bytes(), config: c, env: env, compute: compute, labels: make([]int32, env.B)}
	building.Lock()
	defer building.Unlock()
	if err := m.buildTrain(list); err != nil {
		return nil, err
	}
	if m.test, err = c.newGraph(env.B, list, func(n *G.Node) (*G.Node, error) { return n, nil }); err != nil {
		return nil, err
	}
	m.tester = G.NewTapeMachine(m.test.ExprGraph)
	if err := G.Let(m.test.images, m.train.images.Value()); err != nil {
		return nil, fmt.Errorf("gorgonia: %w", err)
	}
	return m, nil
}

// buildTrain makes the graph of both passes. The loss is the sum over the images of
// the logarithm of their labels' probabilities, times minus what stands in target.
func (m *Classifier) buildTrain(list []layer) (err error) {
	b := m.env.B
	if m.train, err = m.config.newGraph(b, list, m.taps.On); err != nil {
		return err
	}
	m.params = paramsOf(list)
	m.target = G.NewMatrix(m.train.ExprGraph, gt.Float32, G.WithShape(b, m.config.Classes), G.WithName("target"))
	for _, x := range []struct {
		memory *tensor.Tensor
		input  *G.Node
	}{{&m.images, m.train.images}, {&m.factors, m.target}} {
		if *x.memory, err = tensor.Alloc(m.env.Device, dtype.F32, x.input.Shape()...); err != nil {
			return err
		}
		if err := G.Let(x.input, see(*x.memory)); err != nil {
			return fmt.Errorf("gorgonia: %w", err)
		}
	}
	cost, err := G.HadamardProd(m.train.logp, m.target)
	if err == nil {
		cost, err = G.Sum(cost)
	}
	if err == nil {
		cost, err = G.Neg(cost)
	}
	if err != nil {
		return fmt.Errorf("gorgonia: the loss of the %s: %w", m.config.Arch, err)
	}
	grads, err := m.taps.Grad(cost)
	if err != nil {
		return err
	}
	inputs := append(G.Nodes{m.train.images, m.target}, m.train.params...)
	program, places, err := G.CompileFunction(m.train.ExprGraph, inputs, append(G.Nodes{cost, m.train.out}, grads...))
	if err != nil {
		return fmt.Errorf("gorgonia: the program of the %s: %w", m.config.Arch, err)
	}
	m.tape = G.NewTapeMachine(m.train.ExprGraph, G.WithPrecompiled(program, places))
	return nil
}

// Close ends the machines.
func (m *Classifier) Close() error { return errors.Join(m.tape.Close(), m.tester.Close()) }

// Params is of models.Model.
func (m *Classifier) Params() []*param.Param { return m.params }

// Init is of models.Model: biases are zero, weights normal with the variance 2 over
// the inputs of a unit, which keeps the variance across a ReLU.
func (m *Classifier) Init(p *param.Param, seed uint64, out []float32) { initial(p, seed, out) }

// Bytes is of models.Model; see Plan.
func (m *Classifier) Bytes() int64 { return m.bytes }

// Correct is how many images of the Forwards without train, since the last call, were
// given the highest probability for their label.
func (m *Classifier) Correct() int {
	n := m.correct
	m.correct = 0
	return n
}

// Forward is of models.Model. It waits for the stream, for Gorgonia computes on the
// host.
func (m *Classifier) Forward(w param.Weights, b models.Batch, loss tensor.Tensor, train bool) {
	m.env.CheckBatch(b)
	m.must(func() error {
		if err := m.settle(); err != nil {
			return err
		}
		m.take(b)
		if train {
			m.loss = loss
			return nil
		}
		if err := m.run(w, m.test, m.tester.RunAll); err != nil {
			return fmt.Errorf("gorgonia: %w", err)
		}
		m.tester.Reset()
		m.correct += m.score(m.test, loss)
		return nil
	})
}

// Backward is of models.Model. It returns when the tape has run, with the gradients on
// their way. Before the next Forward the stream may be anywhere.
func (m *Classifier) Backward(w param.Weights, g param.GradSink, scale float32) {
	m.must(func() error {
		factors := m.factors.F32()
		clear(factors)
		for i, l := range m.labels {
			if l >= 0 {
				factors[i*m.config.Classes+int(l)] = scale
			}
		}
		ready := func(i int) error { return m.deliver(i, g) }
		if err := m.run(w, m.train, func() error { return m.taps.run(m.tape, ready) }); err != nil {
			return err
		}
		m.tape.Reset()
		m.score(m.train, m.loss)
		return nil
	})
}

// deliver hands gradient i to sink. It is copied to its place on the stream, behind
// what the sink has to say of that place, from memory that stays as it is until the
// next pass, for which the host waits.
func (m *Classifier) deliver(i int, sink param.GradSink) error {
	p, mine := m.params[i], m.taps.list[i].grad
	place, add := sink.Get(p)
	if place.DType != mine.DType {
		return fmt.Errorf("the sink wants it as %s, and it is %s", place.DType, mine.DType)
	}
	m.compute.Do("gradient of "+p.Name, func() error {
		if !add {
			copy(place.F32(), mine.F32())
			return nil
		}
		for k, v := range mine.F32() {
			place.F32()[k] += v
		}
		return nil
	})
	sink.Ready(p)
	return nil
}

// must fails the stream with what do returns.
func (m *Classifier) must(do func() error) {
	if err := do(); err != nil {
		m.compute.Do(m.config.Arch, func() error { return err })
	}
}

// settle waits until the stream has passed what is enqueued: what it waits for has
// deadlines of its own.
func (m *Classifier) settle() error { return m.compute.Synchronize(context.Background()) }

// take reads a batch: pixels become numbers of 0 to 1.
func (m *Classifier) take(b models.Batch) {
	tokens, targets, images := b.Tokens.I32(), b.Targets.I32(), m.images.F32()
	clear(images[len(tokens):])
	for i, v := range tokens {
		images[i] = float32(v) / 255
	}
	for i := range m.labels {
		m.labels[i] = -1
		if i < b.B {
			m.labels[i] = targets[(i+1)*b.T-1]
		}
	}
}

// run runs the machine of g on the weights of w.
func (m *Classifier) run(w param.Weights, g *graph, runAll func() error) error {
	w.Use(0)
	defer w.Done(0)
	if err := m.settle(); err != nil {
		return err
	}
	for i, p := range m.params {
		if err := G.Let(g.params[i], see(w.Weight(p))); err != nil {
			return fmt.Errorf("gorgonia: %s: %w", p.Name, err)
		}
	}
	return runAll()
}

// score enqueues the sum of the losses of the images that count, and counts those
// that are told right.
func (m *Classifier) score(g *graph, loss tensor.Tensor) (correct int) {
	var sum float64
	v, classes := g.told.F32(), m.config.Classes
	for i, l := range m.labels {
		if l < 0 {
			continue
		}
		row := v[i*classes : (i+1)*classes]
		sum -= float64(row[l])
		best := 0
		for c, x := range row {
			if x > row[best] {
				best = c
			}
		}
		if best == int(l) {
			correct++
		}
	}
	m.compute.Do("loss", func() error {
		loss.F64()[0] += sum
		return nil
	})
	return correct
}
