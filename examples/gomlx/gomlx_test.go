package main

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
)

// result is what one rank came to.
type result struct {
	losses  []float32
	weights [][]float32
}

// ranks trains on n ranks of this process.
func ranks(t *testing.T, n, steps int) []result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	groups, err := comm.Local(n)
	if err != nil {
		t.Fatal(err)
	}
	results := make([]result, n)
	var wg sync.WaitGroup
	for r, g := range groups {
		wg.Go(func() {
			var err error
			if results[r].losses, results[r].weights, err = train(ctx, g, steps, 48); err != nil {
				t.Errorf("rank %d: %v", r, err)
				g.Abort(err)
			}
			if err := g.Close(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return results
}

// Ranks that begin with different random variables are one model after rank 0's, bit by
// bit, and learn what one process learns from the whole batch.
func TestRanksAreOneProcess(t *testing.T) {
	const steps = 25
	seed = 7
	t.Cleanup(func() { seed = 0 })
	alone := ranks(t, 1, steps)[0]
	for _, n := range []int{2, 3} {
		all := ranks(t, n, steps)
		for r, one := range all {
			for i, w := range one.weights {
				if !slices.Equal(w, all[0].weights[i]) {
					t.Errorf("%d ranks: variable %d of rank %d differs from rank 0's", n, i, r)
				}
			}
		}
		for i, w := range all[0].weights {
			if worst := furthest(w, alone.weights[i]); !(worst < 2e-6) {
				t.Errorf("%d ranks: variable %d is %g away from one process's", n, i, worst)
			}
		}
		for step := range steps {
			mean := 0.0
			for _, one := range all {
				mean += float64(one.losses[step]) / float64(n)
			}
			if want := float64(alone.losses[step]); !(math.Abs(mean-want) < 1e-5*want) {
				t.Errorf("%d ranks, step %d: loss %g, one process's is %g", n, step, mean, want)
			}
		}
	}
	if first, last := alone.losses[0], alone.losses[steps-1]; !(last < first/2) {
		t.Errorf("the loss went from %g to %g", first, last)
	}
}

// furthest is the largest difference of two elements, of elements near 1 in size.
func furthest(a, b []float32) (worst float64) {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	for i := range a {
		if d := math.Abs(float64(a[i]) - float64(b[i])); !(d <= worst) {
			worst = d
		}
	}
	return worst
}
