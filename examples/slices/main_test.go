package main

import (
	"math"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/comm"
)

// The network is trained, and the loss is the same at any number of ranks: the sums of
// float64 come in another order, and nothing else differs.
func TestTheLossDoesNotDependOnTheRanks(t *testing.T) {
	var alone float64
	for n := 1; n <= 5; n++ {
		groups, err := comm.Local(n)
		if err != nil {
			t.Fatal(err)
		}
		losses := make([]float64, n)
		var ranks sync.WaitGroup
		for r, g := range groups {
			ranks.Go(func() {
				defer g.Close()
				var err error
				if losses[r], err = train(t.Context(), g, 1000); err != nil {
					t.Errorf("%d ranks: rank %d: %v", n, r, err)
				}
			})
		}
		ranks.Wait()
		if n == 1 {
			alone = losses[0]
		}
		for r, loss := range losses {
			if !(math.Abs(loss-alone) <= 1e-10) {
				t.Errorf("%d ranks: rank %d ends at loss %v, one rank at %v", n, r, loss, alone)
			}
		}
	}
	if !(alone < 0.02) {
		t.Errorf("the loss is %v after 1000 steps, want less than 0.02", alone)
	}
}
