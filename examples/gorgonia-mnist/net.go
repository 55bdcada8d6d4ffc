package main

import (
	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/models/gorgonia"
	"github.com/gorun-dev/gorun/models/gorgonia/mnist"
)

// net is a perceptron with one hidden layer, for n images at once.
type net struct {
	graph          *G.ExprGraph
	images, labels []float32 // the inputs: [n,784], and [n,10] with a one for each image's label
	scores         G.Value   // [n,10], after a run
}

// newNet builds the graph. It is what it would be without gorun, but for On and Grad.
func newNet(n int, taps *gorgonia.Taps) (*net, error) {
	const hidden = 100
	g := G.NewGraph()
	m := &net{graph: g, images: make([]float32, n*mnist.Pixels), labels: make([]float32, n*mnist.Classes)}
	input := func(name string, memory []float32, width int) *G.Node {
		return G.NewMatrix(g, gt.Float32, G.WithShape(n, width), G.WithName(name),
			G.WithValue(gt.New(gt.WithShape(n, width), gt.WithBacking(memory))))
	}
	weights := func(name string, from, to int) *G.Node {
		w := G.NewMatrix(g, gt.Float32, G.WithShape(from, to), G.WithName(name), G.WithInit(G.GlorotN(1)))
		return G.Must(taps.On(w)) // the graph uses this in w's place
	}

	x, y := input("images", m.images, mnist.Pixels), input("labels", m.labels, mnist.Classes)
	h := G.Must(G.Rectify(G.Must(G.Mul(x, weights("hidden", mnist.Pixels, hidden)))))
	scores := G.Must(G.LogSoftMax(G.Must(G.Mul(h, weights("output", hidden, mnist.Classes)))))
	G.Read(scores, &m.scores)

	// The mean over the images of minus the score of the label.
	cost := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.Sum(G.Must(G.HadamardProd(scores, y)), 1))))))
	_, err := taps.Grad(cost) // in place of G.Grad(cost, hidden, output)
	return m, err
}

// put makes image k of set the i-th of the inputs.
func (m *net) put(i int, set *mnist.Images, k int) {
	pixels, label := set.Image(k)
	for j, v := range pixels {
		m.images[i*mnist.Pixels+j] = float32(v) / 255
	}
	y := m.labels[i*mnist.Classes : (i+1)*mnist.Classes]
	clear(y)
	y[label] = 1
}

// right counts those of the first n images whose label has the highest score.
func (m *net) right(n int) (count int) {
	scores := m.scores.Data().([]float32)
	for i := range n {
		row, y := scores[i*mnist.Classes:(i+1)*mnist.Classes], m.labels[i*mnist.Classes:(i+1)*mnist.Classes]
		best := 0
		for c, s := range row {
			if s > row[best] {
				best = c
			}
		}
		if y[best] == 1 {
			count++
		}
	}
	return count
}
