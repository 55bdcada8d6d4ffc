// Package loss is cross entropy over the vocabulary.
//
// Letters: N rows, V vocabulary.
package loss

import (
	"fmt"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// dims checks loss[N] f32, logits[N,V] and targets[N] i32.
func dims(op string, loss, logits, targets tensor.Tensor) (n, v int) {
	shape := check.Rank(op, "logits", logits, 2)
	n, v = shape[0], shape[1]
	if v == 0 {
		check.Fail(op, "logits is %v: an empty vocabulary", logits)
	}
	check.Is(op, "loss", loss, dtype.F32, n)
	check.Is(op, "targets", targets, dtype.I32, n)
	return n, v
}

// outside is the error for a target that the vocabulary does not hold.
func outside(row int, target int32, v int) error {
	return fmt.Errorf("target %d of row %d is outside the vocabulary of %d", target, row, v)
}
