package train

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// A master that has left the other ranks' is found while the weights are still alike.
func TestMastersThatDriftAreFound(t *testing.T) {
	stop := errors.New("enough")
	var compared sync.WaitGroup // an Abort would end the comparisons of others
	compared.Add(3)
	_, errs := trainChanged(t, 3, func(j *job) {
		p := j.model.Params()[1]
		master, err := tensor.Alloc(j.device, dtype.F32, p.Shape...)
		if err != nil {
			t.Error(err)
			compared.Done()
			return
		}
		slots := j.keeper.(*replicated).slots
		s := slots[p]
		s.Master = master
		slots[p] = s
		if err := j.keeper.Compare(t.Context()); err != nil {
			t.Errorf("rank %d: equal masters: %v", j.rank(), err)
		}
		if j.rank() == 2 {
			master.F32()[3] = 1e-20
		}
		err = j.keeper.Compare(t.Context())
		var drift *ddp.DriftError
		if !errors.As(err, &drift) || len(drift.Weights) != 1 || drift.Weights[0].Name != p.Name || !strings.Contains(err.Error(), "masters") {
			t.Errorf("rank %d: %v", j.rank(), err)
		}
		compared.Done()
		compared.Wait()
		j.group.Abort(stop)
	}, nil, "train.micro_batch=4", "output="+t.TempDir())
	for r, err := range errs {
		if !errors.Is(err, stop) && !strings.Contains(err.Error(), stop.Error()) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
