package attention

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/gorun-dev/gorun/kernels/attention/cudnn"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// fused is another library's attention: cuDNN's. It takes packed tensors without
// documents and writes what the native kernels write, with a deterministic backward
// pass.
type fused interface {
	// Supported says why a shape is refused, nil where it is not.
	Supported(B, T, H, K, D int) error
	// Workspace is the bytes of scratch memory that both passes take.
	Workspace(B, T, H, K, D int) int64
	Forward(s device.Stream, o, lse, qkv tensor.Tensor)
	Backward(s device.Stream, dqkv, do, o, lse, qkv tensor.Tensor)
	Version() string
	Close() error
}

// Prefer says which implementation of each pass is the faster on a card of compute
// capability major.minor, "native" or "cudnn", and why. It goes by measurements:
// TFLOP/s on an H200, native then cuDNN 9.19, both backward passes deterministic.
//
//	heads, size   B×T      forward   backward
//	14/2 of  64   8×2048   342 367   320 252
//	14/2 of  64   4×4096   388 408   359 287
//	12/2 of 128   8×2048   519 522   362 370
//	12/2 of 128   4×4096   601 573   394 421
//	28/4 of 128   4×4096   600 610   395 449
//
// cuDNN's backward figures are of whole batches, whose scratch memory is quadratic
// in T: cut into single sequences the last one falls to 383.
func Prefer(major, minor, D, T int) (forward, backward, why string) {
	switch {
	case major != 9 || minor != 0:
		return "native", "native", fmt.Sprintf("nothing else is measured on compute capability %d.%d", major, minor)
	case D != 64 && D != 128:
		return "native", "native", fmt.Sprintf("nothing else is measured for heads of %d", D)
	case D == 64:
		return "native", "native", "for heads of 64 its backward pass is 25 % faster than cuDNN's, whose forward pass is up to 8 % faster"
	case T < 4096:
		return "native", "native", "for heads of 128 and fewer than 4096 positions cuDNN is at most 2 % faster"
	}
	return "native", "cudnn", "for heads of 128 and 4096 positions or more cuDNN's backward pass is 7 to 14 % faster, its forward pass not"
}

// autoScratch is how much scratch memory auto spends on cuDNN's backward pass.
const autoScratch = cudnn.Limit

// quadratic is the scratch memory of cuDNN's backward pass over a whole batch that
// grows with T²: the gradient of the scores in bf16.
func quadratic(s shape) int64 { return 2 * int64(s.B) * int64(s.H) * int64(s.T) * int64(s.T) }

// choice decides between the implementations, and opens cuDNN when it is first
// wanted.
type choice struct {
	by           string // as in NewCUDA
	major, minor int    // the card's compute capability
	find         func() (fused, error)
	test         func(f fused, headDim int) error // compares f with the native kernels

	mu     sync.Mutex // guards what follows
	opened bool
	cudnn  fused
	failed error         // why cudnn is nil
	tested map[int]error // by head size: what the self-test said
}

// newChoice chooses between n and cuDNN on n's card.
func newChoice(by string, n *native) *choice {
	c := &choice{by: by}
	c.major, c.minor = n.env.Device.Arch()
	c.test = func(f fused, headDim int) error { return selfTest(n, f, headDim) }
	c.find = func() (fused, error) {
		f, err := cudnn.Open(n.env)
		if err != nil {
			return nil, err // and no fused that holds a nil *SDPA
		}
		return f, nil
	}
	return c
}

// plan is what computes each pass of calls of one shape, nil being the native
// kernels, and why.
type plan struct {
	forward, backward fused
	why               string
}

// plan fails where nothing computes such calls.
func (c *choice) plan(s shape, docs bool) (plan, error) {
	if c.by == "cudnn" {
		f, err := c.ready(s, docs)
		if err != nil {
			return plan{}, fmt.Errorf("attention by cuDNN was asked for: %w; ask for auto or native", err)
		}
		return plan{forward: f, backward: f, why: "asked for"}, nil
	}
	if err := Supported(s.D); err != nil {
		return plan{}, err
	}
	if c.by == "native" {
		return plan{why: "asked for"}, nil
	}
	forward, backward, why := Prefer(c.major, c.minor, s.D, s.T)
	if forward == "native" && backward == "native" {
		return plan{why: why}, nil
	}
	if need := quadratic(s); need > autoScratch {
		return plan{why: fmt.Sprintf("cuDNN's backward pass would take %d MiB of scratch memory, of which %d are allowed", need>>20, autoScratch>>20)}, nil
	}
	f, err := c.ready(s, docs)
	if err != nil {
		return plan{why: err.Error()}, nil
	}
	p := plan{why: why}
	if forward == "cudnn" {
		p.forward = f
	}
	if backward == "cudnn" {
		p.backward = f
	}
	return p, nil
}

// ready is cuDNN, opened, tested and fit for calls of a shape.
func (c *choice) ready(s shape, docs bool) (fused, error) {
	if docs {
		return nil, fmt.Errorf("cuDNN attention knows no documents")
	}
	f, err := c.open()
	if err != nil {
		return nil, err
	}
	if err := f.Supported(s.B, s.T, s.H, s.K, s.D); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err, done := c.tested[s.D]
	if !done {
		if err = c.test(f, s.D); err != nil {
			err = fmt.Errorf("cuDNN %s fails the self-test: %w", f.Version(), err)
			slog.Warn("attention: cuDNN is not used", "error", err)
		}
		c.tested[s.D] = err
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// open opens cuDNN, once.
func (c *choice) open() (fused, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.opened {
		c.opened = true
		c.tested = map[int]error{}
		c.cudnn, c.failed = c.find()
	}
	return c.cudnn, c.failed
}

func (c *choice) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cudnn == nil {
		return nil
	}
	err := c.cudnn.Close()
	c.cudnn, c.failed = nil, fmt.Errorf("attention is closed")
	return err
}
