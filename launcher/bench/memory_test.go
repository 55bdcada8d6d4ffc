package bench

import (
	"strings"
	"testing"
)

// Arrays that no host can hold are an error that says so, of every kind of memory.
func TestArraysThatDoNotFit(t *testing.T) {
	for _, buffers := range []string{Arena, Private} {
		for _, bytes := range []int64{1 << 52, 1<<63 - 1} {
			_, errs := runRanks(t, 2, func(int) Options {
				o := small("allreduce")
				o.Buffers, o.Begin, o.End, o.Overlap = buffers, bytes, bytes, 8
				return o
			})
			for rank, err := range errs {
				if err == nil || !strings.Contains(err.Error(), " --overlap 8: 2 ranks on ") || !strings.Contains(err.Error(), "measure smaller ones") {
					t.Errorf("%s, %d bytes, rank %d: %v", buffers, bytes, rank, err)
				}
			}
		}
	}
}
