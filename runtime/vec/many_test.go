package vec

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Every number of sources, in one pass and in several, odd lengths, all alignments.
func TestSumsOfMany(t *testing.T) {
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(5, 6))
		for _, dt := range dtype.All {
			for _, op := range []Op{Sum, Avg} {
				for count := 2; count <= 2*mostFused+1; count++ {
					for _, n := range []int{0, 1, 15, 64, 191, 335} {
						manyMatch(t, path, dt, op, count, n, rng)
					}
				}
			}
			// longer than a block, and than a call of the kernel
			for _, count := range []int{mostFused, mostFused + 1} {
				manyMatch(t, path, dt, Sum, count, (callBytes/4+blockBytes)/dt.Size()+13, rng)
			}
		}
	})
}

// manyMatch compares with the reference: into one destination, into more than there
// are sources, and in place, where destinations have another order than sources.
func manyMatch(t *testing.T, path string, dt dtype.DType, op Op, count, n int, rng *rand.Rand) {
	t.Helper()
	what := fmt.Sprintf("%s %v op %d, %d sources of %d elements", path, dt, op, count, n)
	var srcs, kept, dsts [][]byte
	for i := range count {
		s := at(dt, n, i*7%64)
		fill(dt, s, rng)
		srcs, kept = append(srcs, s), append(kept, bytes.Clone(s))
		dsts = append(dsts, at(dt, n, i*5%64))
	}
	ReduceMany(dt, op, dsts[:1], srcs)
	compare(t, what, dt, op, dsts[0], kept)
	first := bytes.Clone(dsts[0])
	same := func(how string, outs [][]byte) {
		t.Helper()
		for i, d := range outs {
			if !bytes.Equal(d, first) {
				t.Fatalf("%s %s: destination %d has other bits", what, how, i)
			}
		}
	}
	all := append(dsts, at(dt, n, 3))
	ReduceMany(dt, op, all, srcs)
	same("into more destinations", all)
	for i, s := range srcs {
		if !bytes.Equal(s, kept[i]) {
			t.Fatalf("%s: source %d changed", what, i)
		}
	}
	turned := append(append([][]byte(nil), srcs[1:]...), srcs[0])
	ReduceMany(dt, op, turned, srcs)
	same("in place", srcs)
}

// One pass has the bits of a pass for each source, those of NaNs too.
func TestOnePassKeepsBits(t *testing.T) {
	was := active
	defer func() { active = was }()
	rng := rand.New(rand.NewPCG(7, 8))
	for _, p := range paths {
		apart := *p
		apart.many = [types]func(_, _ **byte, _, _, _ int){}
		for _, dt := range dtype.All {
			for count := 2; count <= mostFused+1; count++ {
				var srcs [][]byte
				for i := range count {
					s := at(dt, 1003, i)
					for k := range s {
						s[k] = byte(rng.Uint32()) // NaNs of all kinds among them
					}
					srcs = append(srcs, s)
				}
				one, each := at(dt, 1003, 1), at(dt, 1003, 2)
				active = p
				ReduceMany(dt, Sum, [][]byte{one}, srcs)
				active = &apart
				ReduceMany(dt, Sum, [][]byte{each}, srcs)
				if !bytes.Equal(one, each) {
					t.Errorf("%s %v: the sum of %d sources has other bits in one pass", p.name, dt, count)
				}
			}
		}
	}
}
