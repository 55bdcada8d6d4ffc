package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gorun-dev/gorun/launcher/monitor"
	"github.com/gorun-dev/gorun/launcher/status"
)

// watcher shows a run while it goes on, beside metrics.jsonl. Rank 0 has them.
type watcher interface {
	Write(monitor.Point) error
	Close() error
}

// openWatchers starts what section log asks for.
func (j *job) openWatchers() error {
	add := func(w watcher, err error) error {
		if err != nil {
			return err
		}
		j.watchers = append(j.watchers, w)
		j.onClose(w.Close)
		return nil
	}
	if j.cfg.Log.TensorBoard {
		if err := add(monitor.NewTensorBoard(j.path("tensorboard"), j.done+1, time.Now())); err != nil {
			return fmt.Errorf("log.tensorboard: %w", err)
		}
	}
	if addr := j.cfg.Log.Prometheus; addr != "" {
		p, err := monitor.NewPrometheus(addr, j.cfg.Name)
		if err := add(p, err); err != nil {
			return fmt.Errorf("log.prometheus: %w", err)
		}
		j.say("figures for Prometheus at http://%s/metrics", p.Addr())
	}
	return nil
}

// watch shows figures of a step.
func (j *job) watch(step int, values ...monitor.Value) error {
	var errs []error
	for _, w := range j.watchers {
		errs = append(errs, w.Write(monitor.Point{Step: step, Time: time.Now(), Values: values}))
	}
	return errors.Join(errs...)
}

// watched are the figures of a training line.
func (r stepRecord) watched() []monitor.Value {
	values := []monitor.Value{
		{Name: "train/loss", V: float64(r.Loss)}, {Name: "train/lr", V: float64(r.LR)}, {Name: "train/grad_norm", V: float64(r.GradNorm)},
		{Name: "perf/tokens_per_s", V: float64(r.TokensPerS)}, {Name: "perf/step_ms", V: r.StepMS},
		{Name: "perf/exposed_comm_ms", V: r.ExposedMS}, {Name: "perf/data_ms", V: r.DataMS},
		{Name: "perf/comm_bytes", V: float64(r.CommBytes)}, {Name: "perf/mem_bytes", V: float64(r.MemBytes)},
	}
	if r.MFU > 0 {
		values = append(values, monitor.Value{Name: "perf/mfu", V: r.MFU})
	}
	return values
}

// watched are the figures of an evaluation.
func (r evalRecord) watched() []monitor.Value {
	values := []monitor.Value{{Name: "eval/loss", V: float64(r.ValLoss)}, {Name: "eval/perplexity", V: float64(r.Perplexity)}}
	if r.Accuracy != nil {
		values = append(values, monitor.Value{Name: "eval/accuracy", V: float64(*r.Accuracy)})
	}
	return values
}

// plotLoss draws the losses of all steps that metrics.jsonl has, those before a resume
// included.
func (j *job) plotLoss(path string) error {
	text, err := os.ReadFile(j.path("metrics.jsonl"))
	if err != nil {
		return err
	}
	training, validation := monitor.Curve{Name: "training"}, monitor.Curve{Name: "validation"}
	for line := range bytes.Lines(text) {
		var r struct {
			Event   string        `json:"event"`
			Step    int           `json:"step"`
			Loss    *status.Float `json:"loss"`
			ValLoss *status.Float `json:"val_loss"`
		}
		switch err := json.Unmarshal(line, &r); {
		case err != nil:
			return fmt.Errorf("metrics.jsonl: %w", err)
		case r.Event != "":
		case r.ValLoss != nil:
			validation.Points = append(validation.Points, monitor.XY{Step: r.Step, Y: float64(*r.ValLoss)})
		case r.Loss != nil:
			training.Points = append(training.Points, monitor.XY{Step: r.Step, Y: float64(*r.Loss)})
		}
	}
	return monitor.Plot(path, j.cfg.Name, "loss, nats a token", []monitor.Curve{training, validation})
}
