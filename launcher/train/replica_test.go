package train

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Frozen weights have no master, also where the model computes in bf16: their first
// values are rounded to it. Trained ones have masters and moments.
func TestFrozenWeightsHaveNoMasters(t *testing.T) {
	params := []*param.Param{
		{Name: "frozen", Shape: []int{3}, DType: dtype.BF16, Frozen: true},
		{Name: "trained", Shape: []int{3}, DType: dtype.BF16},
	}
	dev, cfg := device.NewCPU(), parse(t)
	w, err := param.NewReplica(dev, params)
	if err != nil {
		t.Fatal(err)
	}
	j := &job{cfg: cfg, arch: &architecture{cfg: cfg}, machine: &machine{device: dev}, model: listed{params: params}}
	r := &replicated{j: j, slots: map[*param.Param]adamw.Slot{}}
	if err := r.alloc(w); err != nil {
		t.Fatal(err)
	}
	third := float32(1) / 3
	for _, p := range params {
		s := r.slots[p]
		for what, x := range map[string]tensor.Tensor{"master": s.Master, "first moment": s.M, "second moment": s.V} {
			if x.None() != p.Frozen {
				t.Errorf("%s has the %s %v", p.Name, what, x)
			}
		}
		if err := r.Set(t.Context(), p, func(elements) ([]float32, error) { return []float32{1, third, -2}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	rounded := dtype.BF16From(third)
	if got := device.View[uint16](w.Weight(params[0]).Buf); !slices.Equal(got, []uint16{dtype.BF16From(1), rounded, dtype.BF16From(-2)}) {
		t.Errorf("the frozen weight is %#x", got)
	}
	if got := r.slots[params[1]].Master.F32(); !slices.Equal(got, []float32{1, third, -2}) {
		t.Errorf("the trained weight's master is %v", got)
	}
}

// listed is a model of which nothing but the parameters is asked.
type listed struct {
	models.Model
	params []*param.Param
}

func (l listed) Params() []*param.Param { return l.params }

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
