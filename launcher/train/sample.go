package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"

	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/sample"
)

// samplesFit makes sure, before training, that samples can be made: with a tokenizer it
// takes one to see how long the prompt is.
func (j *job) samplesFit() error {
	c := j.cfg.Sample
	if c.Every == 0 {
		return nil
	}
	prompt, err := sample.Prompt(j.language.Tokenizer, c.Prompt)
	if err != nil {
		return fmt.Errorf("sample.prompt: %w", err)
	}
	if n, most := len(prompt)+c.Tokens, j.arch.shape.MaxPositions; n > most {
		return fmt.Errorf("sample.tokens: %d behind a prompt of %d are %d tokens, and the model takes %d: give less", c.Tokens, len(prompt), n, most)
	}
	return nil
}

// sample lets the model continue the prompt, on rank 0, and leaves the text in
// samples/ and on the console.
func (j *job) sample(ctx context.Context, step int) error {
	text, err := j.continuePrompt(ctx)
	if err != nil {
		return fmt.Errorf("sample after step %d: %w", step, err)
	}
	if j.rank() != 0 {
		return nil
	}
	if err := os.MkdirAll(j.path("samples"), 0o777); err != nil {
		return err
	}
	path := j.path("samples", fmt.Sprintf("step-%08d.txt", step))
	if err := os.WriteFile(path, []byte(text+"\n"), 0o666); err != nil {
		return err
	}
	prompt := j.cfg.Sample.Prompt
	return j.out.Sample(status.Sample{Step: step, Prompt: prompt, Text: printable(text[min(len(prompt), len(text)):])})
}

// printable shows in another's place what would steer a terminal: a model writes
// any byte.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func (j *job) continuePrompt(ctx context.Context) (string, error) {
	g, ok := j.model.(models.Generator)
	if !ok {
		return "", errors.New("the model cannot generate text")
	}
	c := j.cfg.Sample
	return sample.Text(ctx, sample.Generator{Generator: g, Env: j.env, Weights: j.weights}, j.language.Tokenizer, c.Prompt, sample.Options{
		MaxTokens: c.Tokens, Temperature: c.Temperature, TopP: c.TopP, Seed: j.cfg.Seed,
	})
}
