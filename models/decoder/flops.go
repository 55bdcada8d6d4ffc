package decoder

// FLOPs is the floating-point operations that training takes for a token of a text of
// t tokens, forward and backward, a multiplication and an addition being two: of the
// matrix products, the head's among them, and of causal attention, which looks at half
// of the text on average. Norms, activations and the like are left out, and so is what
// is computed again (train.recompute): it is the work that the model asks for. The
// gradient of a frozen weight is no work.
func (s *Spec) FLOPs(t int) float64 {
	var sum float64
	for _, p := range s.params {
		table := p.Block == 0 && p != s.head // rows are looked up, not multiplied
		if len(p.Shape) != 2 || table {
			continue
		}
		each := 6.0
		if p.Frozen {
			each = 4
		}
		sum += each * float64(p.Numel())
	}
	return sum + 6*float64(s.Layers*s.Heads*s.HeadDim)*float64(t)
}
