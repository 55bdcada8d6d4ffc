package arith

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// The figures are those of the definition, written down once more in Python.
func TestChecksumGivesKnownFigures(t *testing.T) {
	all := make([]byte, 1024)
	for i := range all {
		all[i] = byte(i)
	}
	for _, c := range []struct {
		b    []byte
		want uint64
	}{
		{nil, 0},
		{[]byte("abc"), 0x409643760a471526},
		{[]byte("abcdefgh"), 0xc2018f56afc8c8db},
		{[]byte("abcdefghijk"), 0x74ac6a0230aec15},
		{all, 0x1f5df1297a114ba4},
		{make([]byte, 1000), 0x7a91b0cf75b8e58b},
	} {
		if got := Checksum(c.b); got != c.want {
			t.Errorf("checksum of %d bytes is %#x, want %#x", len(c.b), got, c.want)
		}
	}
}

// Each bit, the places of elements, and zeros at the end count.
func TestChecksumSeesEveryChange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 203)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	seen := map[uint64]string{Checksum(b): "the original"}
	see := func(what string) {
		if before, known := seen[Checksum(b)]; known {
			t.Errorf("%s has the checksum of %s", what, before)
		}
		seen[Checksum(b)] = what
	}
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		see(fmt.Sprintf("bit %d flipped", bit))
		b[bit/8] ^= 1 << (bit % 8)
	}
	const size = 4 // elements of f32
	for i := range len(b) / size {
		for j := range i {
			x, y := [size]byte(b[size*i:]), [size]byte(b[size*j:])
			copy(b[size*i:], y[:])
			copy(b[size*j:], x[:])
			see(fmt.Sprintf("elements %d and %d swapped", i, j))
			copy(b[size*i:], x[:])
			copy(b[size*j:], y[:])
		}
	}
	for n := range 20 {
		b = append(b, 0)
		see(fmt.Sprintf("%d zeros more", n+1))
	}
}

func BenchmarkChecksum(b *testing.B) {
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		Checksum(buf)
	}
}
