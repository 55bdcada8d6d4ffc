package models

import (
	"hash/fnv"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// Rand is a counter-based source of random numbers: element i is a pure
// function of the key and i, whoever asks and in whichever order. It is
// SplitMix64 with random access.
type Rand struct{ key uint64 }

// NewRand derives a source from a seed and the name of what it is for.
func NewRand(seed uint64, name string) Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return Rand{mix(seed + golden*mix(h.Sum64()))}
}

const golden = 0x9e3779b97f4a7c15

// mix is SplitMix64's finalizer (Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators", 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Uint64 is element i.
func (r Rand) Uint64(i uint64) uint64 { return mix(r.key + golden*(i+1)) }

// Float64 is element i as a number in [0, 1).
func (r Rand) Float64(i uint64) float64 { return float64(r.Uint64(i)>>11) / (1 << 53) }

// Normal fills out with normal numbers of mean 0 and the given deviation.
// Elements 2j and 2j+1 are one Box-Muller pair of the source's elements 2j and
// 2j+1, so that any part of a tensor can be made alone.
//
// A large tensor is made on all cores.
func (r Rand) Normal(out []float32, std float64) {
	const piece = 1 << 16 // even, so that no pair is cut
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(runtime.NumCPU(), len(out)/piece) {
		workers.Go(func() { // ends with the pieces
			for {
				from := int(next.Add(piece)) - piece
				if from >= len(out) {
					return
				}
				r.normal(out, from, min(from+piece, len(out)), std)
			}
		})
	}
	if len(out) < piece {
		r.normal(out, 0, len(out), std)
	}
	workers.Wait()
}

// normal fills elements [from, to); from is even.
func (r Rand) normal(out []float32, from, to int, std float64) {
	for j := from; j < to; j += 2 {
		radius := std * math.Sqrt(-2*math.Log(1-r.Float64(uint64(j))))
		sin, cos := math.Sincos(2 * math.Pi * r.Float64(uint64(j+1)))
		out[j] = float32(radius * cos)
		if j+1 < to {
			out[j+1] = float32(radius * sin)
		}
	}
}
