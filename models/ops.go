// Package models holds what the model families share: the operations that a
// model calls, the batch it reads and the interface it offers to a training loop.
//
// Letters in shapes: B sequences, T positions, N = B*T rows, C hidden size, H
// query heads, K key and value heads, D head size, F feed-forward size, V
// vocabulary.
package models

import (
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// The operations, an interface a family. What holds for all of them:
//
//   - Work is enqueued on s and the call returns at once. Tensors must stay
//     alive and unchanged until s has passed it.
//   - Outputs are overwritten, except where a parameter add (or addX, addW, ...)
//     says to add to what is there.
//   - Inputs and outputs do not overlap unless a comment allows it.
//   - A shape or type that does not fit is a fault of the model: the call panics.
//   - Results are bit-identical from run to run on the same hardware: the order
//     of sums does not depend on timing.
//   - An argument that may be the zero Tensor is called optional.
//   - Gradients of parameters (dw, db, dtable) are of the parameters' type or
//     f32, in which micro-steps add up. Statistics are f32.

// Linear is the affine map and its two gradients. Weights are stored [O, I].
type Linear interface {
	// Linear writes y[N,O] = x[N,I] · w[O,I]ᵀ + b[O] + r[N,O]; b and r are
	// optional. r may be y.
	Linear(s device.Stream, y, x, w, b, r tensor.Tensor)
	// LinearBackwardX writes dx[N,I] (+)= dy[N,O] · w[O,I].
	LinearBackwardX(s device.Stream, dx, dy, w tensor.Tensor, add bool)
	// LinearBackwardW writes dw[O,I] (+)= dy[N,O]ᵀ · x[N,I].
	LinearBackwardW(s device.Stream, dw, dy, x tensor.Tensor, add bool)
	// BiasBackward writes db[O] (+)= the column sums of dy[N,O].
	BiasBackward(s device.Stream, db, dy tensor.Tensor, add bool)
}

// Norm is the normalisations over the last dimension. rstd[N] and mean[N] are f32
// and kept for the backward pass.
type Norm interface {
	// RMSNorm writes y = x * rstd * w, rstd = 1/sqrt(mean(x²) + eps). x, y [N,C], w [C].
	RMSNorm(s device.Stream, y, rstd, x, w tensor.Tensor, eps float32)
	// RMSNormBackward writes dx (+)= and dw (+)=. dw is optional. dx may be dy.
	RMSNormBackward(s device.Stream, dx, dw, dy, x, w, rstd tensor.Tensor, addX, addW bool)
	// LayerNorm writes y = (x-mean) * rstd * w + b, rstd = 1/sqrt(var(x) + eps), var over C, biased.
	LayerNorm(s device.Stream, y, mean, rstd, x, w, b tensor.Tensor, eps float32)
	// LayerNormBackward writes dx, dw and db. dw and db are optional, both or none. dx may be dy.
	LayerNormBackward(s device.Stream, dx, dw, db, dy, x, w, mean, rstd tensor.Tensor, addX, addW bool)
	// QKNorm writes y = x, both [N,H+2K,D] with H = heads, with each head of queries and of
	// keys RMS-normalised by itself: x * rstd * w over D, w is wq[D] for queries, wk[D] for keys.
	QKNorm(s device.Stream, y, x, wq, wk tensor.Tensor, heads int, eps float32)
	// QKNormBackward turns dx from the gradient of y into that of x, in place, and writes
	// dwq (+)= and dwk (+)=. dwq and dwk are optional.
	QKNormBackward(s device.Stream, dx, dwq, dwk, x, wq, wk tensor.Tensor, heads int, eps float32, addQ, addK bool)
}

// Attention is causal grouped-query attention and rotary positions. A row of
// qkv[B,T,H+2K,D] is the heads of queries, of keys and of values side by side, H a
// multiple of K: query head h reads key head h/(H/K).
type Attention interface {
	// RoPE rotates the first heads of x[B,T,E,D] in place by the half-split
	// convention: pair (i, i+D/2) of position t turns by the angle whose cosine and
	// sine are cos[pos+t, i], sin[pos+t, i], both [P, D/2] f32, P >= pos+T. inverse
	// turns back, which is the gradient.
	RoPE(s device.Stream, x, cos, sin tensor.Tensor, heads, pos int, inverse bool)
	// Attention writes o[B,T,H,D] = softmax(q·kᵀ/sqrt(D)) · v. Query t sees keys
	// docs[b,t] to t: docs[B,T] i32 is the first position of each token's document;
	// none: 0. lse[B,H,T] f32 is the logarithm of the sum of exponentials, kept for
	// the backward pass.
	Attention(s device.Stream, o, lse, qkv, docs tensor.Tensor)
	// AttentionBackward overwrites dqkv, shaped as qkv.
	AttentionBackward(s device.Stream, dqkv, do, o, lse, qkv, docs tensor.Tensor)
	// AttentionNext continues a text of pos tokens by those of qkv[1,T,H+2K,D]. It
	// writes their keys and values to rows pos to pos+T of keys and values [P,K,D],
	// and to o[1,T,H,D] the attention of their queries to all rows up to their own.
	AttentionNext(s device.Stream, o, keys, values, qkv tensor.Tensor, pos int)
}

// Activation is the elementwise functions of the feed-forward blocks.
type Activation interface {
	// SwiGLU writes y[N,F] = silu(gate) * up, where x[N,2F] is gate and up side by side.
	SwiGLU(s device.Stream, y, x tensor.Tensor)
	// SwiGLUBackward overwrites dx, which may be x.
	SwiGLUBackward(s device.Stream, dx, dy, x tensor.Tensor)
	// GELU writes y = gelu(x), the tanh approximation (GPT-2's "gelu_new").
	GELU(s device.Stream, y, x tensor.Tensor)
	// GELUBackward overwrites dx, which may be dy.
	GELUBackward(s device.Stream, dx, dy, x tensor.Tensor)
}

// Embedding is the look-up in tables. ids are i32 [N].
type Embedding interface {
	// Embed writes y[N,C] = table[V,C] rows ids.
	Embed(s device.Stream, y, table, ids tensor.Tensor)
	// EmbedBackward adds dy's rows into dtable[V,C]; with add false all of
	// dtable is cleared first. Rows of one id are added in the order of N.
	EmbedBackward(s device.Stream, dtable, dy, ids tensor.Tensor, add bool)
	// Positions adds table[pos+t] of table[P,C] to each y[b,t] of y[B,T,C].
	Positions(s device.Stream, y, table tensor.Tensor, pos int)
	// PositionsBackward adds the sum of dy[B,T,C] over B to the first T rows of
	// dtable[P,C]; with add false all of dtable is cleared first.
	PositionsBackward(s device.Stream, dtable, dy tensor.Tensor, add bool)
}

// Loss is cross entropy over the vocabulary, and the sums that report it.
type Loss interface {
	// CrossEntropy writes loss[N] f32 = -log softmax(logits[N,V])[targets[N]],
	// 0 where the target is negative. With grad, logits is overwritten by
	// scale * d(sum of losses)/d(logits).
	CrossEntropy(s device.Stream, loss, logits, targets tensor.Tensor, scale float32, grad bool)
	// Sum writes out[1] f64 (+)= the sum of x, any shape, f32, accumulated in f64.
	Sum(s device.Stream, out, x tensor.Tensor, add bool)
}

// Elementwise is what is left.
type Elementwise interface {
	// Copy writes y = x, converting between f32, bf16 and f16.
	Copy(s device.Stream, y, x tensor.Tensor)
	// Zero clears y.
	Zero(s device.Stream, y tensor.Tensor)
}

// Dropout is the zeroing of elements at random.
type Dropout interface {
	// Dropout writes or adds to y[N,I]: 0 with probability rate, else x[N,I]/(1-rate).
	// Which it is follows from key, the row's number, row+n, and the channel alone. y
	// may be x, where it does not add.
	Dropout(s device.Stream, y, x tensor.Tensor, rate float64, key, row uint64, add bool)
}

// LowRank is what lets one product do the work of several narrow ones: the factors of
// these, [n,R] each, stand one behind the other in a parameter of M rows, and along
// the diagonal of a matrix of O rows and R columns a factor. Factor g has the
// matrix's rows from blocks[g][0] to blocks[g][1], which ascend; blocks must not
// change until s has passed.
type LowRank interface {
	// Spread writes matrix[O,G*R] = scale * factors[M,R] where they stand, 0 elsewhere.
	Spread(s device.Stream, matrix, factors tensor.Tensor, blocks [][2]int, scale float32)
	// Collect writes factors[M,R] (+)= scale * matrix[O,G*R] f32 where they stand.
	Collect(s device.Stream, factors, matrix tensor.Tensor, blocks [][2]int, scale float32, add bool)
}

// Ops is all that the models here call. Kernels implement it for the CPU and
// for CUDA; the CPU implementation is the truth.
type Ops interface {
	Linear
	Norm
	Attention
	Activation
	Embedding
	Loss
	Elementwise
	Dropout
	LowRank
}
