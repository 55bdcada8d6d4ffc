package train

import (
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/launcher/status"
)

// times says where one step, or the mean step of a run, went. Milliseconds.
// step is wall time; what the others leave of it is other, the host's own work. data
// is reading the next batch, as far as the device stood still for it.
type times struct {
	step, forward, backward, exposed, optim, data float64
}

func (t times) other() float64 {
	return max(t.step-t.forward-t.backward-t.exposed-t.optim-t.data, 0)
}

// span is a stretch of the host's time.
type span struct{ from, to time.Time }

// behind is how much of the span comes after t.
func (s span) behind(t time.Time) time.Duration {
	if s.from.After(t) {
		t = s.from
	}
	return max(s.to.Sub(t), 0)
}

// values and timesOf are the times as a list and back, for what is done to all.
func (t times) values() []float64 {
	return []float64{t.step, t.forward, t.backward, t.exposed, t.optim, t.data}
}

func timesOf(v []float64) times { return times{v[0], v[1], v[2], v[3], v[4], v[5]} }

func (t times) plus(d times) times {
	v := t.values()
	for i, x := range d.values() {
		v[i] += x
	}
	return timesOf(v)
}

func (t times) over(n int) times {
	v := t.values()
	for i := range v {
		v[i] /= float64(n)
	}
	return timesOf(v)
}

// totals adds up what the summary reports. Evaluation, samples and checkpoints are
// not in it. Its times are means over the ranks: unlike the maxima that a step's
// line gives, they add up.
type totals struct {
	steps, skipped int
	tokens         int64
	sum            times
	slow           laggards
	sent           int64 // bytes that this rank sent
	compressed     compressed
	saves          saves
	started        time.Time
	lastLoss       float64
}

func (t *totals) add(r stepRecord, tokens int64, d times) {
	t.steps++
	if r.Skipped {
		t.skipped++
	}
	t.tokens += tokens
	t.sent += r.CommBytes
	t.lastLoss = float64(r.Loss)
	t.sum = t.sum.plus(d)
}

func (t *totals) mean() times { return t.sum.over(max(t.steps, 1)) }

func (t *totals) tokensPerS() float64 {
	if t.sum.step == 0 {
		return 0
	}
	return float64(t.tokens) / (t.sum.step / 1e3)
}

// saves adds up what complete checkpoints have cost.
type saves struct {
	n       int
	bytes   int64
	writeS  float64
	stallMS float64
}

func (s *saves) add(r saveRecord) {
	s.n++
	s.bytes += r.Bytes
	s.writeS += r.WriteS
	s.stallMS += r.StallMS
}

// line is for the summary; "" where there were none.
func (s saves) line() string {
	if s.n == 0 {
		return ""
	}
	n := float64(s.n)
	return fmt.Sprintf("%d checkpoints of %s, written in %.2f s each (%s/s); training stood still for %.2f s each",
		s.n, byteCount(s.bytes/int64(s.n)), s.writeS/n, byteCount(int64(float64(s.bytes)/max(s.writeS, 1e-9))), s.stallMS/1e3/n)
}

// endRecord is the last line of metrics.jsonl.
type endRecord struct {
	Event        string        `json:"event"` // "end"
	Step         int           `json:"step"`
	Steps        int           `json:"steps"` // of this run, without those before a resume
	Skipped      int           `json:"skipped_steps"`
	Loss         status.Float  `json:"loss"`
	ValLoss      *status.Float `json:"val_loss,omitempty"`
	Perplexity   *status.Float `json:"val_perplexity,omitempty"`
	Accuracy     *status.Float `json:"val_accuracy,omitempty"` // of images
	Tokens       int64         `json:"tokens"`
	TokensPerS   status.Float  `json:"tokens_per_s"`
	StepMS       float64       `json:"step_ms"` // means over the run's steps and the ranks
	ForwardMS    float64       `json:"forward_ms"`
	BackwardMS   float64       `json:"backward_ms"`
	ExposedMS    float64       `json:"exposed_comm_ms"`
	OptimMS      float64       `json:"optimizer_ms"`
	DataMS       float64       `json:"data_ms"`
	CommBytes    int64         `json:"comm_bytes"` // sent by rank 0, whole run
	MFU          float64       `json:"mfu,omitempty"`
	Seconds      float64       `json:"seconds"`
	Checkpoint   string        `json:"checkpoint,omitempty"`
	Best         string        `json:"best_checkpoint,omitempty"`
	StoppedEarly string        `json:"stopped_early,omitempty"` // why there is more to do
	EndedEarly   string        `json:"ended_early,omitempty"`   // why there is not, before all steps are made
	savings                    // of rank 0, whole run
	images       bool          // what is trained on, else tokens
}

func (t *totals) end(step int, checkpoint, early string) endRecord {
	m := t.mean()
	r := endRecord{
		Event: "end", Step: step, Steps: t.steps, Skipped: t.skipped,
		Loss: status.Float(t.lastLoss), Tokens: t.tokens, TokensPerS: status.Float(t.tokensPerS()),
		StepMS: m.step, ForwardMS: m.forward, BackwardMS: m.backward, ExposedMS: m.exposed, OptimMS: m.optim, DataMS: m.data,
		CommBytes: t.sent, Seconds: time.Since(t.started).Seconds(), Checkpoint: checkpoint, StoppedEarly: early,
	}
	r.savings = savingsOf(t.compressed)
	return r
}

// lines is the summary as the console shows it. slow is what is to say of a slow rank,
// saved of the checkpoints, files where things were written, a label and a path each.
func (r endRecord) lines(other float64, slow, saved string, files [][2]string) []string {
	title := fmt.Sprintf("%d steps in %s", r.Steps, (time.Duration(r.Seconds * float64(time.Second))).Round(100*time.Millisecond))
	if r.StoppedEarly != "" {
		title += ", stopped early: " + r.StoppedEarly
	}
	if r.EndedEarly != "" {
		title += ", done early: " + r.EndedEarly
	}
	out := []string{title}
	loss := fmt.Sprintf("loss          %.4f training", r.Loss)
	if r.ValLoss != nil {
		loss += fmt.Sprintf(", %.4f validation", *r.ValLoss)
	}
	if r.images {
		loss += " (nats an image)"
	} else {
		loss += " (nats a token)"
	}
	switch {
	case r.Accuracy != nil:
		loss += fmt.Sprintf(", %.2f %% of the test images right", 100**r.Accuracy)
	case r.Perplexity != nil:
		loss += fmt.Sprintf(", perplexity %.2f", *r.Perplexity)
	}
	out = append(out, loss)
	if r.Skipped > 0 {
		out = append(out, fmt.Sprintf("skipped       %d steps whose loss or gradients were not finite", r.Skipped))
	}
	out = append(out,
		"speed         "+r.speed(),
		fmt.Sprintf("a step        forward %.1f, backward %.1f, exposed communication %.2f, optimizer %.1f, data %.2f, other %.1f ms",
			r.ForwardMS, r.BackwardMS, r.ExposedMS, r.OptimMS, r.DataMS, other),
		fmt.Sprintf("sent          %s a rank, %s a step", byteCount(r.CommBytes), byteCount(r.CommBytes/int64(max(r.Steps, 1)))))
	if line := r.savings.line(); line != "" {
		out = append(out, "compressed    "+line)
	}
	if slow != "" {
		out = append(out, "slow          "+slow)
	}
	if saved != "" {
		out = append(out, "saved         "+saved)
	}
	for _, f := range files {
		out = append(out, fmt.Sprintf("%-13s %s", f[0], f[1]))
	}
	return out
}

func (r endRecord) speed() string {
	what := "tokens"
	if r.images {
		what = "images"
	}
	speed := fmt.Sprintf("%.0f %s/s, %.1f ms a step", r.TokensPerS, what, r.StepMS)
	if r.MFU > 0 {
		speed += fmt.Sprintf(", %.1f %% of the GPUs' peak (MFU)", 100*r.MFU)
	}
	return speed
}

// byteCount writes n with the unit that gives three figures or so.
func byteCount(n int64) string {
	switch {
	case n >= 10_000_000_000_000:
		return fmt.Sprintf("%.1f TB", float64(n)/1e12)
	case n >= 10_000_000_000:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 10_000_000:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 10_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d bytes", n)
}
