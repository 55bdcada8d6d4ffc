package trace

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

func TestATraceIsWhatPerfettoReads(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	a, b := NewRecorder(0), NewRecorder(1)
	a.Span("compute", "before", at(0), at(1)) // off: not recorded
	a.Enable(true)
	b.Enable(true)
	b.Span("comm", "AllReduce", at(4), at(6))
	a.Span("compute", "Linear", at(2), at(5))
	a.Enable(false)
	a.Span("compute", "after", at(7), at(8))
	spans, dropped := a.Spans()
	more, _ := b.Spans()
	if len(spans) != 1 || dropped != 0 {
		t.Fatalf("rank 0 recorded %v, dropped %d", spans, dropped)
	}
	var out bytes.Buffer
	if err := Write(&out, append(more, spans...)); err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []struct {
			Name, Ph string
			Pid, Tid int
			Ts, Dur  float64
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string][4]float64{"Linear": {0, 1, 0, 3000}, "AllReduce": {1, 2, 2000, 2000}}
	for _, e := range got.TraceEvents {
		if e.Ph == "M" {
			continue
		}
		w, ok := want[e.Name]
		if !ok || w != [4]float64{float64(e.Pid), float64(e.Tid), e.Ts, e.Dur} {
			t.Errorf("event %+v, want %v", e, w)
		}
		delete(want, e.Name)
	}
	if len(want) != 0 {
		t.Errorf("missing %v", want)
	}
}
