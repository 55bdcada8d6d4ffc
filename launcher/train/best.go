package train

import (
	"fmt"
	"math"
	"path/filepath"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
)

// saveBest says that the step just made is the best so far, and to be kept as such.
func (j *job) saveBest() bool {
	return j.cfg.Checkpoint.Best && j.evals.Best != nil && j.evals.Best.Step == j.done
}

// bestOf finds the checkpoint under root with the lowest validation loss on the given
// data, the earliest of equals. It is nil where none was evaluated. What a checkpoint
// says of itself counts, and nothing beside it: a job that is killed at any moment, and
// one that goes on, find what there is.
func bestOf(root, data string) (*evaluated, error) {
	refs, err := checkpoint.List(root)
	if err != nil {
		return nil, err
	}
	var best *evaluated
	for _, r := range refs {
		c, err := checkpoint.Inspect(r.Dir)
		if err != nil {
			continue // damaged: it cannot be gone back to, and whoever resumes hears of it
		}
		var s state
		if err := c.Meta(&s); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Dir, err)
		}
		e := s.Evaluations
		if e.Data != data || e.Last == nil || e.Last.Step != s.Step || math.IsNaN(float64(e.Last.Loss)) {
			continue
		}
		if best == nil || e.Last.Loss < best.Loss {
			best = e.Last
		}
	}
	return best, nil
}

// prune removes the checkpoints under root that are not to be kept. data is what the
// newest was evaluated on.
func prune(root string, c config.Checkpoint, data string, moved checkpoint.Moved) error {
	if c.Keep == 0 {
		return nil
	}
	var stay []int64
	if c.Best {
		best, err := bestOf(root, data)
		if err != nil {
			return err
		}
		if best != nil {
			stay = append(stay, int64(best.Step))
		}
	}
	_, err := checkpoint.Prune(root, c.Keep, moved, stay...)
	return err
}

// result is the checkpoint that the job's model folder is made of: the last, or with
// checkpoint.best the best, whose line for the summary comes with it. One that was
// written a while ago is read through before a model is made of it.
func (j *job) result(moved checkpoint.Moved) (dir, line string, err error) {
	last := j.checkpointPath(j.done)
	if !j.cfg.Checkpoint.Best {
		return last, "", nil
	}
	best, err := bestOf(j.checkpoints(), j.evals.Data)
	if err != nil || best == nil {
		return last, "", err
	}
	dir = j.checkpointPath(best.Step)
	if dir != last && j.cfg.Checkpoint.Export && j.early == "" {
		c, err := checkpoint.Inspect(dir)
		if err == nil {
			err = c.Verify(c.Files, moved)
		}
		if err != nil {
			return "", "", fmt.Errorf("the best checkpoint is to be exported (checkpoint.best): %w; gorun export %s --output DIR makes a model folder of the last", err, last)
		}
	}
	return dir, fmt.Sprintf("%s, validation loss %.4f", filepath.Clean(dir), float64(best.Loss)), nil
}
