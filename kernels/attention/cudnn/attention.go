package cudnn

// shape is the sizes that one plan is for.
type shape struct {
	B, H, K, T, D int64 // sequences, heads of queries and of keys, positions, head size
	// E and R are the lengths of a row of qkv and of o in elements. They are more
	// than (H+2K)·D and H·D where a plan handles some of the heads of a row.
	E, R int64
}

// whole is the shape of a call that is not sliced.
func whole(B, T, H, K, D int) shape {
	s := shape{B: int64(B), H: int64(H), K: int64(K), T: int64(T), D: int64(D)}
	s.E, s.R = (s.H+2*s.K)*s.D, s.H*s.D
	return s
}

// The shapes and strides that the graphs are made of. Keys enter both graphs
// transposed, values the backward one: their last two dimensions and strides change
// places, the memory is the same. Grouped heads need no more than that K divides H:
// a matmul repeats its factor with fewer heads.
func (s shape) scores() [4]int64  { return [4]int64{s.B, s.H, s.T, s.T} }
func (s shape) perRow() [4]int64  { return [4]int64{s.B, s.H, s.T, 1} }
func (s shape) queries() [4]int64 { return [4]int64{s.B, s.H, s.T, s.D} }
func (s shape) keys() [4]int64    { return [4]int64{s.B, s.K, s.T, s.D} }
func (s shape) keysT() [4]int64   { return [4]int64{s.B, s.K, s.D, s.T} }
func (s shape) packed() [4]int64  { return [4]int64{s.T * s.E, s.D, s.E, 1} }
func (s shape) packedT() [4]int64 { return [4]int64{s.T * s.E, s.D, 1, s.E} }
func (s shape) output() [4]int64  { return [4]int64{s.T * s.R, s.D, s.R, 1} }

// scoresT is the strides of scores that are read by columns.
func (s shape) scoresT() [4]int64 { return [4]int64{s.H * s.T * s.T, s.T * s.T, 1, s.T} }

// forward is o = softmax(scale·q·kᵀ, causal)·v and stats, the natural logarithm of
// the sum of the exponentials of each row.
func forward(s shape) *graph {
	scores, rows, one := s.scores(), s.perRow(), [4]int64{1, 1, 1, 1}
	return &graph{
		name: "attention forward",
		tensors: []tensorDesc{
			{"q", bf16, s.queries(), s.packed(), real},
			{"k", bf16, s.keysT(), s.packedT(), real},
			{"v", bf16, s.keys(), s.packed(), real},
			{"o", bf16, s.queries(), s.output(), real},
			{"stats", f32, rows, dense(rows), real},
			{"scale", f32, one, dense(one), scalar},
			{"ninf", f32, one, dense(one), scalar},
			{"S", f32, scores, dense(scores), virtual},
			{"S_scaled", f32, scores, dense(scores), virtual},
			{"row", i32, scores, dense(scores), virtual},
			{"col", i32, scores, dense(scores), virtual},
			{"keep", boolean, scores, dense(scores), virtual},
			{"S_masked", f32, scores, dense(scores), virtual},
			{"rowmax", f32, rows, dense(rows), virtual},
			{"S_sub", f32, scores, dense(scores), virtual},
			{"P_raw", f32, scores, dense(scores), virtual},
			{"rowsum", f32, rows, dense(rows), virtual},
			{"logsum", f32, rows, dense(rows), virtual},
			{"P", bf16, scores, dense(scores), virtual},
		},
		ops: []op{
			// op       x / a       b         t       y / c       computed in
			{matmul, "q", "k", "", "S", f32},
			{mul, "S", "scale", "", "S_scaled", f32},
			{rowIndex, "S_scaled", "", "", "row", f32},
			{colIndex, "S_scaled", "", "", "col", f32},
			{atLeast, "row", "col", "", "keep", boolean},
			{selection, "S_scaled", "ninf", "keep", "S_masked", f32},
			{maximum, "S_masked", "", "", "rowmax", f32},
			{sub, "S_masked", "rowmax", "", "S_sub", f32},
			{exp, "S_sub", "", "", "P_raw", f32},
			{sum, "P_raw", "", "", "rowsum", f32},
			{log, "rowsum", "", "", "logsum", f32},
			{add, "rowmax", "logsum", "", "stats", f32},
			{div, "P_raw", "rowsum", "", "P", f32},
			{matmul, "P", "v", "", "o", f32},
		},
	}
}

// backward is dq, dk and dv from do and what forward left. dS is written to the
// workspace and multiplied by k in a second kernel: a sum in a fixed order. The
// faster-looking alternative, a real tensor between the last matmul and dq, is
// summed with atomics there, and dq would differ from run to run.
//
// stats and delta must be dense: other strides are accepted and give wrong
// gradients.
func backward(s shape) *graph {
	scores, rows, one := s.scores(), s.perRow(), [4]int64{1, 1, 1, 1}
	q := s.queries()
	g := &graph{
		name: "attention backward, deterministic",
		tensors: []tensorDesc{
			{"q", bf16, q, s.packed(), real},
			{"k", bf16, s.keysT(), s.packedT(), real},
			{"v", bf16, s.keysT(), s.packedT(), real},
			{"o", bf16, q, s.output(), real},
			{"stats", f32, rows, dense(rows), real},
			{"do", bf16, q, s.output(), real},
			{"dq", bf16, q, s.packed(), real},
			{"dk", bf16, s.keys(), s.packed(), real},
			{"dv", bf16, s.keys(), s.packed(), real},
			{"scale", f32, one, dense(one), scalar},
			{"ninf", f32, one, dense(one), scalar},
			{"one", f32, one, dense(one), scalar},
			{"do_o", f32, q, dense(q), virtual},
			{"do_o_sum", f32, rows, dense(rows), virtual},
			{"delta", f32, rows, dense(rows), real},
			{"S", f32, scores, dense(scores), virtual},
			{"S_scaled", f32, scores, dense(scores), virtual},
			{"S_sub", f32, scores, dense(scores), virtual},
			{"row", i32, scores, dense(scores), virtual},
			{"col", i32, scores, dense(scores), virtual},
			{"keep", boolean, scores, dense(scores), virtual},
			{"S_masked", f32, scores, dense(scores), virtual},
			{"P", f32, scores, dense(scores), virtual},
			{"P_T", bf16, scores, s.scoresT(), virtual},
			{"dP", f32, scores, dense(scores), virtual},
			{"dP_sub", f32, scores, dense(scores), virtual},
			{"dS_raw", f32, scores, dense(scores), virtual},
			{"dS", f32, scores, dense(scores), virtual},
			{"dS_T", bf16, scores, s.scoresT(), virtual},
			{"k_view", bf16, s.keys(), s.packed(), virtual},
		},
		ops: []op{
			// op       x / a       b         t       y / c       computed in
			{mul, "do", "o", "", "do_o", f32},
			{sum, "do_o", "", "", "do_o_sum", f32},
			{mul, "do_o_sum", "one", "", "delta", f32},
			{matmul, "q", "k", "", "S", f32},
			{mul, "S", "scale", "", "S_scaled", f32},
			{sub, "S_scaled", "stats", "", "S_sub", f32},
			{rowIndex, "S_sub", "", "", "row", f32},
			{colIndex, "S_sub", "", "", "col", f32},
			{atLeast, "row", "col", "", "keep", boolean},
			{selection, "S_sub", "ninf", "keep", "S_masked", f32},
			{exp, "S_masked", "", "", "P", f32},
			{reshape, "P", "", "", "P_T", f32},
			{matmul, "P_T", "do", "", "dv_full", f32},
			{sum, "dv_full", "", "", "dv", f32},
			{matmul, "do", "v", "", "dP", f32},
			{sub, "dP", "delta", "", "dP_sub", f32},
			{mul, "dP_sub", "P", "", "dS_raw", f32},
			{mul, "dS_raw", "scale", "", "dS", f32},
			{reshape, "dS", "", "", "dS_T", f32},
			{matmul, "dS_T", "q", "", "dk_full", f32},
			{sum, "dk_full", "", "", "dk", f32},
			{reshape, "k", "", "", "k_view", f32},
			{matmul, "dS", "k_view", "", "dq", f32},
		},
	}
	if s.H == s.K {
		return g.withoutSums()
	}
	g.tensors = append(g.tensors,
		tensorDesc{"dv_full", bf16, q, dense(q), virtual},
		tensorDesc{"dk_full", bf16, q, dense(q), virtual})
	return g
}

// withoutSums is a backward graph for as many heads of keys as of queries: dk and dv
// are then their matmuls' own outputs, with nothing to add up.
func (g *graph) withoutSums() *graph {
	var ops []op
	for _, o := range g.ops {
		switch {
		case o.x == "dv_full" || o.x == "dk_full":
			continue
		case o.y == "dv_full":
			o.y = "dv"
		case o.y == "dk_full":
			o.y = "dk"
		}
		ops = append(ops, o)
	}
	g.ops = ops
	return g
}
