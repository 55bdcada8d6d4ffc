package train

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gorun-dev/gorun/launcher/status"
)

// stepRecord is a training line of metrics.jsonl. Times are milliseconds and
// the maximum over ranks; comm_bytes is what rank 0 sent in the step.
type stepRecord struct {
	Step       int          `json:"step"`
	Loss       status.Float `json:"loss"` // nats per target token of the global batch
	LR         status.Float `json:"lr"`
	GradNorm   status.Float `json:"grad_norm"` // before clipping
	TokensPerS status.Float `json:"tokens_per_s"`
	StepMS     float64      `json:"step_ms"`
	ForwardMS  float64      `json:"forward_ms"`
	BackwardMS float64      `json:"backward_ms"`
	ExposedMS  float64      `json:"exposed_comm_ms"`
	OptimMS    float64      `json:"optimizer_ms"`
	DataMS     float64      `json:"data_ms"`
	CommBytes  int64        `json:"comm_bytes"`
	MemBytes   int64        `json:"mem_bytes"`
	// MFU is the model's operations by those that the GPUs could have made; not where
	// their rate is unknown.
	MFU     float64 `json:"mfu,omitempty"`
	savings         // of rank 0
	// Who worked longest, and how much longer than the others on average; not with one
	// rank.
	SlowestRank *int    `json:"slowest_rank,omitempty"`
	SlowestByMS float64 `json:"slowest_by_ms,omitempty"`
	Skipped     bool    `json:"skipped,omitempty"` // NaN or Inf: weights unchanged
}

// evalRecord is an evaluation line.
type evalRecord struct {
	Step       int          `json:"step"`
	ValLoss    status.Float `json:"val_loss"`
	Perplexity status.Float `json:"val_perplexity"` // e to the loss
	// Accuracy is the share of the images that are told right; only of images.
	Accuracy *status.Float `json:"val_accuracy,omitempty"`
}

// saveRecord is the line of a checkpoint that is complete.
type saveRecord struct {
	Event     string  `json:"event"` // "checkpoint"
	Step      int     `json:"step"`
	Ranks     int     `json:"ranks"`
	Bytes     int64   `json:"bytes"`       // of all ranks' tensors
	Seconds   float64 `json:"seconds"`     // from the end of the step until it was complete
	WriteS    float64 `json:"write_s"`     // of these, those in which the slowest rank wrote, and rank 0 put it together
	BytesPerS float64 `json:"bytes_per_s"` // bytes over write_s
	StallMS   float64 `json:"stall_ms"`    // how long training stood still, on the rank where that was longest
}

func (r saveRecord) String() string {
	return fmt.Sprintf("checkpoint of step %d: %s by %d ranks, written in %.2f s (%s/s), complete after %.2f s; training stood still for %.2f s",
		r.Step, byteCount(r.Bytes), r.Ranks, r.WriteS, byteCount(int64(r.BytesPerS)), r.Seconds, r.StallMS/1e3)
}

// metricsFile appends lines to metrics.jsonl. Each line is written at once, so
// that a killed job leaves whole lines.
type metricsFile struct{ f *os.File }

// openMetrics opens path for a run whose next step is step+1: lines of later
// steps, which a run after the checkpoint left behind, are removed, and so is a
// half-written last line.
func openMetrics(path string, step int) (*metricsFile, error) {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	keep, err := upTo(old, step)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: move the file away, and the run begins a new one", path, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(keep); err == nil {
		err = f.Truncate(int64(len(keep)))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &metricsFile{f}, nil
}

// upTo is the lines of old that belong to steps up to step.
func upTo(old []byte, step int) ([]byte, error) {
	var keep bytes.Buffer
	r := bufio.NewReader(bytes.NewReader(old))
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return keep.Bytes(), nil // what lies behind the last newline was cut off by a crash
		}
		if err != nil {
			return nil, err
		}
		var head struct {
			Step  int    `json:"step"`
			Event string `json:"event"`
		}
		if err := json.Unmarshal(line, &head); err != nil {
			return nil, fmt.Errorf("line %d is none of metrics (%.40q)", n, line)
		}
		if head.Event != "end" && head.Step <= step {
			keep.Write(line)
		}
	}
}

// write appends v as one line.
func (m *metricsFile) write(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = m.f.Write(append(line, '\n'))
	return err
}

func (m *metricsFile) close() error { return m.f.Close() }
