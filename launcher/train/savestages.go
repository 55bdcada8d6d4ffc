package train

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// report is what a rank has written.
type report struct {
	Files  []checkpoint.Entry `json:"files"`
	Pieces []written          `json:"pieces"`
	Stood  time.Duration      `json:"stood"` // its training, where steps are made beside
	Wrote  time.Duration      `json:"wrote"` // how long it wrote
}

// written is a piece of a tensor in a file.
type written struct {
	Tensor string           `json:"tensor"`
	Shape  []int            `json:"shape"`
	Own    bool             `json:"own,omitempty"` // the rank's alone
	Piece  checkpoint.Piece `json:"piece"`
}

// reached tells tests how far a rank's save has come, so that they can hold or kill it
// there.
var reached = func(rank, step int, what string) {}

// begin makes rank 0's draft, and returns its folder.
func (s *saving) begin(rank int) (path []byte, err error) {
	if rank != 0 {
		return nil, nil
	}
	begun := time.Now()
	if s.draft, err = checkpoint.Begin(s.root, int64(s.step)); err != nil {
		return nil, err
	}
	s.worked = time.Since(begun)
	return []byte(s.draft.Path()), nil
}

// writeShare writes this rank's files into the draft, and returns a report of them.
func (j *job) writeShare(ctx context.Context, p *part, s *saving, draft string) ([]byte, error) {
	reached(j.rank(), s.step, "writing")
	begun := time.Now()
	var w *checkpoint.Writer
	if j.rank() == 0 {
		w = &s.draft.Writer
	} else {
		var err error
		if w, err = checkpoint.Join(draft); err != nil {
			return nil, err
		}
	}
	r := report{Stood: s.stood}
	for _, f := range s.files {
		mine := f.written(j.rank())
		if len(mine) == 0 {
			continue
		}
		name := fileName(f.kind, j.rank(), j.size())
		var list []safetensors.Tensor
		for _, x := range mine {
			t := x.tensor(func(w io.Writer) error {
				if x.copied != nil {
					_, err := w.Write(x.copied)
					return err
				}
				return j.download(ctx, w, x)
			})
			list = append(list, t)
			r.Pieces = append(r.Pieces, written{x.name, x.shape, x.own, checkpoint.Piece{File: name, Name: t.Name, From: x.writes.from, To: x.writes.to}})
		}
		err := w.WriteFile(name, func(w io.Writer) error { return safetensors.Encode(paced{ctx, w, p}, list, nil) })
		if err != nil {
			return nil, err
		}
	}
	r.Files, r.Wrote = w.Entries(), time.Since(begun)
	reached(j.rank(), s.step, "written")
	return json.Marshal(r)
}

// publish makes a checkpoint of what all ranks have written, on rank 0.
func (j *job) publish(p *part, s *saving, reports [][]byte) error {
	if j.rank() != 0 {
		return nil
	}
	begun := time.Now()
	var index checkpoint.Index
	var others [][]checkpoint.Entry
	var files []checkpoint.Entry
	for rank, text := range reports {
		var r report
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("what rank %d has written: %w", rank, err)
		}
		for _, x := range r.Pieces {
			add := index.Add
			if x.Own {
				add = func(name, dtype string, shape []int, p checkpoint.Piece) error {
					return index.AddPrivate(rank, name, dtype, shape, p)
				}
			}
			if err := add(x.Tensor, "F32", x.Shape, x.Piece); err != nil {
				return err
			}
		}
		files = append(files, r.Files...)
		if rank > 0 {
			others = append(others, r.Files)
		}
		s.reports = append(s.reports, r)
	}
	for _, f := range s.files {
		for _, r := range f.pieces {
			if _, ok := index.Tensors[r.name]; !ok && !r.own {
				return fmt.Errorf("no rank has written %s", r.name)
			}
		}
	}
	text, err := index.Encode(files)
	if err != nil {
		return err
	}
	if err := s.draft.WriteFile(checkpoint.IndexName, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return err
	}
	if err := s.draft.WriteFile(configFile, j.writeConfig); err != nil {
		return err
	}
	if _, err := s.draft.Publish(s.meta, others...); err != nil {
		return err
	}
	s.took, s.worked = time.Since(s.begun), s.worked+time.Since(begun)
	reached(0, s.step, "published")
	s.pruning = prune(s.root, j.cfg.Checkpoint, s.meta.Evaluations.Data, p.count)
	return nil
}

// discard removes what there is of the draft.
func (s *saving) discard() error {
	if s.draft == nil {
		return nil // of another rank, or never begun
	}
	return s.draft.Discard()
}
