package train

import (
	"path/filepath"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// An error of a folder's model speaks of its architecture, not of the family whose
// code runs it.
func TestErrorsNameTheArchitecture(t *testing.T) {
	folder := filepath.Dir(testenv.Data(t, "tiny-qwen2-synthetic/config.json"))
	cfg := parse(t, "model.path="+folder, "model.arch=qwen2", "model.vocab=0", "model.kv_heads=0", "data.seq_len=128")
	_, err := describe(cfg, 1, planDevice)
	if want := "data.seq_len: model: qwen2: sequences of 128 tokens, the model has 64 positions"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
