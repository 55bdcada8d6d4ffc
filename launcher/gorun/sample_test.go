package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/train"
	"github.com/gorun-dev/gorun/models/sample"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// bytesTokenizer has a token for each byte.
func bytesTokenizer(t *testing.T) *tokenizer.BPE {
	t.Helper()
	files, err := tokenizer.BytesFiles()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := tokenizer.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// A text comes out while its tokens come: whole characters, and nothing of a text that
// ends it, whose beginning is held back.
func TestPrinter(t *testing.T) {
	tok := bytesTokenizer(t)
	for _, c := range []struct {
		text, want string
		stop       []string
		ended      bool
		steps      string // what is printed behind each token, joined by |
	}{
		{"abc", "abc", nil, false, "a|b|c"},
		{"aéz", "aéz", nil, false, "a||é|z"},
		{"a文", "a文", nil, false, "a|||文"},
		{"abXYc", "ab", []string{"XY"}, true, "a|b||"},
		{"abXcd", "abXcd", []string{"XY"}, false, "a|b||Xc|d"},
		{"ab", "", []string{"ab"}, true, "|"},
		{"aab", "a", []string{"ab"}, true, "|a|"},
		{"ab", "ab", []string{"", "bc"}, false, "a|"},
	} {
		var out bytes.Buffer
		p := &printer{tok: tok, out: &out, stop: c.stop}
		var steps []string
		ended := false
		for _, id := range tok.Encode(c.text) {
			before := out.Len()
			ended = !p.token(id)
			steps = append(steps, out.String()[before:])
			if ended {
				break
			}
		}
		if got := strings.Join(steps, "|"); got != c.steps || ended != c.ended {
			t.Errorf("%q, stopped by %q: %s, ended %t; want %s, %t", c.text, c.stop, got, ended, c.steps, c.ended)
		}
		if err := p.end(); err != nil || out.String() != c.want+"\n" {
			t.Errorf("%q, stopped by %q: %q, %v; want %q", c.text, c.stop, out.String(), err, c.want)
		}
	}
}

// The likeliest text of a published model is the one that its own program writes.
func TestSampleWritesThePublishedText(t *testing.T) {
	dir := filepath.Dir(testenv.Data(t, "stories260K/config.json"))
	want, err := os.ReadFile(testenv.Data(t, "stories260K/expected_stdout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s := sampling{model: train.GeneratorOptions{Model: dir, Device: "cpu", Threads: 1}, options: sample.Options{MaxTokens: 200, Seed: 1, TopP: 0.9}}
	if err := s.run(context.Background(), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != strings.TrimSpace(string(want)) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What ends an answer in the adapters' folder ends one, beside what the model has.
func TestEndsOfAdapters(t *testing.T) {
	tok, dir := bytesTokenizer(t), t.TempDir()
	for _, c := range []struct {
		settings string
		want     []int32
	}{{"", nil}, {"{}", nil}, {`{"eos_token_id": 65}`, []int32{65}}, {`{"eos_token_id": [10, 65]}`, []int32{10, 65}}} {
		if c.settings != "" {
			if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(c.settings), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := sampling{model: train.GeneratorOptions{Adapters: dir}}
		got, err := s.ends(tok)
		if err != nil || !slices.Equal(got, append(slices.Clone(tok.EOSIDs()), c.want...)) {
			t.Errorf("%s: %v, %v", c.settings, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": 100000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := sampling{model: train.GeneratorOptions{Adapters: dir}}
	if _, err := s.ends(tok); err == nil || !strings.Contains(err.Error(), "no token 100000") {
		t.Errorf("a token that does not exist: %v", err)
	}
}
