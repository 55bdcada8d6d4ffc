package bench

import (
	"errors"

	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// product is what runs beside a collective: products of square matrices, on a stream
// of its own.
type product interface {
	on() device.Stream
	enqueue()
	close() error
	String() string
}

func newProduct(dev device.Device, n int) (product, error) {
	if d, ok := dev.(*cuda.Device); ok {
		return newGPUProduct(d, n)
	}
	backend, _, err := gemm.Choose("auto")
	if err != nil {
		return nil, err
	}
	return &cpuProduct{device.NewCPUStream("product", nil), backend, n, make([]float32, n*n), make([]float32, n*n), make([]float32, n*n)}, nil
}

type cpuProduct struct {
	stream  *device.CPUStream
	backend gemm.Backend
	n       int
	c, a, b []float32
}

func (p *cpuProduct) on() device.Stream { return p.stream }
func (p *cpuProduct) close() error      { return p.stream.Close() }
func (p *cpuProduct) String() string    { return "f32 by " + p.backend.Name() }

func (p *cpuProduct) enqueue() {
	p.stream.Do("product", func() error {
		p.backend.Gemm(false, false, p.n, p.n, p.n, p.a, p.n, p.b, p.n, false, p.c, p.n)
		return nil
	})
}

// gpuProduct multiplies bf16 by cuBLASLt. The matrices are zero, so the GPU's clock is
// at its highest: what slows the product is the collective.
type gpuProduct struct {
	dev     *cuda.Device
	stream  *cuda.Stream
	handle  *cublaslt.Handle
	memory  device.Buffer
	c, a, b cublaslt.Matrix
}

func newGPUProduct(d *cuda.Device, n int) (_ *gpuProduct, err error) {
	p := &gpuProduct{dev: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	s, err := d.NewStream("product")
	if err != nil {
		return nil, err
	}
	p.stream = s.(*cuda.Stream)
	if p.handle, err = cublaslt.New(d, 0); err != nil {
		return nil, err
	}
	p.handle.TimeWithZeros()
	size := n * n * dtype.BF16.Size()
	if p.memory, err = d.Alloc(3 * size); err != nil {
		return nil, err
	}
	for i, m := range []*cublaslt.Matrix{&p.c, &p.a, &p.b} {
		*m = cublaslt.Matrix{Addr: p.memory.Slice(i*size, (i+1)*size).Addr(), DType: dtype.BF16, Rows: n, Cols: n, Stride: n}
	}
	return p, nil
}

func (p *gpuProduct) on() device.Stream { return p.stream }
func (p *gpuProduct) String() string    { return "bf16 by cuBLASLt " + p.handle.Version() }
func (p *gpuProduct) enqueue()          { p.handle.MatMul(p.stream, p.c, p.a, p.b, 0, cublaslt.Matrix{}) }

func (p *gpuProduct) close() error {
	var errs []error
	if p.handle != nil {
		errs = append(errs, p.handle.Close())
	}
	if p.memory.Len() > 0 {
		errs = append(errs, p.dev.Free(p.memory))
	}
	if p.stream != nil {
		errs = append(errs, p.stream.Close())
	}
	return errors.Join(errs...)
}
