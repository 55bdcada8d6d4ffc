package train

import (
	"context"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/trace"
)

// gpuTrace records when the operations of a GPU's streams ran: events before and
// after each, whose times are read when the trace is written. On the CPU a stream
// tells the recorder itself.
type gpuTrace struct {
	operations
	recorder *trace.Recorder
	base     device.Event // at the host's time start
	start    time.Time
	spans    []gpuSpan
}

type gpuSpan struct {
	stream, work string
	from, to     device.Event
}

func traceOps(ops operations, r *trace.Recorder) *gpuTrace {
	return &gpuTrace{operations: ops, recorder: r}
}

// begin ties the clock of s to the host's. It waits for s.
func (t *gpuTrace) begin(ctx context.Context, s device.Stream) error {
	t.base = s.Record()
	if err := t.base.Sync(ctx); err != nil {
		return err
	}
	t.start = time.Now()
	return nil
}

// span records what is enqueued on s until the returned function is called.
func (t *gpuTrace) span(s device.Stream, work string) (end func()) {
	if !t.recorder.Enabled() || t.base == nil {
		return func() {}
	}
	from := s.Record()
	on := s.(interface{ Name() string }).Name()
	return func() { t.spans = append(t.spans, gpuSpan{on, work, from, s.Record()}) }
}

// buckets records the reductions of a step's last micro-step, whose times count
// from begin.
func (t *gpuTrace) buckets(begin device.Event, list []ddp.BucketStats) error {
	if t.base == nil {
		return nil
	}
	offset, err := begin.Since(t.base)
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	at := t.start.Add(offset)
	for i, b := range list {
		t.recorder.Span("comm", fmt.Sprintf("reduce bucket %d", i), at.Add(b.Start), at.Add(b.Done))
	}
	return nil
}

// flush hands the spans to the recorder, which must be on.
func (t *gpuTrace) flush() error {
	for _, s := range t.spans {
		from, err := s.from.Since(t.base)
		if err != nil {
			return fmt.Errorf("trace: %s: %w", s.work, err)
		}
		to, err := s.to.Since(t.base)
		if err != nil {
			return fmt.Errorf("trace: %s: %w", s.work, err)
		}
		t.recorder.Span(s.stream, s.work, t.start.Add(from), t.start.Add(to))
	}
	t.spans = nil
	return nil
}

func (t *gpuTrace) Linear(s device.Stream, y, x, w, b, r tensor.Tensor) {
	defer t.span(s, "linear")()
	t.operations.Linear(s, y, x, w, b, r)
}

func (t *gpuTrace) LinearBackwardX(s device.Stream, dx, dy, w tensor.Tensor, add bool) {
	defer t.span(s, "linear backward x")()
	t.operations.LinearBackwardX(s, dx, dy, w, add)
}

func (t *gpuTrace) LinearBackwardW(s device.Stream, dw, dy, x tensor.Tensor, add bool) {
	defer t.span(s, "linear backward w")()
	t.operations.LinearBackwardW(s, dw, dy, x, add)
}

func (t *gpuTrace) BiasBackward(s device.Stream, db, dy tensor.Tensor, add bool) {
	defer t.span(s, "bias backward")()
	t.operations.BiasBackward(s, db, dy, add)
}

func (t *gpuTrace) RMSNorm(s device.Stream, y, rstd, x, w tensor.Tensor, eps float32) {
	defer t.span(s, "rmsnorm")()
	t.operations.RMSNorm(s, y, rstd, x, w, eps)
}

func (t *gpuTrace) RMSNormBackward(s device.Stream, dx, dw, dy, x, w, rstd tensor.Tensor, addX, addW bool) {
	defer t.span(s, "rmsnorm backward")()
	t.operations.RMSNormBackward(s, dx, dw, dy, x, w, rstd, addX, addW)
}

func (t *gpuTrace) LayerNorm(s device.Stream, y, mean, rstd, x, w, b tensor.Tensor, eps float32) {
	defer t.span(s, "layernorm")()
	t.operations.LayerNorm(s, y, mean, rstd, x, w, b, eps)
}

func (t *gpuTrace) LayerNormBackward(s device.Stream, dx, dw, db, dy, x, w, mean, rstd tensor.Tensor, addX, addW bool) {
	defer t.span(s, "layernorm backward")()
	t.operations.LayerNormBackward(s, dx, dw, db, dy, x, w, mean, rstd, addX, addW)
}

func (t *gpuTrace) QKNorm(s device.Stream, y, x, wq, wk tensor.Tensor, heads int, eps float32) {
	defer t.span(s, "qk norm")()
	t.operations.QKNorm(s, y, x, wq, wk, heads, eps)
}

func (t *gpuTrace) QKNormBackward(s device.Stream, dx, dwq, dwk, x, wq, wk tensor.Tensor, heads int, eps float32, addQ, addK bool) {
	defer t.span(s, "qk norm backward")()
	t.operations.QKNormBackward(s, dx, dwq, dwk, x, wq, wk, heads, eps, addQ, addK)
}

func (t *gpuTrace) RoPE(s device.Stream, x, cos, sin tensor.Tensor, heads, pos int, inverse bool) {
	defer t.span(s, "rope")()
	t.operations.RoPE(s, x, cos, sin, heads, pos, inverse)
}

func (t *gpuTrace) Attention(s device.Stream, o, lse, qkv, docs tensor.Tensor) {
	defer t.span(s, "attention")()
	t.operations.Attention(s, o, lse, qkv, docs)
}

func (t *gpuTrace) AttentionBackward(s device.Stream, dqkv, do, o, lse, qkv, docs tensor.Tensor) {
	defer t.span(s, "attention backward")()
	t.operations.AttentionBackward(s, dqkv, do, o, lse, qkv, docs)
}

func (t *gpuTrace) AttentionNext(s device.Stream, o, keys, values, qkv tensor.Tensor, pos int) {
	defer t.span(s, "attention next")()
	t.operations.AttentionNext(s, o, keys, values, qkv, pos)
}

func (t *gpuTrace) SwiGLU(s device.Stream, y, x tensor.Tensor) {
	defer t.span(s, "swiglu")()
	t.operations.SwiGLU(s, y, x)
}

func (t *gpuTrace) SwiGLUBackward(s device.Stream, dx, dy, x tensor.Tensor) {
	defer t.span(s, "swiglu backward")()
	t.operations.SwiGLUBackward(s, dx, dy, x)
}

func (t *gpuTrace) GELU(s device.Stream, y, x tensor.Tensor) {
	defer t.span(s, "gelu")()
	t.operations.GELU(s, y, x)
}

func (t *gpuTrace) GELUBackward(s device.Stream, dx, dy, x tensor.Tensor) {
	defer t.span(s, "gelu backward")()
	t.operations.GELUBackward(s, dx, dy, x)
}

func (t *gpuTrace) Embed(s device.Stream, y, table, ids tensor.Tensor) {
	defer t.span(s, "embed")()
	t.operations.Embed(s, y, table, ids)
}

func (t *gpuTrace) EmbedBackward(s device.Stream, dtable, dy, ids tensor.Tensor, add bool) {
	defer t.span(s, "embed backward")()
	t.operations.EmbedBackward(s, dtable, dy, ids, add)
}

func (t *gpuTrace) Positions(s device.Stream, y, table tensor.Tensor, pos int) {
	defer t.span(s, "positions")()
	t.operations.Positions(s, y, table, pos)
}

func (t *gpuTrace) PositionsBackward(s device.Stream, dtable, dy tensor.Tensor, add bool) {
	defer t.span(s, "positions backward")()
	t.operations.PositionsBackward(s, dtable, dy, add)
}

func (t *gpuTrace) CrossEntropy(s device.Stream, loss, logits, targets tensor.Tensor, scale float32, grad bool) {
	defer t.span(s, "cross entropy")()
	t.operations.CrossEntropy(s, loss, logits, targets, scale, grad)
}

func (t *gpuTrace) Sum(s device.Stream, out, x tensor.Tensor, add bool) {
	defer t.span(s, "sum")()
	t.operations.Sum(s, out, x, add)
}

func (t *gpuTrace) Copy(s device.Stream, y, x tensor.Tensor) {
	defer t.span(s, "copy")()
	t.operations.Copy(s, y, x)
}

func (t *gpuTrace) Zero(s device.Stream, y tensor.Tensor) {
	defer t.span(s, "zero")()
	t.operations.Zero(s, y)
}

func (t *gpuTrace) Dropout(s device.Stream, y, x tensor.Tensor, rate float64, key, row uint64, add bool) {
	defer t.span(s, "dropout")()
	t.operations.Dropout(s, y, x, rate, key, row, add)
}

func (t *gpuTrace) Spread(s device.Stream, matrix, factors tensor.Tensor, blocks [][2]int, scale float32) {
	defer t.span(s, "spread")()
	t.operations.Spread(s, matrix, factors, blocks, scale)
}

func (t *gpuTrace) Collect(s device.Stream, factors, matrix tensor.Tensor, blocks [][2]int, scale float32, add bool) {
	defer t.span(s, "collect")()
	t.operations.Collect(s, factors, matrix, blocks, scale, add)
}

func (t *gpuTrace) SumSquares(s device.Stream, out, x tensor.Tensor, add bool) {
	defer t.span(s, "sum of squares")()
	t.operations.SumSquares(s, out, x, add)
}

func (t *gpuTrace) Clip(s device.Stream, coef, norm2, loss tensor.Tensor, limit float64) {
	defer t.span(s, "clip")()
	t.operations.Clip(s, coef, norm2, loss, limit)
}

func (t *gpuTrace) AdamW(s device.Stream, slots []adamw.Slot, h adamw.Hyper) {
	defer t.span(s, "adamw")()
	t.operations.AdamW(s, slots, h)
}
