package modeltest

import (
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Memory checks that what is planned is what a model allocates, for texts of at
// most positions tokens, and that its cache takes perToken bytes a token.
func Memory(t *testing.T, positions, perToken int, describe func(b, tt int, on device.Kind, again models.Recompute) (*models.Plan, error), build Build) {
	plan := func(b, tt int) (*models.Plan, error) { return describe(b, tt, device.CPU, models.KeepAll) }
	p, err := plan(2, 8)
	if err != nil {
		t.Fatal(err)
	}
	r := New(t, 2, 8, build)
	if p.Bytes() != r.Model.Bytes() {
		t.Errorf("planned %d bytes, the model says %d", p.Bytes(), r.Model.Bytes())
	}
	sum := int64(0)
	for _, r := range p.Regions() {
		sum += int64(r.Bytes())
	}
	if sum <= p.Bytes() {
		t.Errorf("no region is shared: %d bytes in regions, %d in all", sum, p.Bytes())
	}
	if _, err := plan(1, positions); err != nil {
		t.Error(err)
	}
	if _, err := plan(1, positions+1); err == nil {
		t.Error("a sequence of more tokens than the model has positions was planned")
	}

	r.Reset(positions)
	if got, want := r.Model.Bytes()-p.Bytes(), int64(positions*perToken); got != want {
		t.Errorf("the cache takes %d bytes, want %d", got, want)
	}
	g := r.Model.(models.Generator)
	if err := g.Next(r.Weights, make([]int32, positions+1), r.logits()); err == nil {
		t.Errorf("%d tokens fit where there was room for %d", positions+1, positions)
	}
	if err := g.Reset(positions + 1); err == nil {
		t.Error("a text longer than the model's positions was accepted")
	}
}
