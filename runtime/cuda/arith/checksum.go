package arith

import "encoding/binary"

// Checksum is 64 bits of all bytes of b and their order. Any changed word of 8
// bytes changes it for certain, two words that have changed places or more
// changes than one all but once in 2^64; it is no protection against intent.
//
// It is len(b) plus the sum of a term for each word of 8 bytes, the last one
// filled up with zeros. As integers wrap around, the words may be summed in any
// order: (*Arith).Checksum gives the same number.
func Checksum(b []byte) uint64 {
	sum, i := uint64(len(b)), uint64(0)
	for ; len(b) >= 8; b = b[8:] {
		sum += term(binary.LittleEndian.Uint64(b), i)
		i++
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		sum += term(binary.LittleEndian.Uint64(last[:]), i)
	}
	return sum
}

// term mixes word i, a different bijection for every i: splitmix64's, of the word
// and a multiple of its odd constant.
func term(word, i uint64) uint64 {
	x := word ^ (i+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
