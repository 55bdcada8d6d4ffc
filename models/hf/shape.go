package hf

import "math"

// Shape is what config.json says of the model, by the names of train.yaml: arch,
// layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_seq_len, tie_embeddings,
// qkv_bias, rope_theta, norm_eps.
type Shape map[string]any

// ReadShape reads a folder's config.json alone. The error says what of it is not
// supported.
func ReadShape(dir string) (Shape, error) {
	f := &Folder{Dir: dir}
	if err := f.configure(); err != nil {
		return nil, err
	}
	s := f.family.shape()
	s["arch"] = f.Arch
	return s, nil
}

// headDim is the size of a head that is given, or follows from the others. These may be
// wrong: whoever describes the model says so.
func headDim(given, hidden, heads int) int {
	if given != 0 || heads == 0 {
		return given
	}
	return hidden / heads
}

// Same compares a value that a user gave with the folder's, which it returns. Zero
// is none given, but for false; a shorter max_seq_len is well, for models take
// shorter sequences.
func (s Shape) Same(key string, given any) (folder any, same bool) {
	folder = s[key]
	switch given := given.(type) {
	case int:
		return folder, given == 0 || given == folder || key == "max_seq_len" && given < folder.(int)
	case float64:
		var value float64
		switch f := folder.(type) { // as the model computes with it
		case float64:
			value = f
		case float32:
			value = float64(f)
		}
		return folder, given == 0 || math.Abs(given-value) <= 1e-6*given
	}
	return folder, given == folder
}
