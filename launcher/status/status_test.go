package status

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

type closer struct{ bytes.Buffer }

func (*closer) Close() error { return nil }

// What a Writer sends, Decode reads, numbers that JSON does not know included.
func TestRoundTrip(t *testing.T) {
	var pipe closer
	w := NewWriter(&pipe)
	val := Float(2.5)
	p := Progress{Step: 3, Total: 9, Loss: Float(math.Inf(1)), ValLoss: &val, LR: 1e-4, GradNorm: Float(math.Inf(-1)), TokensPerS: 12, ETA: 7}
	for _, err := range []error{w.Progress(p), w.Message("at %d", 5), w.Sample(Sample{Step: 1, Text: "a\nb"}), w.Summary("x", "y")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []Event{{Progress: &p}, {Message: &Message{"at 5"}}, {Sample: &Sample{Step: 1, Text: "a\nb"}}, {Summary: &Summary{[]string{"x", "y"}}}}
	lines := strings.Split(strings.TrimSuffix(pipe.String(), "\n"), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), pipe.String())
	}
	for i, line := range lines {
		got, err := Decode([]byte(line))
		if err != nil || !reflect.DeepEqual(got, want[i]) {
			t.Errorf("line %q: %+v, %v", line, got, err)
		}
	}
	var nan Float
	b, err := json.Marshal(Float(math.NaN()))
	if err != nil || json.Unmarshal(b, &nan) != nil || !math.IsNaN(float64(nan)) {
		t.Errorf("NaN went out as %s and came back as %v (%v)", b, nan, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, line := range []string{``, `{}`, `{"step":1}`, `{"message":{"text":"a"},"summary":{}}`, `null`, "\x00\xff"} {
		if e, err := Decode([]byte(line)); err == nil {
			t.Errorf("%q was read as %+v", line, e)
		}
	}
}

// Of many steps a log shows the first, the last, evaluations, and one each interval.
func TestPlainThrottle(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0).Add(time.Hour)
	p := NewPlain(&out)
	p.now = func() time.Time { return now }
	for step := 1; step <= 100; step++ {
		g := Progress{Step: step, Total: 100}
		if step == 55 {
			v := Float(1)
			g.ValLoss = &v
		}
		if err := p.Show(Event{Progress: &g}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(PlainInterval / 10)
	}
	var shown []string
	for line := range strings.Lines(out.String()) {
		shown = append(shown, strings.TrimSpace(line[:12]))
	}
	// 55 starts the interval anew.
	want := []string{"step   1/100", "step  11/100", "step  21/100", "step  31/100", "step  41/100", "step  51/100",
		"step  55/100", "step  65/100", "step  75/100", "step  85/100", "step  95/100", "step 100/100"}
	if !reflect.DeepEqual(shown, want) {
		t.Errorf("shown: %q", shown)
	}
}

func TestFromEnv(t *testing.T) {
	for _, v := range []string{"", "x", "-1", "987654"} {
		t.Setenv(FDVariable, v)
		if _, err := FromEnv(); err == nil {
			t.Errorf("%s=%q is no error", FDVariable, v)
		}
	}
	if err := os.Unsetenv(FDVariable); err != nil { // t.Setenv restores it
		t.Fatal(err)
	}
	if w, err := FromEnv(); err != nil || w.plain == nil {
		t.Errorf("without an agent: %+v, %v", w, err)
	}
}
