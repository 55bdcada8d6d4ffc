package hf

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// A configuration whose type is changed keeps its numbers as they were written, fractions
// and long ones too.
func TestWrittenConfigKeepsItsNumbers(t *testing.T) {
	config := llamaConfig()
	config["rms_norm_eps"] = json.RawMessage("1.00e-05")
	config["something"] = json.RawMessage("[8.0, 12345678901234567890]")
	source, dir := folder(t, config, dtype.F32, nil), filepath.Join(t.TempDir(), "out")
	if err := (Output{Dir: dir, Source: source, DType: dtype.BF16}).Write(valuesOf(loaded(t, source))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1.00e-05", "8.0", "12345678901234567890"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("config.json lacks %s:\n%s", want, text)
		}
	}
}
