package ddp

import (
	"errors"
	"reflect"
	"testing"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Weights that differ are found and named, with the rank that left the
// majority; root's weights make all alike again.
func TestWeightsAreComparedAndBroadcast(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		if !w.start(Options{}) {
			return
		}
		weights := map[*param.Param]tensor.Tensor{}
		for _, p := range w.params {
			weights[p] = w.alloc(p.DType, p.Shape...)
		}
		weight := func(p *param.Param) tensor.Tensor { return weights[p] }
		set := func(i, e int, v float32) {
			f := w.see(weights[w.params[i]]).F32()
			w.compute.Do("set", func() error { f[e] = v; return nil })
		}
		check := func() error { return w.ddp.CheckReplicas(w.ctx, w.params, weight) }
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
		w.wants(drift, "b.w on "+agree.Who(w.group, 1)+"\n", "frozen on "+agree.Who(w.group, 0)+", "+agree.Who(w.group, 1)+", "+agree.Who(w.group, 2)+" (no majority")

		// The broadcast comes behind work that is still waiting.
		gate := make(chan struct{})
		w.compute.Do("hold", func() error { <-gate; return nil })
		set(0, 0, float32(9-w.rank))
		w.comm.Do("let the weights change when the communication stream is there", func() error { close(gate); return nil })
		if !w.ok("BroadcastWeights", w.ddp.BroadcastWeights(w.ctx, w.params, weight, 2)) || !w.ok("CheckReplicas", check()) {
			return
		}
		for i, want := range map[int]float32{0: 7, 5: 2} {
			if got := w.see(weights[w.params[i]]).F32()[0]; got != want {
				w.t.Errorf("rank %d: %s is %v after the broadcast, root has %v", w.rank, w.params[i].Name, got, want)
			}
		}
	})
}

func TestTwoRanksThatDifferAreBothNamed(t *testing.T) {
	if got := outliers(map[string][]int{"x": {0}, "y": {1}}); !reflect.DeepEqual(got, []int{0, 1}) {
		t.Errorf("outliers are %v", got)
	}
}
