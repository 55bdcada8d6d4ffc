// Package data turns files into the token sequences that a model is trained and
// evaluated on.
//
// A corpus is a row of tokens, made of the files that patterns name (glob.go,
// files.go) in a fixed order: bytes of text (text.go) or stored token ids
// (tokens.go). It is cut into sequences (sequences.go), which synthetic data
// (synthetic.go) makes from a seed.
//
// Samples are what a tokenizer makes of the rows of files (package rows, sources.go),
// with the tokens marked that are learned (encode.go). A host makes them once
// (build.go) and keeps them (package store); samples.go chooses and cuts them, and
// pack.go puts several into a sequence.
//
// Order (order.go) is the order in which an epoch visits sequences, a pure function
// of the seed and a single integer: with it a Loader (loader.go) hands each rank its
// part of any step, and an Evaluation (evaluation.go) each rank its part of a fixed
// list.
//
// Nothing here knows of processes: rank and world are numbers that the caller
// gives. Every rank reads the same files; Info.Fingerprint tells whether they
// did.
package data

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/models/data/rows"
)

// Ignore is the target of a position that does not count.
const Ignore = -1

// Separator is the token behind every document of text: a zero byte. It is the
// only convention there is; a text's own zero bytes are tokens as any other.
const Separator = 0

// A Dataset is a fixed list of sequences with random access. Its methods may be
// called from several goroutines at once.
type Dataset interface {
	// Len is the number of sequences, at least 1.
	Len() int
	// SeqLen is T, the length of each.
	SeqLen() int
	// Read writes sequence i, below Len, to tokens [T] and targets [T], where
	// the target of a position is the token behind it, or Ignore. It returns
	// the number of targets that count. It allocates nothing and keeps neither
	// slice.
	Read(i int, tokens, targets []int32) (n int, err error)
	// Info says what the sequences are made of.
	Info() Info
}

// Info is what a Dataset is made of. Every token of the files is in a sequence
// or counted here.
type Info struct {
	Files        int   // that are read, at least in part
	EmptyFiles   int   // that hold nothing and are skipped
	Bytes        int64 // read
	Tokens       int64 // separators included
	Sequences    int
	UnusedTokens int64  // the end of the row that fills no sequence, or what a document has beyond seq_len
	CutDocuments int    // longer than a sequence, where documents are not packed
	Fingerprint  uint64 // of all tokens in their order; equal data, equal number

	// Of samples. Those of one copy, whatever a source's weight is.
	Samples  int   // of use
	Targets  int64 // over an epoch
	Padding  int64 // positions that nothing fills, over an epoch
	Skipped  int   // rows that could not be read
	NoTarget int   // samples without a token that is learned, or whose are all cut off
	Dropped  int   // samples that are too long, where such are dropped
	// What is wrong with the first row skipped, and where the first samples are that
	// have no target, that are dropped, that are cut; or empty.
	FirstSkipped, FirstNoTarget, FirstDropped, FirstCut string
}

// Warnings says, a line each, what of the data is not learned from and should
// perhaps be.
func (i Info) Warnings() (lines []string) {
	if i.Samples+i.Skipped+i.NoTarget+i.Dropped == 0 {
		return nil // not samples
	}
	for _, x := range []struct {
		n     int
		what  string
		first string
	}{
		{i.Skipped, "rows could not be read and are skipped", i.FirstSkipped},
		{i.NoTarget, "samples are skipped, for no token of them is learned (the answer is beyond data.seq_len, or there is none)", i.FirstNoTarget},
		{i.Dropped, "samples are dropped, for they are longer than data.seq_len", i.FirstDropped},
		{i.CutDocuments, "samples are longer than data.seq_len, and their ends are cut off", i.FirstCut},
	} {
		if x.n > 0 {
			lines = append(lines, fmt.Sprintf("%d %s; the first: %s", x.n, x.what, x.first))
		}
	}
	return lines
}

func (i Info) String() string {
	s, what := fmt.Sprintf("%d sequences, %d tokens", i.Sequences, i.Tokens), "documents"
	if i.Samples > 0 {
		s, what = fmt.Sprintf("%d sequences of %d samples, %d tokens", i.Sequences, i.Samples, i.Tokens), "samples"
	}
	switch {
	case i.Files == 1:
		s += " from one file"
	case i.Files > 1:
		s += fmt.Sprintf(" from %d files", i.Files)
	}
	if i.EmptyFiles > 0 {
		s += fmt.Sprintf(", %d empty skipped", i.EmptyFiles)
	}
	if i.CutDocuments > 0 {
		s += fmt.Sprintf(", %d %s cut", i.CutDocuments, what)
	}
	if i.UnusedTokens > 0 {
		s += fmt.Sprintf(", %d tokens left over", i.UnusedTokens)
	}
	if i.Samples > 0 {
		s += fmt.Sprintf("; an epoch has %d targets and %d positions of padding", i.Targets, i.Padding)
	}
	return s
}

// Options name the sources. The fields are the keys of train.yaml's section
// data, by whose names errors speak of them.
type Options struct {
	Train, Eval []string // paths and globs
	EvalSplit   float64  // share of Train's files, or of their samples, that is held back, 0 = none
	Format      string   // text, tokens, synthetic, or of samples: chat, sharegpt, alpaca, prompt_completion, text_rows or mixed
	DType       string   // uint16 or uint32, of tokens
	SeqLen      int      // T
	Packing     bool     // false: one document a sequence
	MaxBytes    int64    // of Train, and of Eval; 0 = no limit
	Vocab       int      // token ids are below it
	Seed        uint64   // of synthetic data, the choice of EvalSplit's samples, and packing

	// Of samples. Text is made of samples, too, where there is a tokenizer: a file
	// each.
	Encoding   Encoding
	Fields     Fields
	Weights    []float64 // of Train's entries: how often their samples come in an epoch; none: once
	TrainOn    string    // assistant, last or all: which tokens are learned; "": assistant
	Truncation string    // of samples beyond SeqLen: cut, drop, split or error; "": split for text and text_rows, else cut
	BadRows    string    // error or skip; "": error
	Cache      string    // the folder of tokens
	// Patience is how long another process that makes the tokens may stand still;
	// 0: ten minutes. Tell is told what goes on while that takes long; it may be nil.
	Patience time.Duration
	Tell     func(string)
}

// samples says that the data is of samples.
func (o Options) samples() bool {
	return rows.Known(o.Format) || o.Format == "text" && o.Encoding.Tokenizer != nil
}

// A Set is the data of one job.
type Set struct {
	Train Dataset
	Eval  Dataset // nil where there is none

	closers []func() error
}

// Open finds and reads the data. Everything that could be wrong with it is found
// here, before the first step.
func Open(ctx context.Context, o Options) (*Set, error) {
	if o.SeqLen < 1 || o.Vocab < 1 {
		return nil, fmt.Errorf("data: seq_len %d and vocab %d must be at least 1", o.SeqLen, o.Vocab)
	}
	if o.Format == "synthetic" {
		return &Set{Train: newSynthetic(o, "train", 1<<20), Eval: newSynthetic(o, "eval", 1<<10)}, nil
	}
	if o.samples() {
		return openSamples(ctx, o)
	}
	width, err := o.width()
	if err != nil {
		return nil, err
	}
	train, eval, err := selectFiles(o, width)
	if err != nil {
		return nil, err
	}
	s := new(Set)
	if s.Train, err = s.open(ctx, o, "data.train", train, width); err == nil && eval != nil {
		s.Eval, err = s.open(ctx, o, "evaluation", eval, width)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// width is the number of bytes that a token takes in a file.
func (o Options) width() (int, error) {
	switch {
	case o.Format == "text" && o.Vocab < 256:
		return 0, fmt.Errorf("data.format text has a token for each of the 256 bytes, and model.vocab is %d", o.Vocab)
	case o.Format == "text":
		return 1, nil
	case o.Format != "tokens":
		return 0, fmt.Errorf("data.format %q: want text, tokens, synthetic, chat, sharegpt, alpaca, prompt_completion, text_rows or mixed", o.Format)
	case o.DType == "uint16":
		return 2, nil
	case o.DType == "uint32":
		return 4, nil
	}
	return 0, fmt.Errorf("data.dtype %q: want uint16 or uint32", o.DType)
}

// open reads the chosen files and cuts them into sequences.
func (s *Set) open(ctx context.Context, o Options, what string, c *choice, width int) (Dataset, error) {
	if o.Format == "tokens" {
		if !o.Packing {
			return nil, errors.New("data.packing false: files of tokens have no documents to keep apart")
		}
		t, err := mapTokens(c.files, width, o.Vocab)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		s.closers = append(s.closers, t.close)
		return newPacked(t, o.SeqLen, c.info(t.size, t.fingerprint), what)
	}
	t, err := readText(ctx, c.files)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	info := c.info(t.tokens(), t.fingerprint)
	if o.Packing {
		return newPacked(t, o.SeqLen, info, what)
	}
	return newDocuments(t, o.SeqLen, info), nil
}

// Close gives files back. The datasets must not be used any more.
func (s *Set) Close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c())
	}
	s.closers = nil
	return errors.Join(errs...)
}
