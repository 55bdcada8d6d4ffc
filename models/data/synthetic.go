package data

import "github.com/gorun-dev/gorun/models"

// synthetic makes sequences from a seed, with something to learn: each token
// but the first is, nine times of ten, the one before it plus a fixed stride
// (modulo the vocabulary), and else any token.
type synthetic struct {
	rand                  models.Rand
	seqLen, vocab, stride int
	info                  Info
}

// follow is how often a token follows the rule.
const follow = 0.9

// newSynthetic makes the dataset called part, of n sequences. Parts have the
// stride in common and nothing else.
func newSynthetic(o Options, part string, n int) Dataset {
	s := &synthetic{
		rand:   models.NewRand(o.Seed, "data.synthetic."+part),
		seqLen: o.SeqLen, vocab: o.Vocab, stride: 1,
	}
	if o.Vocab > 2 {
		s.stride += int(models.NewRand(o.Seed, "data.synthetic.stride").Uint64(0) % uint64(o.Vocab-1))
	}
	s.info = Info{
		Tokens: int64(n) * int64(o.SeqLen+1), Sequences: n,
		Fingerprint: s.rand.Uint64(uint64(o.Vocab)),
	}
	return s
}

func (s *synthetic) Len() int    { return s.info.Sequences }
func (s *synthetic) SeqLen() int { return s.seqLen }
func (s *synthetic) Info() Info  { return s.info }

func (s *synthetic) Read(i int, tokens, targets []int32) (int, error) {
	// Two random numbers a token: which token, and whether it follows the rule.
	at := uint64(i) * 2 * uint64(s.seqLen+1)
	last := 0
	for j := range s.seqLen + 1 {
		any := int(s.rand.Uint64(at) % uint64(s.vocab))
		if j > 0 && s.rand.Float64(at+1) < follow {
			any = (last + s.stride) % s.vocab
		}
		at += 2
		if j > 0 {
			tokens[j-1], targets[j-1] = int32(last), int32(any)
		}
		last = any
	}
	return s.seqLen, nil
}
