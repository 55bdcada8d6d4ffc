package sample

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/models/llama"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Token frequencies follow the softmax, cut as the options say.
func TestFrequenciesFollowTheSoftmax(t *testing.T) {
	logits := []float32{1, 3, 0, 2, -1}
	const draws = 20000
	for _, c := range []struct {
		o    Options
		kept []int // by likelihood
	}{
		{Options{Temperature: 1}, []int{1, 3, 0, 2, 4}},
		{Options{Temperature: 2}, []int{1, 3, 0, 2, 4}},
		{Options{Temperature: 1, TopK: 2}, []int{1, 3}},
		{Options{Temperature: 1, TopK: 9}, []int{1, 3, 0, 2, 4}},
		{Options{Temperature: 1, TopP: 0.8}, []int{1, 3}}, // 0.64 alone is not enough
		{Options{Temperature: 1, TopP: 0.6}, []int{1}},
		{Options{Temperature: 1, TopK: 3, TopP: 0.95}, []int{1, 3, 0}},
		{Options{Temperature: 0}, []int{1}},
	} {
		weight := func(id int) float64 { return math.Exp(float64(logits[id]) / max(c.o.Temperature, 1)) }
		sum, count := 0.0, map[int]int{}
		for _, id := range c.kept {
			sum += weight(id)
		}
		choose := newChooser(c.o, len(logits))
		for n := range draws {
			id, err := choose.token(logits, uint64(n))
			if err != nil {
				t.Fatal(err)
			}
			count[int(id)]++
		}
		for id := range logits {
			p := 0.0
			if slices.Contains(c.kept, id) {
				p = weight(id) / sum
			}
			// Five deviations of a binomial count.
			if d := math.Abs(float64(count[id]) - draws*p); d > 5*math.Sqrt(draws*p*(1-p)) {
				t.Errorf("%+v: token %d came %d times of %d, expected %.0f", c.o, id, count[id], draws, draws*p)
			}
		}
	}
}

func TestEqualLogitsGiveTheLowerId(t *testing.T) {
	id, err := newChooser(Options{}, 3).token([]float32{1, 2, 2}, 0)
	if err != nil || id != 1 {
		t.Errorf("chose %d, %v", id, err)
	}
}

func TestDamagedLogitsAreNamed(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1)} {
		if _, err := newChooser(Options{}, 2).token([]float32{0, float32(x)}, 0); err == nil || !strings.Contains(err.Error(), "logit 1") {
			t.Errorf("%v: %v", x, err)
		}
	}
}

func generator(t *testing.T) Generator {
	r := modeltest.New(t, 1, 4, func(e models.Env) (models.Model, error) {
		return llama.New(llama.Config{Vocab: 256, Hidden: 16, Layers: 2, Heads: 2, KVHeads: 1, FFN: 24,
			MaxPositions: 64, RopeTheta: 100, NormEps: 1e-5, Tied: true}, e)
	})
	return Generator{r.Model.(models.Generator), r.Env, r.Weights}
}

func TestTextIsAFunctionOfSeedAndOptions(t *testing.T) {
	g := generator(t)
	text := func(o Options) string {
		s, err := Text(t.Context(), g, tokenizer.Bytes{}, "func ", o)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(s, "func ") {
			t.Errorf("%q does not begin with its prompt", s)
		}
		return s
	}
	o := Options{MaxTokens: 20, Temperature: 1, Seed: 3}
	first := text(o)
	if again := text(o); again != first {
		t.Errorf("%q and then %q", first, again)
	}
	o.Seed = 4
	if other := text(o); other == first {
		t.Errorf("another seed gave the same text %q", other)
	}
}

func TestStopTokensEndTheText(t *testing.T) {
	g := generator(t)
	all, err := Tokens(t.Context(), g, []int32{7}, Options{MaxTokens: 30, Temperature: 1})
	if err != nil || len(all) != 30 {
		t.Fatalf("%d tokens, %v", len(all), err)
	}
	at := slices.Index(all, all[12])
	got, err := Tokens(t.Context(), g, []int32{7}, Options{MaxTokens: 30, Temperature: 1, Stop: all[12:13]})
	if err != nil || !slices.Equal(got, all[:at]) {
		t.Errorf("got %v, %v; want %v", got, err, all[:at])
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	g := generator(t)
	for _, o := range []Options{
		{MaxTokens: 0}, {MaxTokens: 1, Temperature: -1}, {MaxTokens: 1, Temperature: math.NaN()}, {MaxTokens: 1, TopK: -1},
		{MaxTokens: 1, TopP: 1.5}, {MaxTokens: 64}, // one more than the model's positions, with the prompt
	} {
		if _, err := Tokens(t.Context(), g, []int32{1}, o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	if _, err := Tokens(t.Context(), g, nil, Options{MaxTokens: 1}); err == nil {
		t.Error("an empty prompt was accepted")
	}
}

func TestContextEndsTheWait(t *testing.T) {
	g := generator(t)
	release := make(chan struct{})
	defer close(release)
	g.Env.Stream.(*device.CPUStream).Do("hold", func() error { <-release; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Tokens(ctx, g, []int32{1}, Options{MaxTokens: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// framing is a tokenizer of bytes that has texts begin with its template's tokens.
type framing struct {
	tokenizer.Bytes
	before []int32
	bos    bool
}

func (f framing) Template() (before, after []int32) { return f.before, []int32{9} }
func (f framing) BOS() (int32, bool)                { return 5, f.bos }

func TestPromptBeginsAsTextsDo(t *testing.T) {
	for _, c := range []struct {
		tok  tokenizer.Tokenizer
		text string
		want []int32
	}{
		{tokenizer.Bytes{}, "a", []int32{0, 'a'}},
		{framing{before: []int32{7, 8}, bos: true}, "a", []int32{7, 8, 'a'}},
		{framing{bos: true}, "a", []int32{'a'}}, // a beginning of text that texts do not begin with
		{framing{bos: true}, "", []int32{5}},
	} {
		if got, err := Prompt(c.tok, c.text); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v; want %v", c.text, got, err, c.want)
		}
	}
	if _, err := Prompt(framing{}, ""); err == nil {
		t.Error("an empty prompt has tokens")
	}
}
