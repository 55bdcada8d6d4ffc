package layer

import (
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// logitsLimit bounds the logits that exist at once, in bytes.
const logitsLimit = 64 << 20

// Head is the projection to the vocabulary and the loss. It works in chunks of
// rows, for the logits of a large vocabulary would outweigh the whole model.
//
// When a batch fits one chunk, the backward pass takes up the logits that the
// forward pass left. Otherwise it computes each chunk's logits again: one more
// product with the weight, no memory. So Plan's logits must outlive the forward
// pass, and may be overwritten once Backward is enqueued.
type Head struct {
	Weight *param.Param // [V,C]
	Tied   bool         // another layer writes Weight's gradient last and calls Ready

	rows           int // of a chunk
	logits, losses models.Region
}

// NewHead is a head for batches of at most n rows.
func NewHead(weight *param.Param, tied bool, n int) Head {
	return Head{Weight: weight, Tied: tied, rows: chunkRows(n, weight.Shape[0])}
}

// chunkRows splits n rows of v logits into the fewest chunks below the limit,
// all of about the same size.
func chunkRows(n, v int) int {
	most := max(1, logitsLimit/(v*dtype.F32.Size()))
	chunks := (n + most - 1) / most
	return (n + chunks - 1) / chunks
}

// PlanLogits adds the logits of one chunk to plan.
func (h *Head) PlanLogits(plan *models.Plan) {
	h.logits = plan.Add("head.logits", dtype.F32, 1, h.rows*h.Weight.Shape[0])
}

// PlanLosses adds the losses of n rows to plan.
func (h *Head) PlanLosses(plan *models.Plan, n int) {
	h.losses = plan.Add("head.losses", dtype.F32, 1, n)
}

// Forward adds the sum of the losses of x[N,C] to loss[1].
func (h *Head) Forward(p Pass, mem models.Memory, loss, x, targets tensor.Tensor) {
	losses := mem.Tensor(h.losses, 0, x.Shape[0])
	h.chunks(x.Shape[0], func(from, to int) {
		logits := h.compute(p, mem, x.Rows(from, to))
		p.CrossEntropy(p.Stream, losses.Rows(from, to), logits, targets.Rows(from, to), 1, false)
	})
	p.Sum(p.Stream, loss, losses, true)
}

// Backward writes dx[N,C] and hands out Weight's gradient, for the x and targets
// of the last Forward.
func (h *Head) Backward(p Pass, mem models.Memory, dx, x, targets tensor.Tensor, scale float32) {
	n, v := x.Shape[0], h.Weight.Shape[0]
	losses := mem.Tensor(h.losses, 0, n)
	linear := Linear{Weight: h.Weight}
	h.chunks(n, func(from, to int) {
		logits := mem.Tensor(h.logits, 0, to-from, v)
		if n > h.rows {
			logits = h.compute(p, mem, x.Rows(from, to))
		}
		p.CrossEntropy(p.Stream, losses.Rows(from, to), logits, targets.Rows(from, to), scale, true)
		if !h.Weight.Frozen {
			g, add := p.Grads.Get(h.Weight)
			p.LinearBackwardW(p.Stream, g, logits, x.Rows(from, to), add)
			if to == n && !h.Tied {
				p.Grads.Ready(h.Weight)
			}
		}
		linear.BackwardX(p, dx.Rows(from, to), logits, false)
	})
}

// Logits writes y[N,V] from x[N,C].
func (h *Head) Logits(p Pass, y, x tensor.Tensor) { Linear{Weight: h.Weight}.Forward(p, y, x) }

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
