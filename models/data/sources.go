package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/models/data/rows"
	"github.com/gorun-dev/gorun/runtime/mapped"
)

// complete checks the options of samples and fills in what is not given.
func (o Options) complete() (Options, error) {
	o.TrainOn, o.BadRows = cmp.Or(o.TrainOn, "assistant"), cmp.Or(o.BadRows, "error")
	o.Patience = cmp.Or(o.Patience, 10*time.Minute)
	if o.Truncation == "" {
		o.Truncation = "cut"
		if strings.HasPrefix(o.Format, "text") {
			o.Truncation = "split"
		}
	}
	if o.Tell == nil {
		o.Tell = func(string) {}
	}
	for _, x := range []struct{ key, value, want string }{
		{"train_on", o.TrainOn, "assistant, last, all"}, {"bad_rows", o.BadRows, "error, skip"}, {"truncation", o.Truncation, "cut, drop, split, error"},
	} {
		if !strings.Contains(", "+x.want+", ", ", "+x.value+", ") {
			return o, fmt.Errorf("data.%s %q: want one of %s", x.key, x.value, x.want)
		}
	}
	switch {
	case o.Encoding.Tokenizer == nil:
		return o, fmt.Errorf("data.format %s needs a tokenizer", o.Format)
	case o.Encoding.Tokenizer.VocabSize() > o.Vocab:
		return o, fmt.Errorf("the tokenizer has ids up to %d, and the model's vocabulary ends at %d: they do not belong together",
			o.Encoding.Tokenizer.VocabSize()-1, o.Vocab-1)
	case o.Encoding.Template == nil && (o.Format == "chat" || o.Format == "sharegpt"):
		return o, fmt.Errorf("data.format %s: %w", o.Format, rows.ErrNoTemplate)
	case o.Cache == "":
		return o, errors.New("data.cache: no folder for the tokens")
	case o.MaxBytes > 0:
		return o, fmt.Errorf("data.max_bytes: files of data.format %s are read as a whole; leave the key out", o.Format)
	case len(o.Weights) > 0 && len(o.Weights) != len(o.Train):
		return o, fmt.Errorf("data.weights has %d numbers, and data.train %d entries: each entry has its weight", len(o.Weights), len(o.Train))
	case o.Format == "mixed" && o.Fields != Fields{}:
		return o, errors.New("data.fields: rows of data.format mixed are told by their fields' names; give the format, or leave data.fields out")
	}
	if name := o.Fields.Unread(o.Format); name != "" {
		return o, fmt.Errorf("data.fields.%s: rows of data.format %s have no such field; leave the key out", name, o.Format)
	}
	return o, nil
}

// openSamples opens data of samples.
func openSamples(ctx context.Context, o Options) (*Set, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	train, eval, err := o.sources()
	if err != nil {
		return nil, err
	}
	s := new(Set)
	if err := s.openSamples(ctx, o, train, eval); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// sources finds the files of each entry; no file is in two.
func (o Options) sources() (train, eval []source, err error) {
	taken := map[string]bool{}
	for _, entry := range o.Eval {
		s, err := newSource(entry, 1, taken)
		if err != nil {
			return nil, nil, fmt.Errorf("data.eval: %w", err)
		}
		eval = append(eval, s)
	}
	for i, entry := range o.Train {
		weight := 1.0
		if len(o.Weights) > 0 {
			weight = o.Weights[i]
		}
		s, err := newSource(entry, weight, taken)
		if err != nil {
			return nil, nil, fmt.Errorf("data.train: %w", err)
		}
		if len(s.files) == 0 {
			return nil, nil, fmt.Errorf("data.train: data.eval or an earlier entry names all files of %s, so that none is left to train on", entry)
		}
		train = append(train, s)
	}
	if len(train) == 0 {
		return nil, nil, errors.New("data.train names no files")
	}
	return train, eval, nil
}

func newSource(entry string, weight float64, taken map[string]bool) (s source, err error) {
	files, empty, err := find([]string{entry})
	s = source{name: entry, weight: weight, empty: empty}
	for _, f := range files {
		if !taken[f.real] {
			taken[f.real] = true
			s.files = append(s.files, f)
		}
	}
	return s, err
}

// openSamples opens the stores, and chooses what is trained and evaluated on.
func (s *Set) openSamples(ctx context.Context, o Options, train, eval []source) error {
	forTrain, err := s.openStores(ctx, o, train)
	if err != nil {
		return fmt.Errorf("data.train: %w", err)
	}
	forEval, err := s.openStores(ctx, o, eval)
	if err != nil {
		return fmt.Errorf("data.eval: %w", err)
	}
	if o.EvalSplit > 0 {
		for i, x := range forTrain {
			var held selection
			forTrain[i], held = x.split(o.EvalSplit, o.Seed)
			held.source.weight, held.held = 1, true
			forEval = append(forEval, held)
		}
		if total(forTrain) == 0 || total(forEval) == 0 {
			return fmt.Errorf("data.eval_split %g holds back %d samples and leaves %d to train on; change it, or name files in data.eval",
				o.EvalSplit, total(forEval), total(forTrain))
		}
	}
	if s.Train, err = o.sequences("data.train", forTrain); err != nil {
		return err
	}
	if len(forEval) > 0 {
		s.Eval, err = o.sequences("evaluation", forEval)
	}
	return err
}

func total(all []selection) (n int) {
	for _, s := range all {
		n += len(s.samples)
	}
	return n
}

func (s *Set) openStores(ctx context.Context, o Options, sources []source) (chosen []selection, err error) {
	for _, x := range sources {
		st, err := o.openSource(ctx, x)
		if err != nil {
			return nil, err
		}
		s.closers = append(s.closers, st.Close)
		chosen = append(chosen, all(st, x))
	}
	return chosen, nil
}

// sequences makes the dataset of the chosen samples.
func (o Options) sequences(what string, chosen []selection) (d Dataset, err error) {
	defer mapped.Shortened(o.Cache, debug.SetPanicOnFault(true), &err)
	p := &plan{o: o}
	for _, s := range chosen {
		if err := p.add(s); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	return p.dataset(what)
}
