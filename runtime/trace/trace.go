// Package trace records what ran when on which stream and writes it in Chrome's
// trace format, which chrome://tracing and Perfetto draw.
package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"sync"
	"time"
)

// maxSpans bounds the memory of a Recorder (about 64 bytes a span).
const maxSpans = 1 << 20

// Span is one piece of work on one stream of one rank.
type Span struct {
	Rank   int       `json:"rank"`
	Stream string    `json:"stream"`
	Work   string    `json:"work"`
	Start  time.Time `json:"start"`
	End    time.Time `json:"end"`
}

// Recorder collects the spans of one rank while it is on. It implements
// device.Tracer and may be used by many streams at once.
type Recorder struct {
	rank int

	mu      sync.Mutex
	on      bool
	spans   []Span
	dropped int
}

// NewRecorder returns a recorder that is off.
func NewRecorder(rank int) *Recorder { return &Recorder{rank: rank} }

// Enable switches recording on or off.
func (r *Recorder) Enable(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on = on
}

// Enabled says whether spans are recorded.
func (r *Recorder) Enabled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.on
}

// Span records a piece of work, unless the recorder is off or full.
func (r *Recorder) Span(stream, work string, start, end time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.on:
	case len(r.spans) >= maxSpans:
		r.dropped++
	default:
		r.spans = append(r.spans, Span{r.rank, stream, work, start, end})
	}
}

// Spans returns what was recorded, and how many spans found no room.
func (r *Recorder) Spans() (spans []Span, dropped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...), r.dropped
}

type event struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	TS    float64        `json:"ts,omitempty"`  // µs
	Dur   float64        `json:"dur,omitempty"` // µs
	Args  map[string]any `json:"args,omitempty"`
}

// Write writes spans of any number of ranks as one trace: a process a rank, a
// thread a stream. Times count from the earliest span; ranks on several hosts
// are as well aligned as their clocks are.
func Write(w io.Writer, spans []Span) error {
	sort.SliceStable(spans, func(i, j int) bool { return spans[i].Start.Before(spans[j].Start) })
	type row struct {
		rank   int
		stream string
	}
	rows := map[row]int{}
	events := []event{}
	for _, s := range spans {
		r := row{s.Rank, s.Stream}
		if _, ok := rows[r]; !ok {
			rows[r] = len(rows) + 1
			events = append(events,
				event{Name: "process_name", Phase: "M", PID: s.Rank, Args: map[string]any{"name": fmt.Sprintf("rank %d", s.Rank)}},
				event{Name: "thread_name", Phase: "M", PID: s.Rank, TID: rows[r], Args: map[string]any{"name": s.Stream}})
		}
		events = append(events, event{
			Name: s.Work, Phase: "X", PID: s.Rank, TID: rows[r],
			TS: micros(s.Start.Sub(spans[0].Start)), Dur: micros(s.End.Sub(s.Start)),
		})
	}
	return json.NewEncoder(w).Encode(map[string]any{"displayTimeUnit": "ms", "traceEvents": events})
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
