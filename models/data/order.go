package data

import (
	"math/bits"

	"github.com/gorun-dev/gorun/models"
)

// An Order is an endless row of the sequences 0 … n-1: one shuffle of them after
// the other, an epoch each. The k-th is a pure function of the seed, n and k, so
// that any rank finds its part of any step without a table, and training goes on
// from the number of sequences that it has seen.
type Order struct {
	n    uint64
	half uint // bits of half a Feistel block
	seed uint64
}

// rounds of the Feistel network. Three make a pseudorandom permutation of a
// random round function; more cost little and make up for small blocks.
const rounds = 6

// NewOrder orders n sequences, at least 1.
func NewOrder(seed uint64, n int) Order {
	return Order{n: uint64(n), seed: seed, half: uint(bits.Len64(uint64(n-1))+1) / 2}
}

// At is the k-th sequence; k counts on through the epochs.
func (o Order) At(k int64) int {
	epoch, i := uint64(k)/o.n, uint64(k)%o.n
	if o.n == 1 {
		return 0
	}
	key := models.NewRand(o.seed+epoch*0x9e3779b97f4a7c15, "data.order")
	// The network permutes a power of four that is at least n and below 4n. A
	// number outside of n is sent through again, which ends, for a permutation
	// leads back to where it started, and keeps it a permutation of n numbers.
	for {
		if i = o.permute(key, i); i < o.n {
			return int(i)
		}
	}
}

func (o Order) permute(key models.Rand, x uint64) uint64 {
	mask := uint64(1)<<o.half - 1
	left, right := x>>o.half, x&mask
	for r := range uint64(rounds) {
		left, right = right, left^(key.Uint64(r<<32|right)&mask)
	}
	return left<<o.half | right
}
