package train

import (
	"sync"
	"testing"
)

// At the start a rank asks for what it keeps of the weights: all of them where replicas
// are whole, and under ZeRO its masters, so that each is asked for once.
func TestARankAsksForWhatItKeepsOfTheWeights(t *testing.T) {
	const ranks = 3
	for _, lora := range []bool{false, true} {
		for _, strategy := range []string{"ddp", "zero1", "zero2", "zero3"} {
			var mu sync.Mutex
			asked, frozen := map[string][]int{}, map[string]bool{} // how often an element of each
			note := func(j *job) {
				for _, p := range j.model.Params() {
					err := j.keeper.Set(t.Context(), p, func(x elements) ([]float32, error) {
						mu.Lock()
						defer mu.Unlock()
						if asked[p.Name] == nil {
							asked[p.Name], frozen[p.Name] = make([]int, p.Numel()), p.Frozen
						}
						for i := x.from; i < x.to; i++ {
							asked[p.Name][i]++
						}
						return make([]float32, x.numel()), nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			}
			sets := []string{"output=" + t.TempDir(), "parallel.strategy=" + strategy, "train.max_steps=2"}
			if lora {
				sets = append(sets, "lora.r=2")
			}
			_, errs := trainChanged(t, ranks, func(*job) {}, note, append(sets, small...)...)
			for _, err := range errs {
				if err != nil {
					t.Fatal(err)
				}
			}
			if len(asked) == 0 {
				t.Errorf("%s: nothing is asked for", strategy)
			}
			for name, counts := range asked {
				want := 1
				if strategy == "ddp" || frozen[name] && strategy != "zero3" {
					want = ranks
				}
				for i, n := range counts {
					if n != want {
						t.Errorf("%s, %s: element %d is asked for by %d ranks, want %d", strategy, name, i, n, want)
						break
					}
				}
			}
		}
	}
}
