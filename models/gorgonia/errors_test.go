package gorgonia_test

import (
	"errors"
	"strings"
	"testing"

	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/models/gorgonia"
)

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

func TestWhatCannotBeTapped(t *testing.T) {
	var taps gorgonia.Taps
	g := G.NewGraph()
	_, err := taps.Grad(G.NewScalar(g, gt.Float32))
	wantError(t, err, "no parameter is tapped")

	scalar := G.NewScalar(g, gt.Float32, G.WithName("s"), G.WithValue(float32(1)))
	_, err = taps.On(scalar)
	wantError(t, err, "parameter s", "vector of one element")

	_, err = taps.On(G.NewScalar(g, gt.Float32, G.WithName("d"), G.WithValue(gt.New(gt.FromScalar(float32(1))))))
	wantError(t, err, "parameter d", "vector of one element")

	_, err = taps.On(G.NewMatrix(g, gt.Float32, G.WithShape(2, 2), G.WithName("empty")))
	wantError(t, err, "parameter empty", "its value")

	_, err = taps.On(G.NewVector(g, gt.Int, G.WithShape(2), G.WithName("i"), G.WithValue(gt.New(gt.WithBacking([]int{1, 2})))))
	wantError(t, err, "parameter i", "float32 and float64")

	w := square(g, "w", 2, 1)
	tapped := G.Must(taps.On(w))
	if again := G.Must(taps.On(w)); again != tapped {
		t.Error("a second tap of one parameter is another node")
	}
	_, err = taps.On(tapped)
	wantError(t, err, "not an input")
	_, err = taps.On(square(g, "w", 3, 1))
	wantError(t, err, "two parameters are called w")

	turned := gt.New(gt.WithShape(2, 3), gt.WithBacking(fill[float32](6, 1, 1)))
	if err := turned.T(); err != nil {
		t.Fatal(err)
	}
	_, err = taps.On(G.NewMatrix(g, gt.Float32, G.WithShape(3, 2), G.WithName("turned"), G.WithValue(turned)))
	wantError(t, err, "parameter turned", "view")

	cost := G.Must(G.Sum(G.Must(G.Mul(tapped, w))))
	_, err = taps.Grad(cost)
	wantError(t, err, "w is used", "what On returns")

	wantError(t, taps.Run(t.Context(), nil, nil), "call Grad")
}

func TestGradComesLast(t *testing.T) {
	var taps gorgonia.Taps
	g := G.NewGraph()
	if _, err := taps.Grad(G.Must(G.Sum(G.Must(taps.On(square(g, "w", 2, 1)))))); err != nil {
		t.Fatal(err)
	}
	_, err := taps.On(square(g, "late", 2, 2))
	wantError(t, err, "late", "before Grad")
}

// A LispMachine would say nothing and reduce nothing from its second run on.
func TestALispMachineIsRefused(t *testing.T) {
	var taps gorgonia.Taps
	g := G.NewGraph()
	G.Must(G.Sum(G.Must(taps.On(square(g, "w", 2, 1)))))
	vm := G.NewLispMachine(g)
	defer vm.Close()
	wantError(t, vm.RunAll(), "LispMachine", "TapeMachine")
}

// What ddp.Wrap knows is where the parameters lay.
func TestAValueThatMovesIsFound(t *testing.T) {
	for _, err := range outcomes(t, 2, func(r *replica) error {
		n := newNet[float64](4, &r.taps)
		if err := r.join(ddp.Options{}); err != nil {
			return err
		}
		vm := G.NewTapeMachine(n.graph)
		defer vm.Close()
		moved := gt.New(gt.WithShape(widths[0], widths[1]), gt.WithBacking(make([]float64, widths[0]*widths[1])))
		return errors.Join(n.feed(0, 0, 4), G.Let(n.params[0], moved), r.taps.Run(r.ctx, vm, r.model))
	}) {
		wantError(t, err, "w0 has got a value in other memory")
	}
}

// A graph that fails on one rank ends the job of the others, which would wait.
func TestAFailureReachesTheOtherRanks(t *testing.T) {
	errs := outcomes(t, 3, func(r *replica) error {
		n := newNet[float32](4, &r.taps)
		if err := r.join(ddp.Options{Op: comm.Avg}); err != nil {
			return err
		}
		vm := G.NewTapeMachine(n.graph)
		defer vm.Close()
		if r.Rank() != 1 { // rank 1 lacks its samples
			if err := n.feed(0, 0, 4); err != nil {
				return err
			}
		}
		return r.taps.Run(r.ctx, vm, r.model)
	})
	for _, err := range errs {
		wantError(t, err, "rank 1", "no gradient")
	}
	wantError(t, errs[1], "gorgonia: ")
}
