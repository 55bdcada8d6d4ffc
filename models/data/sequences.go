package data

import "fmt"

// A row is a corpus as one long row of tokens.
type row interface {
	tokens() int64
	// read copies tokens from position at on; all of dst must be inside.
	read(dst []int32, at int64) error
}

// packed cuts a row into windows of T tokens: sequence i reads tokens i*T to
// (i+1)*T-1, and its targets are one further. Documents follow each other with
// a separator between them; attention is not kept from crossing it. At the end,
// what fills no window is left over.
type packed struct {
	row    row
	seqLen int
	info   Info
}

func newPacked(r row, seqLen int, info Info, what string) (Dataset, error) {
	// The last token is a target only.
	n := (r.tokens() - 1) / int64(seqLen)
	if n < 1 {
		return nil, fmt.Errorf("%s holds %d tokens in %d file(s), and one sequence of data.seq_len = %d takes %d; lower data.seq_len or name more data",
			what, r.tokens(), info.Files, seqLen, seqLen+1)
	}
	info.Sequences = int(n)
	info.UnusedTokens = r.tokens() - 1 - n*int64(seqLen)
	return &packed{r, seqLen, info}, nil
}

func (p *packed) Len() int    { return p.info.Sequences }
func (p *packed) SeqLen() int { return p.seqLen }
func (p *packed) Info() Info  { return p.info }

func (p *packed) Read(i int, tokens, targets []int32) (int, error) {
	at := int64(i) * int64(p.seqLen)
	if err := p.row.read(targets, at+1); err != nil {
		return 0, err
	}
	copy(tokens[1:], targets)
	return p.seqLen, p.row.read(tokens[:1], at)
}

// documents has one document a sequence: its first T tokens and their targets,
// the separator included. Shorter ones are filled up with separators whose
// targets do not count.
type documents struct {
	text   *text
	seqLen int
	info   Info
}

func newDocuments(t *text, seqLen int, info Info) Dataset {
	info.Sequences = len(t.starts) - 1
	for i := range info.Sequences {
		if beyond := t.starts[i+1] - t.starts[i] - 1 - int64(seqLen); beyond > 0 {
			info.CutDocuments++
			info.UnusedTokens += beyond
		}
	}
	return &documents{t, seqLen, info}
}

func (d *documents) Len() int    { return d.info.Sequences }
func (d *documents) SeqLen() int { return d.seqLen }
func (d *documents) Info() Info  { return d.info }

func (d *documents) Read(i int, tokens, targets []int32) (int, error) {
	doc := d.text.bytes[d.text.starts[i]:d.text.starts[i+1]]
	n := min(len(doc)-1, d.seqLen)
	for j := range n {
		tokens[j], targets[j] = int32(doc[j]), int32(doc[j+1])
	}
	for j := n; j < d.seqLen; j++ {
		tokens[j], targets[j] = Separator, Ignore
	}
	return n, nil
}
