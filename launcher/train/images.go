package train

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/models/gorgonia"
	"github.com/gorun-dev/gorun/models/gorgonia/mnist"
	"github.com/gorun-dev/gorun/runtime/device"
)

// classifier is a model that counts what it tells right.
type classifier interface {
	// Correct is how many targets of the Forwards without train, since the last call,
	// it took for the most likely.
	Correct() int
}

// describeClassifier works out the classifier that the configuration names, for ranks
// ranks on this host. Gorgonia computes its both passes, on the CPU.
func describeClassifier(cfg *config.Config, ranks int) (*architecture, error) {
	m := cfg.Model
	c := &gorgonia.Config{
		Arch: strings.TrimPrefix(m.Arch, "gorgonia-"), Layers: m.Layers, Hidden: m.Hidden, Side: mnist.Side, Classes: mnist.Classes,
	}
	a := &architecture{cfg: cfg, name: m.Arch, on: device.CPU, ranks: ranks, classifier: c}
	if cfg.Train.Device == "auto" {
		a.why = "Gorgonia computes in host memory"
	}
	if err := cfg.CheckDevice(device.CPU.String(), a.why); err != nil {
		return nil, err
	}
	var errs [2]error
	a.params, errs[0] = c.Params()
	a.memory, errs[1] = c.Plan(cfg.Train.MicroBatch)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return a, nil
}

// buildClassifier makes the model, and what it multiplies by.
func (j *job) buildClassifier() error {
	mul, _, err := gemm.Choose(j.cfg.Train.MatMul)
	if err != nil {
		return err
	}
	gorgonia.UseProducts(mul, j.threads)
	m, err := gorgonia.NewClassifier(*j.arch.classifier, j.env)
	if err != nil {
		return err
	}
	j.model = m
	j.onClose(m.Close)
	return nil
}

// openImages reads the folder of data.train.
func openImages(d config.Data) (*data.Set, error) {
	train, test, err := mnist.Open(d.Train[0])
	if err != nil {
		return nil, fmt.Errorf("data.train: %w", err)
	}
	return &data.Set{Train: train, Eval: test}, nil
}

// CheckData makes sure, without reading it, that the data to train on is there.
func CheckData(d config.Data) error {
	if !d.Images() {
		return data.Check(d.Train)
	}
	if len(d.Train) == 0 {
		return nil // which the configuration refuses
	}
	return mnist.Check(d.Train[0])
}

// contents says what the data is made of.
func contents(cfg *config.Config, i data.Info) string {
	if cfg.Data.Images() {
		return fmt.Sprintf("%d images from %d files", i.Sequences, i.Files)
	}
	return i.String()
}

// sequences is what a batch consists of.
func sequences(cfg *config.Config) string {
	if cfg.Data.Images() {
		return "images"
	}
	return fmt.Sprintf("sequences of %d tokens", cfg.Data.SeqLen)
}
