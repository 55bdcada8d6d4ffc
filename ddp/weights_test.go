package ddp

import (
	"errors"
	"reflect"
	"testing"

	"github.com/gorun-dev/gorun/runtime/param"
)

// Weights that differ are found and named, with the rank that left the
// majority; root's weights make all alike again.
func TestWeightsAreComparedAndBroadcast(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		weights, err := param.NewReplica(w.compute.Device(), w.params)
		if !w.ok("NewReplica", err) || !w.start(Options{}) {
			return
		}
		set := func(i, e int, v float32) {
			f := weights.Weight(w.params[i]).F32()
			w.compute.Do("set", func() error { f[e] = v; return nil })
		}
		check := func() error { return w.ddp.CheckReplicas(w.ctx, w.params, weights.Weight) }
		if !w.ok("CheckReplicas", check()) {
			return
		}
		if w.rank == 1 {
			set(3, 7, 1e-20)
		}
		set(5, 0, float32(w.rank))
		set(6, 1, 4)
		var drift *DriftError
		if err := check(); !errors.As(err, &drift) {
			w.t.Errorf("rank %d: got %v, want a DriftError", w.rank, err)
			return
		}
		want := []Drift{{"b.w", []int{1}}, {"frozen", []int{0, 1, 2}}}
		if !reflect.DeepEqual(drift.Weights, want) {
			w.t.Errorf("rank %d: drift %v, want %v", w.rank, drift.Weights, want)
		}
		w.wants(drift, "b.w on rank 1", "frozen on ranks 0, 1, 2")

		if !w.ok("BroadcastWeights", w.ddp.BroadcastWeights(w.ctx, w.params, weights.Weight, 2)) || !w.ok("CheckReplicas", check()) {
			return
		}
		if got := weights.Weight(w.params[5]).F32()[0]; got != 2 {
			w.t.Errorf("rank %d: weight is %v after the broadcast, root has 2", w.rank, got)
		}
	})
}

func TestTwoRanksThatDifferAreBothNamed(t *testing.T) {
	if got := outliers(map[string][]int{"x": {0}, "y": {1}}); !reflect.DeepEqual(got, []int{0, 1}) {
		t.Errorf("outliers are %v", got)
	}
}
