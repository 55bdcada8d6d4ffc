package gorgonia

import (
	"fmt"
	"math"
	"sync"

	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Config is the shape of a classifier of square images, gray and of one byte a pixel.
type Config struct {
	// Arch is mlp: Layers hidden layers of Hidden units; or convnet: two times a
	// convolution of 5x5, ReLU and the maximum over 2x2, with 8 and 16 channels, then a
	// hidden layer of Hidden units. Both end in a layer of Classes units.
	Arch           string
	Layers, Hidden int // Layers is the mlp's, at least 1
	Side, Classes  int // of an image, in pixels
}

// Check returns an error where there is no such classifier.
func (c Config) Check() error {
	_, err := c.layers()
	return err
}

// The convnet's layers before the hidden one.
const (
	kernel  = 5
	pooling = 2
)

var channels = []int{8, 16}

// layer is one layer with weights. Behind all but the last comes a ReLU.
type layer struct {
	weight, bias *param.Param // a convolution has no bias
}

func (l layer) convolution() bool { return l.bias == nil }

// layers lists the layers in the order of the forward pass, with new parameters.
func (c Config) layers() (list []layer, err error) {
	if c.Side < 1 || c.Classes < 2 || c.Hidden < 1 {
		return nil, fmt.Errorf("gorgonia: a classifier of %dx%d pixels with %d hidden units and %d classes makes no sense", c.Side, c.Side, c.Hidden, c.Classes)
	}
	inputs := c.Side * c.Side
	hidden := c.Layers
	switch c.Arch {
	case "mlp":
		if c.Layers < 1 {
			return nil, fmt.Errorf("gorgonia: an mlp of %d hidden layers: want at least 1", c.Layers)
		}
	case "convnet":
		hidden = 1
		side, in := c.Side, 1
		for i, out := range channels {
			list = append(list, layer{weight: weight(fmt.Sprintf("conv%d.weight", i), out, in, kernel, kernel)})
			if side -= kernel - 1; side < pooling || side%pooling != 0 {
				return nil, fmt.Errorf("gorgonia: a convnet of %dx%d pixels: layer %d leaves %d, which the maximum over %dx%d does not divide", c.Side, c.Side, i, side, pooling, pooling)
			}
			side, in = side/pooling, out
		}
		inputs = in * side * side
	default:
		return nil, fmt.Errorf("gorgonia: architecture %q: want mlp or convnet", c.Arch)
	}
	for i := range hidden + 1 {
		name, out := fmt.Sprintf("hidden%d", i), c.Hidden
		if i == hidden {
			name, out = "output", c.Classes
		}
		list = append(list, layer{
			weight: weight(name+".weight", inputs, out),
			bias:   &param.Param{Name: name + ".bias", Shape: []int{out}, DType: dtype.F32, NoDecay: true},
		})
		inputs = out
	}
	return list, nil
}

func weight(name string, shape ...int) *param.Param {
	return &param.Param{Name: name, Shape: shape, DType: dtype.F32}
}

// Params lists the parameters in the order of the forward pass, all of block 0: a
// tape uses what it likes when it likes.
func (c Config) Params() ([]*param.Param, error) {
	list, err := c.layers()
	return paramsOf(list), err
}

func paramsOf(list []layer) (params []*param.Param) {
	for _, l := range list {
		params = append(params, l.weight)
		if l.bias != nil {
			params = append(params, l.bias)
		}
	}
	return params
}

// Plan is the memory that a classifier for batches of b images holds beside its
// parameters, as far as it can be told before: Gorgonia allocates the values of its
// graphs as it goes, and the garbage collector frees them when it comes to it.
func (c Config) Plan(b int) (*models.Plan, error) {
	list, err := c.layers()
	if err != nil {
		return nil, err
	}
	building.Lock()
	defer building.Unlock()
	g, err := c.newGraph(b, list, func(n *G.Node) (*G.Node, error) { return n, nil })
	if err != nil {
		return nil, err
	}
	n := 0
	for _, node := range g.AllNodes() {
		n += node.Shape().TotalSize()
	}
	var p models.Plan
	p.Add("values of Gorgonia's two graphs", dtype.F32, 2, n)
	p.Add("gradients of the values", dtype.F32, 1, n)
	return &p, nil
}

// initial writes p's first values: biases are zero, weights normal with the variance
// 2 over the inputs of a unit, which keeps the variance across a ReLU.
func initial(p *param.Param, seed uint64, out []float32) {
	if len(p.Shape) == 1 {
		clear(out)
		return
	}
	inputs := p.Shape[0]
	if len(p.Shape) == 4 {
		inputs = p.Shape[1] * p.Shape[2] * p.Shape[3]
	}
	models.NewRand(seed, p.Name).Normal(out, math.Sqrt(2/float64(inputs)))
}

// graph is a classifier's forward pass over b images.
type graph struct {
	*G.ExprGraph
	images *G.Node    // [b,1,side,side] or [b,side*side], f32
	params G.Nodes    // in the order of Params, with zeros for values
	use    substitute // what stands for a parameter in the graph
	logp   *G.Node    // [b,classes], logarithms of the probabilities
	out    *G.Node    // a copy of logp, in
	told   tensor.Tensor
}

// building is held while a graph is built: Gorgonia numbers its groups of nodes by a
// variable without a lock, which ranks that are goroutines share.
var building sync.Mutex

type substitute func(*G.Node) (*G.Node, error)

// newGraph builds the graph of the layers in list.
func (c Config) newGraph(b int, list []layer, use substitute) (*graph, error) {
	g := &graph{ExprGraph: G.NewGraph(), use: use}
	shape := gt.Shape{b, c.Side * c.Side}
	if list[0].convolution() {
		shape = gt.Shape{b, 1, c.Side, c.Side}
	}
	g.images = G.NewTensor(g.ExprGraph, gt.Float32, len(shape), G.WithShape(shape...), G.WithName("images"))
	h, err := g.images, error(nil)
	for i, l := range list {
		if l.convolution() {
			h, err = g.convolve(l, h)
		} else {
			h, err = g.connect(l, h, i < len(list)-1)
		}
		if err != nil {
			return nil, fmt.Errorf("gorgonia: %s of the %s: %w", l.weight.Name, c.Arch, err)
		}
	}
	if g.logp, err = G.LogSoftMax(h); err != nil {
		return nil, fmt.Errorf("gorgonia: the probabilities of the %s: %w", c.Arch, err)
	}
	g.told = tensor.New(device.Of(make([]float32, b*c.Classes)), dtype.F32, b, c.Classes)
	if g.out, err = G.ApplyOp(copyOp{identity{"probabilities"}, g.told}, g.logp); err != nil {
		return nil, fmt.Errorf("gorgonia: the probabilities of the %s: %w", c.Arch, err)
	}
	return g, nil
}

// param makes p's node, and returns what stands for it.
func (g *graph) param(p *param.Param) (*G.Node, error) {
	zeros := gt.New(gt.Of(gt.Float32), gt.WithShape(p.Shape...))
	n := G.NewTensor(g.ExprGraph, gt.Float32, len(p.Shape), G.WithShape(p.Shape...), G.WithName(p.Name), G.WithValue(zeros))
	g.params = append(g.params, n)
	return g.use(n)
}

// convolve is a convolution of h [b,in,side,side], a ReLU and the maximum.
func (g *graph) convolve(l layer, h *G.Node) (*G.Node, error) {
	w, err := g.param(l.weight)
	if err != nil {
		return nil, err
	}
	if h, err = G.Conv2d(h, w, gt.Shape{kernel, kernel}, []int{0, 0}, []int{1, 1}, []int{1, 1}); err != nil {
		return nil, err
	}
	if h, err = G.Rectify(h); err != nil {
		return nil, err
	}
	return G.MaxPool2D(h, gt.Shape{pooling, pooling}, []int{0, 0}, []int{pooling, pooling})
}

// connect is a layer in which each unit sees all of h, with a ReLU behind it or not.
func (g *graph) connect(l layer, h *G.Node, relu bool) (*G.Node, error) {
	w, err := g.param(l.weight)
	if err != nil {
		return nil, err
	}
	bias, err := g.param(l.bias)
	if err != nil {
		return nil, err
	}
	if b := h.Shape()[0]; h.Dims() != 2 {
		if h, err = G.Reshape(h, gt.Shape{b, h.Shape().TotalSize() / b}); err != nil {
			return nil, err
		}
	}
	if h, err = G.Mul(h, w); err != nil {
		return nil, err
	}
	if bias, err = G.Reshape(bias, gt.Shape{1, l.bias.Shape[0]}); err != nil {
		return nil, err
	}
	if h, err = G.BroadcastAdd(h, bias, nil, []byte{0}); err != nil || !relu {
		return h, err
	}
	return G.Rectify(h)
}
