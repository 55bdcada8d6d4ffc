package train

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/kernels/attention"
	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/kernels/gpu"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/trace"
)

// operations is all that a rank computes with; kernels/cpu and kernels/gpu have it.
type operations interface {
	models.Ops
	SumSquares(s device.Stream, out, x tensor.Tensor, add bool)
	Clip(s device.Stream, coef, norm2, loss tensor.Tensor, limit float64)
	AdamW(s device.Stream, slots []adamw.Slot, h adamw.Hyper)
	// Backend names what the bits of results depend on.
	Backend() string
}

// machine is where a rank computes. Weights and activations are bf16 on a GPU,
// beside a master copy of the weights in f32, and f32 on the CPU.
type machine struct {
	device         device.Device
	gpu            *cuda.Device // nil on the CPU
	gpuOps         *gpu.Ops     // its ops, nil on the CPU
	ops            operations
	compute, comms device.Stream
	threads        int    // on the CPU
	about          string // for the user
}

// place is a rank's place among those of its host, and how many the job has.
type place struct{ local, ranks, world int }

// computeType is the type of weights and activations on a kind of device.
func computeType(k device.Kind) dtype.DType {
	if k == device.CUDA {
		return dtype.BF16
	}
	return dtype.F32
}

// chooseDevice decides on the kind of device that train.device means for heads of
// the given size, in ranks ranks on this host. why tells a user who asked for auto
// the reason for the CPU.
func chooseDevice(c config.Train, headDim, ranks int) (k device.Kind, why string, err error) {
	if c.Device == "cpu" {
		return device.CPU, "", nil
	}
	err = gpuCan(c, headDim, ranks)
	if err == nil {
		return device.CUDA, "", nil
	}
	if c.Device == "cuda" {
		return device.CPU, "", fmt.Errorf("train.device cuda: %w", err)
	}
	if errors.Is(err, dl.ErrNotFound) {
		err = errors.New("there is no NVIDIA driver here")
	}
	return device.CPU, err.Error(), nil
}

// gpuCan says why this host's GPUs cannot run the model in so many ranks.
func gpuCan(c config.Train, headDim, ranks int) error {
	if err := gpuSuits(c, headDim); err != nil {
		return err
	}
	n, err := cuda.Count()
	switch {
	case err != nil:
		return err
	case n == 0:
		return errors.New("no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES hides those there are, if it is set)")
	case ranks > n:
		return fmt.Errorf("this host has %d ranks and shows %d GPUs (give --nproc %d)", ranks, n, n)
	}
	for i := range ranks { // all of them, so that every rank decides alike
		major, minor, err := cuda.Capability(i)
		if err != nil {
			return err
		}
		if major < 8 {
			return fmt.Errorf("cuda:%d has compute capability %d.%d, and 8.0 is needed", i, major, minor)
		}
	}
	return nil
}

// gpuSuits says what of the model no GPU can run here.
func gpuSuits(c config.Train, headDim int) error {
	if c.Precision == "fp32" {
		return errors.New("train.precision is fp32, and GPUs compute in bf16 here (with fp32 master weights)")
	}
	return attention.Supported(headDim)
}

// WantsGPUs says that cfg would run on GPUs where there are any. It does not ask
// the driver, so it costs nothing.
func WantsGPUs(cfg *config.Config) bool {
	if cfg.Train.Device == "cpu" || cfg.Model.Classifies() {
		return false
	}
	a, err := describeAs(cfg, dtype.F32)
	if err != nil {
		return false // the worker will say what is wrong
	}
	defer a.close()
	return gpuSuits(cfg.Train, a.spec.HeadDim) == nil
}

// openMachine opens the device and starts its streams. Closers are called with
// what has to be undone, the last first.
func openMachine(c *config.Config, k device.Kind, at place, onClose func(func() error)) (*machine, error) {
	if k == device.CUDA {
		return openGPU(c, at, onClose)
	}
	threads := c.Train.Threads
	if threads == 0 {
		threads = max(1, runtime.NumCPU()/at.ranks)
	}
	ops, err := cpu.New(threads, cpu.Options{GEMM: c.Train.MatMul})
	if err != nil {
		return nil, err
	}
	onClose(func() error { ops.Close(); return nil })
	return &machine{
		device: device.NewCPU(), ops: ops, threads: threads,
		about: fmt.Sprintf("cpu, %d threads each, matrix products by %s", ops.Threads(), ops.Backend()),
	}, nil
}

func openGPU(c *config.Config, at place, onClose func(func() error)) (*machine, error) {
	n, err := cuda.Count()
	if err != nil {
		return nil, err
	}
	if at.local >= n {
		return nil, fmt.Errorf("this is local rank %d and the host shows %d GPUs", at.local, n)
	}
	dev, err := cuda.Open(at.local)
	if err != nil {
		return nil, err
	}
	onClose(dev.Close)
	onClose(func() func() error {
		unbind := dev.Bind() // the host's goroutine enqueues everything
		return func() error { unbind(); return nil }
	}())
	ops, err := gpu.New(dev, gpu.Options{Attention: c.Model.Attention})
	if err != nil {
		return nil, err
	}
	onClose(ops.Close)
	return &machine{device: dev, gpu: dev, gpuOps: ops, ops: ops, about: fmt.Sprintf("%s (%s), %s", dev, dev.Name(), ops.Backend())}, nil
}

// startStreams makes the machine's two streams. Those of the CPU tell tracer what
// ran; for those of a GPU see gpuTrace.
func (m *machine) startStreams(tracer *trace.Recorder) (err error) {
	if m.gpu == nil {
		m.compute, m.comms = device.NewCPUStream("compute", tracer), device.NewCPUStream("comm", tracer)
		return nil
	}
	if m.compute, err = m.gpu.NewStream("compute"); err != nil {
		return err
	}
	// Of the same priority: with a higher one sums take multiprocessors from matrix
	// products in their midst, and the step takes longer (docs/benchmarks/gpu.md).
	m.comms, err = m.gpu.NewStream("comm")
	return err
}
