package train

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

// Whoever no longer wants the text does not wait until the model is loaded.
func TestLoadingAGeneratorEndsWithItsContext(t *testing.T) {
	out := t.TempDir()
	mustTrain(t, 1, "output="+out, "checkpoint.export=true")
	o := GeneratorOptions{Model: filepath.Join(out, "export"), Device: "cpu", Threads: 1}
	g, err := OpenGenerator(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if _, err := OpenGenerator(ctx, o); !errors.Is(err, stopped) {
		t.Errorf("loading went on: %v", err)
	}
}
