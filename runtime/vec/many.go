package vec

import "github.com/gorun-dev/gorun/runtime/dtype"

// mostFused bounds the sources of one pass, and its destinations. Arrays often lie
// alike within their pages, and then their lines fall into one set of the first-level
// cache, which has 8 ways or 12: 16 sources in one pass took 1.4 times as long as in 15.
const mostFused = 8

// fuses says that sumMany has a kernel. A pass for each source would wait for the lines
// of one source at a time; in one for all of them many more misses are under way.
func fuses(dt dtype.DType, op Op) bool { return op == Sum && active.many[dt] != nil }

// sumMany stores the sum of up to mostFused sources, two at least, in up to as many
// destinations, which may be sources. It adds in the order of sources.
func (s *scratch) sumMany(dt dtype.DType, dsts, srcs [][]byte) {
	n, lo := len(srcs[0]), 0
	for n-lo >= vectorBytes {
		part := min(n-lo, callBytes/4) &^ (vectorBytes - 1) // of up to 16 arrays
		for i, d := range dsts {
			s.dsts[i] = &d[lo]
		}
		for i, src := range srcs {
			s.srcs[i] = &src[lo]
		}
		active.many[dt](&s.dsts[0], &s.srcs[0], len(dsts), len(srcs), part)
		lo += part
	}
	clear(s.dsts[:]) // the pool of scratches keeps nobody's arrays
	clear(s.srcs[:])
	if lo == n {
		return
	}
	rest := s.next[:n-lo]
	each(dt, Sum, rest, srcs, lo)
	for _, d := range dsts {
		copy(d[lo:], rest)
	}
}

// fold stores in acc the combination of those bytes of all sources that begin at lo.
func (s *scratch) fold(dt dtype.DType, op Op, acc []byte, srcs [][]byte, lo int) {
	if !fuses(dt, op) {
		each(dt, op, acc, srcs, lo)
		return
	}
	s.to[0] = acc
	parts := s.parts[:0]
	for i, src := range srcs {
		parts = append(parts, src[lo:lo+len(acc)])
		if len(parts) == mostFused || i == len(srcs)-1 {
			s.sumMany(dt, s.to[:], parts)
			parts = append(parts[:0], acc)
		}
	}
	clear(s.parts[:])
}

// each is fold with a pass for each source but the first.
func each(dt dtype.DType, op Op, acc []byte, srcs [][]byte, lo int) {
	hi := lo + len(acc)
	binary(dt, op, acc, srcs[0][lo:hi], srcs[1][lo:hi])
	for _, src := range srcs[2:] {
		binary(dt, op, acc, acc, src[lo:hi])
	}
}
