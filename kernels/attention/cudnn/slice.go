package cudnn

// alignment is what every tensor of the graphs must have, in bytes; scratch parts
// begin at multiples of scratchAlignment.
const (
	alignment        = 16
	scratchAlignment = 256
)

// slack is more than what plans were seen to take beyond what the shape explains
// (256 bytes).
const slack = 64 << 10

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// forwardWorkspace is what the forward plan may take.
func forwardWorkspace() int64 { return slack }

// backwardWorkspace is what the backward plan may take: dS in bf16, in blocks of 64
// rows and 128 columns, and where heads share keys dk and dv of each head of
// queries in bf16.
func (s shape) backwardWorkspace() int64 {
	n := slack + 2*s.B*s.H*roundUp(s.T, 64)*roundUp(s.T, 128)
	if s.H != s.K {
		n += 2 * 2 * s.B * s.T * s.H * s.D
	}
	return n
}

// delta is the bytes of one f32 for each row of scores.
func (s shape) delta() int64 { return roundUp(4*s.B*s.H*s.T, scratchAlignment) }

// scratch is what a backward pass of this shape takes beside its tensors.
func (s shape) scratch() int64 { return s.delta() + s.backwardWorkspace() }

// part is the largest equal slice of s whose backward pass takes at most limit
// bytes of scratch memory: some of the sequences, or of one sequence some heads of
// keys with their queries. Heads and sequences do not touch one another, so slices
// give the bits of the whole; they cost speed where they leave the GPU idle. It
// reports false where the smallest slice, one head of keys, takes more.
func (s shape) part(limit int64) (part shape, ok bool) {
	part = s
	for part.B = s.B; part.B >= 1; part.B-- {
		if s.B%part.B == 0 && part.scratch() <= limit {
			return part, true
		}
	}
	part.B = 1
	for part.K = s.K - 1; part.K >= 1; part.K-- {
		part.H = s.H / s.K * part.K
		if s.K%part.K == 0 && part.scratch() <= limit {
			return part, true
		}
	}
	part.K, part.H = 1, s.H/s.K
	return part, part.scratch() <= limit
}

// operands is where the tensors of a call lie. Scalars lie in host memory.
type operands struct {
	shape                         // of the whole call
	qkv, o, stats, do, dqkv       uintptr
	delta, scale, ninf, one       uintptr
	sequence, queryHead, keysHead int64 // the first of the slice
}

// address is where a tensor of the graphs begins: the queries, keys and values of a
// row lie side by side.
func (p *operands) address(name string) uintptr {
	const half, word = 2, 4 // bytes of bf16 and f32
	row := p.sequence * p.T
	packed := func(base uintptr, head int64) uintptr { return base + uintptr(half*(row*p.E+head*p.D)) }
	output := func(base uintptr) uintptr { return base + uintptr(half*(row*p.R+p.queryHead*p.D)) }
	switch name {
	case "q":
		return packed(p.qkv, p.queryHead)
	case "k":
		return packed(p.qkv, p.H+p.keysHead)
	case "v":
		return packed(p.qkv, p.H+p.K+p.keysHead)
	case "dq":
		return packed(p.dqkv, p.queryHead)
	case "dk":
		return packed(p.dqkv, p.H+p.keysHead)
	case "dv":
		return packed(p.dqkv, p.H+p.K+p.keysHead)
	case "o":
		return output(p.o)
	case "do":
		return output(p.do)
	case "stats":
		return p.stats + uintptr(word*(p.sequence*p.H+p.queryHead)*p.T)
	case "delta":
		return p.delta // each slice's own, one after the other on the stream
	case "scale":
		return p.scale
	case "ninf":
		return p.ninf
	case "one":
		return p.one
	}
	panic("cudnn: no address of a tensor named " + name)
}
