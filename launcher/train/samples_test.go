package train

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
)

// chatTemplate writes conversations in bytes, with marks around what the assistant
// writes.
const chatTemplate = `{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{% endfor %}`

// chatJob is the settings of a job over n conversations of a few bytes each.
func chatJob(t *testing.T, n int) []string {
	t.Helper()
	dir := t.TempDir()
	var rows strings.Builder
	r := models.NewRand(1, "conversations")
	for i := range uint64(n) {
		row, err := json.Marshal(map[string]any{"messages": []map[string]string{
			{"role": "user", "content": strings.Repeat("x", 1+int(r.Uint64(2*i)%5))},
			{"role": "assistant", "content": strings.Repeat(string(rune('a'+i%26)), 1+int(r.Uint64(2*i+1)%7))},
		}})
		if err != nil {
			t.Fatal(err)
		}
		rows.Write(append(row, '\n'))
	}
	for name, text := range map[string]string{"rows.jsonl": rows.String(), "t.jinja": chatTemplate} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return []string{
		"data.format=chat", "data.train=" + dir + "/rows.jsonl", "data.template=" + dir + "/t.jinja", "data.cache=" + dir + "/cache", "data.seq_len=48",
		"model.vocab=256", "train.max_steps=0", "train.epochs=2", "eval.every=0", "checkpoint.every=1",
	}
}

// Packed conversations give the same losses on any number of ranks, in an epoch
// whose last batch is not full, and in a job that goes on from its midst.
func TestSamplesOnRanks(t *testing.T) {
	job := chatJob(t, 70)
	var want []stepRecord
	for _, c := range []struct{ ranks, micro, accum int }{{1, 6, 1}, {2, 3, 1}, {3, 1, 2}, {1, 2, 3}} {
		out := filepath.Join(t.TempDir(), "out")
		sets := append(job, "output="+out, fmt.Sprintf("train.micro_batch=%d", c.micro), fmt.Sprintf("train.grad_accum=%d", c.accum))
		said := mustTrain(t, c.ranks, sets...)
		got := readSteps(t, out)
		if want == nil {
			want = got
			if !strings.Contains(said, "70 samples") {
				t.Errorf("the samples are not told of:\n%s", said)
			}
		}
		compareLosses(t, fmt.Sprintf("%d ranks x %d micro-steps x %d", c.ranks, c.accum, c.micro), got, want)

		if c.ranks != 2 {
			continue
		}
		again := filepath.Join(t.TempDir(), "again")
		from := filepath.Join(out, "checkpoints", fmt.Sprintf("step-%08d", len(got)/2))
		mustTrain(t, 3, append(job, "output="+again, "train.micro_batch=1", "train.grad_accum=2", "checkpoint.resume="+from)...)
		compareLosses(t, "resumed by 3 ranks", readSteps(t, again), want[len(got)/2:])
	}
}

// A job whose samples are packed has the loss of one whose samples are alone, in
// training and in evaluation: the bounds reach the attention.
func TestPackedJobHasTheSameLoss(t *testing.T) {
	job := chatJob(t, 70)
	rows, err := os.ReadFile(strings.TrimPrefix(job[1], "data.train="))
	if err != nil {
		t.Fatal(err)
	}
	eval := filepath.Join(t.TempDir(), "eval.jsonl")
	if err := os.WriteFile(eval, rows, 0o666); err != nil {
		t.Fatal(err)
	}
	job = append(job, "data.eval="+eval, "eval.every=1", "eval.steps=0", "train.epochs=1", "train.warmup_steps=0", "train.lr=1e-30")
	losses := map[bool][2]float64{}
	for _, packing := range []bool{false, true} {
		cfg := parse(t, append(job, fmt.Sprintf("data.packing=%t", packing))...)
		l, err := openLanguage(cfg)
		if err != nil {
			t.Fatal(err)
		}
		set, err := openData(t.Context(), &architecture{cfg: cfg, name: "llama", vocab: 256}, l, nil)
		if err != nil {
			t.Fatal(err)
		}
		n := set.Train.Len()
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
		if packing && n > 35 {
			t.Fatalf("%d sequences of 70 samples", n)
		}
		out := filepath.Join(t.TempDir(), "out")
		mustTrain(t, 1, append(job, "output="+out, fmt.Sprintf("data.packing=%t", packing), fmt.Sprintf("train.micro_batch=%d", n))...)
		steps := readSteps(t, out)
		if len(steps) != 1 {
			t.Fatalf("%d steps", len(steps))
		}
		losses[packing] = [2]float64{float64(steps[0].Loss), float64(*readEnd(t, out).ValLoss)}
	}
	for i, what := range []string{"training", "evaluation"} {
		if d := math.Abs(losses[true][i] - losses[false][i]); !(d <= 1e-5) {
			t.Errorf("%s: the loss is %v, and with samples packed %v", what, losses[false][i], losses[true][i])
		}
	}
}

// Ten samples on three ranks: four steps, the last of one sample, in which two ranks
// have nothing. Together they have the loss of one step over all.
func TestTenSamplesOnThreeRanks(t *testing.T) {
	var rows []any
	for i := range 10 { // as many targets in each
		rows = append(rows, map[string]string{"prompt": "x", "completion": strings.Repeat(string(rune('a'+i)), 5)})
	}
	job := []string{
		"data.format=prompt_completion", "data.train=" + writeRows(t, rows...), "data.cache=" + t.TempDir(), "data.packing=false", "data.seq_len=8",
		"model.vocab=256", "train.max_steps=0", "train.epochs=1", "train.warmup_steps=0", "train.lr=1e-30", "eval.every=0",
	}
	losses := func(ranks, batch int) (all []float64) {
		out := filepath.Join(t.TempDir(), "out")
		mustTrain(t, ranks, append(job, "output="+out, fmt.Sprintf("train.micro_batch=%d", batch))...)
		for _, r := range readSteps(t, out) {
			all = append(all, float64(r.Loss))
		}
		return all
	}
	want, got := losses(1, 10), losses(3, 1)
	if len(want) != 1 || len(got) != 4 {
		t.Fatalf("the losses are %v and %v", want, got)
	}
	if mean := (3*got[0] + 3*got[1] + 3*got[2] + got[3]) / 10; !(math.Abs(mean-want[0]) <= 1e-5) {
		t.Errorf("the losses %v have the mean %v, want %v", got, mean, want[0])
	}
}

func compareLosses(t *testing.T, what string, got, want []stepRecord) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d steps, want %d", what, len(got), len(want))
	}
	for i := range got {
		// f32 sums in another order.
		if d := math.Abs(float64(got[i].Loss - want[i].Loss)); !(d <= 1e-4) {
			t.Errorf("%s: the loss of step %d is %v, want %v", what, got[i].Step, got[i].Loss, want[i].Loss)
		}
	}
}

// What is wrong with the settings of text, or does not fit the model, is an error
// that names the key.
func TestTextThatDoesNotFit(t *testing.T) {
	job := chatJob(t, 20)
	broken := filepath.Join(t.TempDir(), "broken.jinja")
	if err := os.WriteFile(broken, []byte("{% for %}"), 0o666); err != nil {
		t.Fatal(err)
	}
	for want, sets := range map[string][]string{
		"data.template: open":                                                  {"data.template=" + broken + "x"},
		"data.template: chat template":                                         {"data.template=" + broken},
		"data.tokenizer: open":                                                 {"data.tokenizer=" + filepath.Dir(broken), "model.vocab=1000"},
		"data.format chat: a conversation needs a chat template":               {"data.template="},
		"into which 20 samples are packed, fewer than one global batch of 100": {"train.micro_batch=100"},
	} {
		_, err := trainRanks(t, t.Context(), 1, append(job, append([]string{"output=" + t.TempDir()}, sets...)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got error %v, want one with %q", sets, err, want)
		}
	}
}

// What of the data is not learned is said before the first step, and in the plan.
func TestLostSamplesAreToldOf(t *testing.T) {
	job := append(chatJob(t, 70), "data.seq_len=10", "data.packing=false", "train.micro_batch=4", "output="+filepath.Join(t.TempDir(), "out"))
	plan, err := Plan(parse(t, job...), 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	said := mustTrain(t, 1, append(job, "train.max_steps=1", "train.warmup_steps=0")...)
	for _, text := range []string{plan, said} {
		for _, want := range []string{"warning: ", "samples are longer than data.seq_len, and their ends are cut off; the first: ", "rows.jsonl:"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}
