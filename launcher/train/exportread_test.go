package train

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/param"
)

// A checkpoint's tensor of another shape than the model's, as where the model's folder
// has changed since, is no part of it that an export takes.
func TestExportRefusesTensorsOfAnotherShape(t *testing.T) {
	out := t.TempDir()
	mustTrain(t, 1, "output="+out)
	c, err := checkpoint.Open(filepath.Join(out, "checkpoints", "step-00000006"))
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := c.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	defer tensors.Close()
	const name = "model.norm.weight"
	has, ok := tensors.Find(name)
	if !ok {
		t.Fatalf("no %s among %v", name, tensors.Names())
	}
	for n, fits := range map[int]bool{has.Shape[0]: true, has.Shape[0] - 1: false, has.Shape[0] + 1: false} {
		p := &param.Param{Name: name, Shape: []int{n}}
		err := exporting{c: c, t: tensors}.whole(p, make([]float32, n))
		if fits && err != nil || !fits && (err == nil || !strings.Contains(err.Error(), "the model has")) {
			t.Errorf("%d elements of %v: %v", n, has.Shape, err)
		}
	}
}

// Who waits for an export sees that it goes on.
func TestExportTellsOfItsBytes(t *testing.T) {
	out := t.TempDir()
	mustTrain(t, 1, "output="+out)
	moved := 0
	e := Export{From: out, Output: filepath.Join(t.TempDir(), "model"), moved: func(n int) { moved += n }}
	if _, err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, values := range folderWeights(t, e.Output) {
		want += 4 * len(values)
	}
	if moved != want {
		t.Errorf("%d bytes, of weights of %d", moved, want)
	}
}
