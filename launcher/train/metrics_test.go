package train

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/status"
)

func TestResumingCutsMetricsBackToItsStep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	m, err := openMetrics(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	for step := 1; step <= 4; step++ {
		if err := m.write(stepRecord{Step: step, Loss: status.Float(math.NaN())}); err != nil {
			t.Fatal(err)
		}
	}
	m.write(evalRecord{Step: 2, ValLoss: 1.5})
	m.write(map[string]any{"event": "end", "step": 4})
	m.f.WriteString(`{"step":5,"lo`)
	m.close()

	if m, err = openMetrics(path, 2); err != nil {
		t.Fatal(err)
	}
	m.write(evalRecord{Step: 3})
	m.close()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var heads []string
	for line := range strings.Lines(string(got)) {
		heads = append(heads, line[:9])
	}
	want := `{"step":1 {"step":2 {"step":2 {"step":3`
	if strings.Join(heads, " ") != want {
		t.Errorf("got %s, want %s", heads, want)
	}
	if !strings.Contains(string(got), `"loss":"NaN"`) {
		t.Errorf("NaN is not written as a word: %s", got)
	}
	os.WriteFile(path, []byte("hello\n"), 0o666)
	if _, err := openMetrics(path, 1); err == nil {
		t.Error("a file of something else was accepted")
	}
}
