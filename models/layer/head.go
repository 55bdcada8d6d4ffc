package layer

import (
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// logitsLimit bounds the logits that exist at once, in bytes. On the CPU they stay
// near its caches. On a GPU few rows would starve the matrix product (below about
// 2048 rows of a large vocabulary), and every further chunk adds to the weight's
// gradient once more, in its own precision.
var logitsLimit = map[device.Kind]int{device.CPU: 64 << 20, device.CUDA: 1280 << 20}

// Head is the projection to the vocabulary and the loss. It works in chunks of
// rows, for the logits of a large vocabulary would outweigh the whole model.
//
// In training all of it happens in the backward pass, where a chunk's logits
// become their gradient in place: nothing of them is kept or computed twice.
type Head struct {
	Weight *param.Param // [V,C]
	Tied   bool         // another layer writes Weight's gradient last and calls Ready

	rows           int // of a chunk
	logits, losses models.Region
}

// NewHead is a head for batches of at most n rows on a device of the given kind.
func NewHead(weight *param.Param, tied bool, n int, on device.Kind) Head {
	row := weight.Shape[0] * weight.DType.Size()
	return Head{Weight: weight, Tied: tied, rows: chunkRows(n, row, logitsLimit[on])}
}

// chunkRows splits n rows of so many bytes into the fewest chunks below the limit,
// all of about the same size.
func chunkRows(n, row, limit int) int {
	most := max(1, limit/row)
	chunks := (n + most - 1) / most
	return (n + chunks - 1) / chunks
}

// PlanLogits adds the logits of one chunk to plan. Nothing in them outlives a call.
func (h *Head) PlanLogits(plan *models.Plan) {
	h.logits = plan.Add("head.logits", h.Weight.DType, 1, h.rows*h.Weight.Shape[0])
}

// PlanLosses adds the losses of n rows to plan.
func (h *Head) PlanLosses(plan *models.Plan, n int) {
	h.losses = plan.Add("head.losses", dtype.F32, 1, n)
}

// Loss adds the sum of the losses of x[N,C] to loss[1].
func (h *Head) Loss(p Pass, mem models.Memory, loss, x, targets tensor.Tensor) {
	losses := mem.Tensor(h.losses, 0, x.Shape[0])
	h.chunks(x.Shape[0], func(from, to int) {
		logits := h.compute(p, mem, x.Rows(from, to))
		p.CrossEntropy(p.Stream, losses.Rows(from, to), logits, targets.Rows(from, to), 1, false)
	})
	p.Sum(p.Stream, loss, losses, true)
}

// Backward is Loss, and writes dx[N,C] and hands out Weight's gradient, scale times
// those of the sum of the losses.
func (h *Head) Backward(p Pass, mem models.Memory, loss, dx, x, targets tensor.Tensor, scale float32) {
	n := x.Shape[0]
	losses := mem.Tensor(h.losses, 0, n)
	linear := Linear{Weight: h.Weight}
	h.chunks(n, func(from, to int) {
		logits := h.compute(p, mem, x.Rows(from, to))
		p.CrossEntropy(p.Stream, losses.Rows(from, to), logits, targets.Rows(from, to), scale, true)
		if !h.Weight.Frozen {
			g, add := p.Grads.Get(h.Weight)
			p.LinearBackwardW(p.Stream, g, logits, x.Rows(from, to), add)
			switch rows, ok := p.Grads.(param.RowSink); {
			case to < n:
			case !h.Tied:
				p.Grads.Ready(h.Weight)
			case ok:
				rows.OfferRows(h.Weight, n) // else they are written as usual
			}
		}
		linear.BackwardX(p, dx.Rows(from, to), logits, false)
	})
	p.Sum(p.Stream, loss, losses, true)
}

// Logits writes y[N,V] from x[N,C].
func (h *Head) Logits(p Pass, y, x tensor.Tensor) { Linear{Weight: h.Weight}.Forward(p, y, x) }

// Row is room for the logits of one row, [1,V].
func (h *Head) Row(mem models.Memory) tensor.Tensor {
	return mem.Tensor(h.logits, 0, 1, h.Weight.Shape[0])
}

func (h *Head) compute(p Pass, mem models.Memory, x tensor.Tensor) tensor.Tensor {
	logits := mem.Tensor(h.logits, 0, x.Shape[0], h.Weight.Shape[0])
	h.Logits(p, logits, x)
	return logits
}

func (h *Head) chunks(n int, f func(from, to int)) {
	for from := 0; from < n; from += h.rows {
		f(from, min(from+h.rows, n))
	}
}
