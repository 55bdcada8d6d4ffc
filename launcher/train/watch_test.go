package train

import (
	"bytes"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

// The metrics reach TensorBoard's files, of each run one, and the plot; Prometheus gets
// them while the run goes on.
func TestARunIsWatched(t *testing.T) {
	out := t.TempDir()
	events := func() []string {
		list, err := filepath.Glob(filepath.Join(out, "tensorboard", "events.out.tfevents.*"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	ctx := t.Context()
	var url string
	var page atomic.Value
	listening := regexp.MustCompile(`http://[0-9.:]+/metrics`)
	_, err := trainTelling(t, ctx, 2, func(line string) {
		if found := listening.FindString(line); found != "" {
			url = found
		}
		if strings.Contains(line, `"step":3`) && url != "" && page.Load() == nil {
			page.Store(fetched(t, url))
		}
	}, "output="+out, "train.max_steps=6", "log.prometheus=127.0.0.1:0", "log.plot=true", "log.tensorboard=true")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := page.Load().(string)
	for _, want := range []string{"gorun_step{run=", "gorun_train_loss{run=", "gorun_eval_perplexity{run="} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s:\n%s", want, text)
		}
	}
	if n := len(events()); n != 1 {
		t.Errorf("%d event files after one run", n)
	}
	b, err := os.ReadFile(events()[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"train/loss": 6, "train/grad_norm": 6, "eval/loss": 2} {
		if got := bytes.Count(b, []byte(name)); got != want {
			t.Errorf("%s stands %d times in the event file, want %d", name, got, want)
		}
	}
	before := picture(t, out)
	mustTrain(t, 2, "output="+out, "train.max_steps=8", "checkpoint.resume=auto", "log.plot=true", "log.tensorboard=true")
	if n := len(events()); n != 2 {
		t.Errorf("%d event files after two runs", n)
	}
	if bytes.Equal(before, picture(t, out)) {
		t.Error("the plot does not show the second run")
	}
	mustTrain(t, 1, "output="+out, "log.tensorboard=false")
	if n := len(events()); n != 0 {
		t.Errorf("%d event files of a run without them", n)
	}
}

// An address that is taken is said before the first step.
func TestPrometheusAtATakenAddress(t *testing.T) {
	var second error
	_, err := trainTelling(t, t.Context(), 1, func(line string) {
		if _, addr, ok := strings.Cut(line, "http://"); ok {
			addr, _, _ = strings.Cut(addr, "/metrics")
			_, second = trainRanks(t, t.Context(), 1, "output="+t.TempDir(), "log.prometheus="+addr)
		}
	}, "output="+t.TempDir(), "log.prometheus=127.0.0.1:0")
	if err != nil || second == nil || !strings.Contains(second.Error(), "log.prometheus") {
		t.Errorf("the first ended with %v, the second with %v", err, second)
	}
}

func fetched(t *testing.T, url string) string {
	r, err := http.Get(url)
	if err != nil {
		return fmt.Sprint(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(text)
}

func picture(t *testing.T, out string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(out, "loss.png"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(b)); err != nil {
		t.Error(err)
	}
	return b
}
