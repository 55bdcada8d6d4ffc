package gemm

import "errors"

// own is the project's matrix product: blocks that fit the caches, b packed into
// panels as wide as a tile, tiles in assembly (see kernels/internal/asm). An
// element of c is the sum over blocks of k of one chain of fused multiply-adds
// each, whatever the size of the output and wherever the element lies, so bits
// do not depend on how callers split rows and columns: with one exception,
// products of at most FewRows rows with a transposed b, which are dot products.
type own struct {
	kernel
	free chan *scratch
}

// kernel is the assembly for one instruction set.
type kernel struct {
	name       string
	rows, cols int // of a tile
	tile       func(k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, cRow int, add bool)
	lanes      int // dots takes multiples of it
	dots       func(n int, x, w *float32, wRow int, out *[4]float32)
	transpose8 func(n int, dst *float32, dstRow int, src *float32, srcRow int)
}

// FewRows is the largest number of rows of a product with a transposed b that is
// computed as dot products. Who splits rows must not make parts this small.
const FewRows = 4

const (
	blockK = 256 // a panel of b, blockK x 32, is 32 KiB: it stays in the L1 cache
	blockN = 512 // a packed block of b, blockK x blockN, is 512 KiB: it stays in L2
	blockM = 96  // rows of a that meet a panel in turn; a multiple of every tile's rows
	// With this many rows or fewer, a b that is not transposed is read where it lies.
	directRows = 96
	// A transposed a is read where it lies for this many columns or fewer.
	directCols = 64
	size       = 4 // bytes of an element
)

// scratch is the working memory of one call.
type scratch struct {
	b   []float32 // packed panels [cols of the block / cols][k][cols]
	a   []float32 // packed panels [rows of the block / rows][k][rows]
	out []float32 // one tile, where c has less room than one
}

// openOwn returns the own backend for the best instruction set of this CPU.
func openOwn() (Backend, error) {
	if list := kernels(); len(list) > 0 {
		return newOwn(list[0]), nil
	}
	return nil, errors.New("gemm: the own backend needs an amd64 CPU with AVX2 and FMA")
}

func newOwn(k kernel) *own { return &own{k, make(chan *scratch, 64)} }

func (o *own) Name() string { return "own " + o.name }

func (o *own) take() *scratch {
	select {
	case s := <-o.free:
		return s
	default:
		return &scratch{
			b:   make([]float32, blockK*(blockN+o.cols)),
			a:   make([]float32, blockK*(blockM+o.rows)),
			out: make([]float32, o.rows*o.cols),
		}
	}
}

func (o *own) give(s *scratch) {
	select {
	case o.free <- s:
	default: // more callers than ever wait: the collector takes it
	}
}

func (o *own) Gemm(ta, tb bool, m, n, k int, a []float32, lda int, b []float32, ldb int, add bool, c []float32, ldc int) {
	if trivial(m, n, k, add, c, ldc) {
		return
	}
	checkBounds(ta, tb, m, n, k, a, lda, b, ldb, c, ldc)
	if m <= FewRows && tb && !ta {
		o.few(m, n, k, a, lda, b, ldb, add, c, ldc)
		return
	}
	s := o.take()
	defer o.give(s)
	direct := !tb && m <= directRows
	for j := 0; j < n; j += blockN {
		nl := min(blockN, n-j)
		for l := 0; l < k; l += blockK {
			kl := min(blockK, k-l)
			first := l == 0 && !add
			packed := panels{s.b, kl * o.cols, o.cols, o.transpose8}
			if tb {
				packed.transposed(b[j*ldb+l:], ldb, nl, kl)
			} else if !direct {
				packed.straight(b[l*ldb+j:], ldb, nl, kl)
			} else if edge := nl % o.cols; edge != 0 {
				packed.from(nl/o.cols).straight(b[l*ldb+j+nl-edge:], ldb, edge, kl)
			}
			for i := 0; i < m; i += blockM {
				o.block(s, block{
					m: min(blockM, m-i), n: nl, k: kl,
					ta: ta, a: a, lda: lda, i: i, l: l,
					direct: direct, b: b, ldb: ldb, j: j,
					c: c[i*ldc+j:], ldc: ldc, add: !first,
				})
			}
		}
	}
}

// block is one product of blocks: rows from i, columns from j, k from l.
type block struct {
	m, n, k int
	ta      bool
	a       []float32
	lda, i  int
	l       int
	direct  bool // full panels of b are read in place, not from the scratch
	b       []float32
	ldb, j  int
	c       []float32 // its first element is [i, j]
	ldc     int
	add     bool
}

func (o *own) block(s *scratch, p block) {
	at := func(i int) []float32 { // a's rows from i of the block
		if p.ta {
			return p.a[p.l*p.lda+p.i+i:]
		}
		return p.a[(p.i+i)*p.lda+p.l:]
	}
	packed, full := panels{s.a, p.k * o.rows, o.rows, o.transpose8}, p.m/o.rows*o.rows
	inPlace := full // rows of a read where they lie: whole tiles, unless the way is too wide
	if p.ta && p.n > directCols {
		inPlace = 0
	}
	if p.ta {
		packed.from(inPlace/o.rows).straight(at(inPlace), p.lda, p.m-inPlace, p.k)
	} else if inPlace < p.m {
		packed.from(inPlace/o.rows).transposed(at(inPlace), p.lda, p.m-inPlace, p.k)
	}
	rowStep, colStep := p.lda*size, size
	if p.ta {
		rowStep, colStep = colStep, rowStep
	}
	for j := 0; j < p.n; j += o.cols {
		b, bRow := &s.b[j*p.k], o.cols*size
		if p.direct && j+o.cols <= p.n {
			b, bRow = &p.b[p.l*p.ldb+p.j+j], p.ldb*size
		}
		for i := 0; i < p.m; i += o.rows {
			var a *float32
			aRow, aCol := size, o.rows*size
			if i < inPlace {
				a, aRow, aCol = &at(i)[0], rowStep, colStep
			} else {
				a = &s.a[i*p.k]
			}
			if i+o.rows <= p.m && j+o.cols <= p.n {
				o.tile(p.k, a, aRow, aCol, b, bRow, &p.c[i*p.ldc+j], p.ldc*size, p.add)
				continue
			}
			o.tile(p.k, a, aRow, aCol, b, bRow, &s.out[0], o.cols*size, false)
			o.edge(s.out, p.c[i*p.ldc+j:], p.ldc, min(o.rows, p.m-i), min(o.cols, p.n-j), p.add)
		}
	}
}

// edge moves the part of a tile that c has room for.
func (o *own) edge(tile, c []float32, ldc, rows, cols int, add bool) {
	for i := range rows {
		src, dst := tile[i*o.cols:i*o.cols+cols], c[i*ldc:i*ldc+cols]
		if !add {
			copy(dst, src)
			continue
		}
		for j, v := range src {
			dst[j] += v
		}
	}
}

// few is c[m,n] = a·bᵀ for a handful of rows: b is read once, in order.
func (o *own) few(m, n, k int, a []float32, lda int, b []float32, ldb int, add bool, c []float32, ldc int) {
	body := k / o.lanes * o.lanes
	var out [4]float32
	for j, cols := 0, 4; j < n; j += cols {
		stride := ldb
		if n-j < 4 { // one row of b, four times over
			cols, stride = 1, 0
		}
		for i := range m {
			if body > 0 {
				o.dots(body, &a[i*lda], &b[j*ldb], stride*size, &out)
			} else {
				out = [4]float32{}
			}
			for q := range cols {
				sum := out[q]
				for l := body; l < k; l++ {
					sum += a[i*lda+l] * b[(j+q)*ldb+l]
				}
				if add {
					sum += c[i*ldc+j+q]
				}
				c[i*ldc+j+q] = sum
			}
		}
	}
}
