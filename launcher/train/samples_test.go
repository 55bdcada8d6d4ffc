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
const chatTemplate = `{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}{% endif %}
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
		"data.template: open":                                    {"data.template=" + broken + "x"},
		"data.template: chat template":                           {"data.template=" + broken},
		"data.tokenizer: open":                                   {"data.tokenizer=" + filepath.Dir(broken), "model.vocab=1000"},
		"data.format chat: a conversation needs a chat template": {"data.template="},
		"into which 20 samples are packed, fewer than one global batch of 100":                     {"train.micro_batch=100"},
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
