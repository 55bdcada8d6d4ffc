package data

import (
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/models"
)

// A choice is the files of one dataset.
type choice struct {
	files []file
	empty int
}

func (c *choice) info(tokens int64, fingerprint uint64) Info {
	i := Info{Files: len(c.files), EmptyFiles: c.empty, Tokens: tokens, Fingerprint: fingerprint}
	for _, f := range c.files {
		i.Bytes += f.size()
	}
	return i
}

// selectFiles finds the files of training and of evaluation; no byte is in both.
// eval is nil where nothing is to be evaluated on. width is the size of a token,
// at whose multiples files are cut.
func selectFiles(o Options, width int) (train, eval *choice, err error) {
	train = new(choice)
	if train.files, train.empty, err = find(o.Train); err != nil {
		return nil, nil, fmt.Errorf("data.train: %w", err)
	}
	if len(train.files) == 0 {
		return nil, nil, fmt.Errorf("data.train names no files")
	}
	switch {
	case len(o.Eval) > 0:
		eval = new(choice)
		if eval.files, eval.empty, err = find(o.Eval); err != nil {
			return nil, nil, fmt.Errorf("data.eval: %w", err)
		}
		train.files = without(train.files, eval.files)
		if len(train.files) == 0 {
			return nil, nil, fmt.Errorf("data.eval names all files that data.train names (%d), so that none is left to train on", len(eval.files))
		}
	case o.EvalSplit > 0:
		eval = new(choice)
		train.files, eval.files = split(train.files, o.EvalSplit, width)
		if len(eval.files) == 0 || len(train.files) == 0 {
			return nil, nil, fmt.Errorf("data.eval_split %g holds back %d of %d files and leaves %d to train on; change it, or name files in data.eval",
				o.EvalSplit, len(eval.files), len(eval.files)+len(train.files), len(train.files))
		}
	}
	train.files = limit(train.files, o.MaxBytes, width)
	if eval != nil {
		eval.files = limit(eval.files, o.MaxBytes, width)
	}
	return train, eval, nil
}

// without returns the files that are not in drop.
func without(files, drop []file) []file {
	dropped := map[string]bool{}
	for _, f := range drop {
		dropped[f.real] = true
	}
	return slices.DeleteFunc(files, func(f file) bool { return dropped[f.real] })
}

// split holds back the share of files whose names hash below it, or the last
// part of a single file.
func split(files []file, share float64, width int) (train, eval []file) {
	if len(files) == 1 {
		f := files[0]
		at := f.from + multiple(f.size()-int64(share*float64(f.size())), width)
		head, tail := f, f
		head.to, tail.from = at, at
		if head.size() > 0 {
			train = append(train, head)
		}
		if tail.size() > 0 {
			eval = append(eval, tail)
		}
		return train, eval
	}
	for _, f := range files {
		if hash(f) < share {
			eval = append(eval, f)
		} else {
			train = append(train, f)
		}
	}
	return train, eval
}

// limit keeps files, in the order of their hashes, until they hold max bytes;
// the last is cut. The order of the list stays.
func limit(files []file, max int64, width int) []file {
	if max <= 0 {
		return files
	}
	byHash := make([]int, len(files))
	for i := range byHash {
		byHash[i] = i
	}
	slices.SortFunc(byHash, func(a, b int) int {
		if ha, hb := hash(files[a]), hash(files[b]); ha != hb {
			if ha < hb {
				return -1
			}
			return 1
		}
		return a - b
	})
	var keep []int
	kept := slices.Clone(files)
	for _, i := range byHash {
		n := min(files[i].size(), multiple(max, width))
		if n == 0 {
			break
		}
		kept[i].to = kept[i].from + n
		max -= n
		keep = append(keep, i)
	}
	slices.Sort(keep)
	for at, i := range keep {
		kept[at] = kept[i]
	}
	return kept[:len(keep)]
}

// multiple rounds n down to a multiple of width.
func multiple(n int64, width int) int64 { return n - n%int64(width) }

// hash is a number in [0, 1) that a file's name alone decides.
func hash(f file) float64 { return models.NewRand(0, f.rel).Float64(0) }
