package data

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/models"
)

// reference cuts a row of tokens into windows in the plainest way.
func reference(row []int32, seqLen int) (sequences [][2][]int32, unused int) {
	at := 0
	for ; at+seqLen+1 <= len(row); at += seqLen {
		sequences = append(sequences, [2][]int32{row[at : at+seqLen], row[at+1 : at+seqLen+1]})
	}
	return sequences, len(row) - 1 - at
}

func readAll(t *testing.T, d Dataset) (sequences [][2][]int32) {
	t.Helper()
	for i := range d.Len() {
		// Dirty, for Read must overwrite every element.
		tokens, targets := slices.Repeat([]int32{-7}, d.SeqLen()), slices.Repeat([]int32{-7}, d.SeqLen())
		n, err := d.Read(i, tokens, targets)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range targets {
			if x != Ignore {
				n--
			}
		}
		if n != 0 {
			t.Errorf("sequence %d: the count of targets is off by %d", i, n)
		}
		sequences = append(sequences, [2][]int32{tokens, targets})
	}
	return sequences
}

// Files of odd sizes, cut at odd lengths, against the plain reference: for text
// and for tokens of both widths.
func TestPackedSequences(t *testing.T) {
	r := models.NewRand(3, "sizes")
	for trial := range uint64(60) {
		seqLen := 1 + int(r.Uint64(10*trial)%40)
		files := int(1 + r.Uint64(10*trial+1)%6)
		dir := t.TempDir()
		var textRow, tokenRow []int32
		for f := range files {
			content := pseudo(trial, 1+int(r.Uint64(10*trial+2+uint64(f))%90))
			ids := make([]int32, len(content))
			for i, b := range []byte(content) {
				textRow = append(textRow, int32(b))
				ids[i] = int32(b) * 250
			}
			textRow = append(textRow, Separator)
			tokenRow = append(tokenRow, ids...)
			for name, s := range map[string]string{"txt": content, "u16": encode(ids, 2), "u32": encode(ids, 4)} {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.%s", f, name)), []byte(s), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, kind := range []string{"txt", "u16", "u32"} {
			o := textOptions(seqLen, dir+"/*."+kind)
			row := textRow
			if kind != "txt" {
				o.Format, o.DType, o.Vocab, row = "tokens", map[string]string{"u16": "uint16", "u32": "uint32"}[kind], 1<<16, tokenRow
			}
			want, unused := reference(row, seqLen)
			if len(want) == 0 {
				_, err := Open(context.Background(), o)
				wantError(t, err, fmt.Sprintf("%d tokens", len(row)), fmt.Sprintf("data.seq_len = %d", seqLen))
				continue
			}
			d := open(t, o).Train
			got := readAll(t, d)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("trial %d, %s, seq_len %d:\ngot  %v\nwant %v", trial, kind, seqLen, got, want)
			}
			if i := d.Info(); i.Files != files || i.Tokens != int64(len(row)) || i.UnusedTokens != int64(unused) || i.Sequences != len(want) {
				t.Errorf("trial %d, %s: %+v", trial, kind, i)
			}
		}
	}
}

func TestDocuments(t *testing.T) {
	dir := folder(t, map[string]string{"1": "a", "2": "abcd", "3": "abcde", "4": "", "5": "abcdefg"})
	o := textOptions(4, dir+"/*")
	o.Packing = false
	d := open(t, o).Train
	want := [][2][]int32{
		{{'a', 0, 0, 0}, {0, -1, -1, -1}},
		{{'a', 'b', 'c', 'd'}, {'b', 'c', 'd', 0}},
		{{'a', 'b', 'c', 'd'}, {'b', 'c', 'd', 'e'}},
		{{'a', 'b', 'c', 'd'}, {'b', 'c', 'd', 'e'}},
	}
	if got := readAll(t, d); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := d.Info().String(), "4 sequences, 21 tokens from 4 files, 1 empty skipped, 2 documents cut, 4 tokens left over"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Synthetic sequences are random access, stay in the vocabulary, and have the
// entropy that syntheticLoss says.
func TestSynthetic(t *testing.T) {
	for _, vocab := range []int{2, 3, 17, 256} {
		s := open(t, Options{Format: "synthetic", SeqLen: 64, Vocab: vocab, Seed: 4})
		follows, all := 0, 0
		stride := s.Train.(*synthetic).stride
		tokens, targets := make([]int32, 64), make([]int32, 64)
		for i := range 500 {
			if _, err := s.Train.Read(i, tokens, targets); err != nil {
				t.Fatal(err)
			}
			for j := range tokens {
				if targets[j] < 0 || int(targets[j]) >= vocab || j > 0 && tokens[j] != targets[j-1] {
					t.Fatalf("sequence %d at %d: token %d, target %d", i, j, tokens[j], targets[j])
				}
				if int(targets[j]) == (int(tokens[j])+stride)%vocab {
					follows++
				}
				all++
			}
		}
		p, want := float64(follows)/float64(all), 0.9+0.1/float64(vocab)
		if p < want-0.01 || p > want+0.01 {
			t.Errorf("vocab %d: %.3f follow the rule, want %.3f", vocab, p, want)
		}
		a, b := make([]int32, 64), make([]int32, 64)
		if _, err := s.Eval.Read(3, a, b); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Train.Read(3, tokens, b); err != nil {
			t.Fatal(err)
		}
		if slices.Equal(a, tokens) {
			t.Error("training and evaluation have the same sequences")
		}
	}
	// 0.95 and 0.05 are the probabilities of two tokens.
	if got, want := syntheticLoss(2), 0.198515243; got < want-1e-8 || got > want+1e-8 {
		t.Errorf("loss of two tokens: %.9f, want %.9f", got, want)
	}
}

// syntheticLoss is the lowest mean loss, in nats a token, that a model can reach
// on synthetic data of a vocabulary: the entropy of a token, given the one
// before it.
func syntheticLoss(vocab int) float64 {
	other := (1 - follow) / float64(vocab)
	rule := follow + other
	return -rule*math.Log(rule) - float64(vocab-1)*other*math.Log(other)
}
