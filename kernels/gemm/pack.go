package gemm

import "unsafe"

// panels is packed memory: panel p holds width columns at p*stride, k-major.
// Where the last one has columns left over, they hold whatever was there: tiles
// compute with them, and nobody stores the result.
type panels struct {
	mem           []float32
	stride, width int
	transpose8    func(n int, dst *float32, dstRow int, src *float32, srcRow int)
}

func (p panels) from(panel int) panels {
	p.mem = p.mem[panel*p.stride:]
	return p
}

// straight packs x[k,n], whose rows are ld apart.
func (p panels) straight(x []float32, ld, n, k int) {
	for j := 0; j < n; j += p.width {
		dst, src := p.mem[j/p.width*p.stride:][:k*p.width], x[j:]
		switch cols := min(p.width, n-j); {
		case cols < p.width:
			for l := range k {
				copy(dst[l*p.width:], src[l*ld:l*ld+cols])
			}
		case cols == 32:
			rows[[32]float32](dst, src, ld, k)
		case cols == 16:
			rows[[16]float32](dst, src, ld, k)
		case cols == 8:
			rows[[8]float32](dst, src, ld, k)
		case cols == 6:
			rows[[6]float32](dst, src, ld, k)
		default:
			panic("gemm: no packing for the width of the kernel's tiles")
		}
	}
}

// rows copies k rows, ld apart in x, one behind the other. The size is part of
// the type, so that a row is a few vector moves and not a call.
func rows[Row [6]float32 | [8]float32 | [16]float32 | [32]float32](dst, x []float32, ld, k int) {
	var row Row
	for l := range k {
		*(*Row)(unsafe.Pointer(&dst[:(l+1)*len(row)][l*len(row)])) = *(*Row)(unsafe.Pointer(&x[:l*ld+len(row)][l*ld]))
	}
}

// transposed packs xᵀ, x[n,k], whose rows are ld apart.
func (p panels) transposed(x []float32, ld, n, k int) {
	for j := 0; j < n; j += p.width {
		dst, cols := p.mem[j/p.width*p.stride:][:k*p.width], min(p.width, n-j)
		// Eight rows at a time in assembly, as far as blocks of eight go; the rest by element.
		fast, whole := cols/8*8, k/8*8
		for q := 0; q < fast && whole > 0; q += 8 {
			p.transpose8(whole, &dst[q], p.width*size, &x[(j+q)*ld], ld*size)
		}
		for q := range cols {
			from := 0
			if q < fast {
				from = whole
			}
			at := from*p.width + q
			for _, v := range x[(j+q)*ld+from : (j+q)*ld+k] {
				dst[at] = v
				at += p.width
			}
		}
	}
}
