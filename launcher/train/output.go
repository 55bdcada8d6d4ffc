package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
)

func (j *job) path(elem ...string) string {
	return filepath.Join(append([]string{j.cfg.Output}, elem...)...)
}

// exists reports whether there is something at path.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// jobFile names in the output folder the job whose checkpoints lie there.
const jobFile = ".gorun.job"

// begun says that the checkpoints in the output folder are of this job, from
// before its workers were started again.
func (j *job) begun() bool {
	id, err := os.ReadFile(j.path(jobFile))
	return err == nil && string(id) == os.Getenv("TORCHELASTIC_RUN_ID")
}

// claimOutput makes the output folder this job's, which goes on from the
// checkpoint from, or from none ("").
func (j *job) claimOutput(from string) error {
	if err := j.keepsItsInput(); err != nil {
		return err
	}
	if err := j.setAside(from); err != nil {
		return err
	}
	if err := os.MkdirAll(j.cfg.Output, 0o777); err != nil {
		return err
	}
	return os.WriteFile(j.path(jobFile), []byte(os.Getenv("TORCHELASTIC_RUN_ID")), 0o666)
}

// keepsItsInput makes sure that nothing which the job reads, now or when it goes on,
// lies in the folder export of its output: that is moved aside, and replaced at the end.
func (j *job) keepsItsInput() error {
	for _, in := range []struct{ key, path string }{
		{"model.path", j.cfg.Model.Path}, {"data.tokenizer", j.cfg.Data.Tokenizer}, {"data.template", j.cfg.Data.Template},
	} {
		dir, err := filepath.EvalSymlinks(in.path)
		if err == nil {
			dir, err = filepath.Abs(dir)
		}
		if in.path == "" || err != nil {
			continue // none, or a word such as bytes
		}
		for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if sameFolder(dir, j.path("export")) {
				return fmt.Errorf("%s: %s lies in the job's own output, in a folder that it replaces at its end: give another output, or move the folder", in.key, in.path)
			}
		}
	}
	return nil
}

// setAside moves what an earlier run left in the output folder, and this one does
// not go on from, to a folder old-N beside it: nothing is lost, and a later
// --resume does not take up what this run has left behind.
func (j *job) setAside(from string) error {
	var move []string
	if from == "" || !sameFolder(filepath.Dir(from), j.checkpoints()) {
		move = []string{"metrics.jsonl", "checkpoints", "samples", "trace.json", "tensorboard", "loss.png", "export"}
	} else {
		refs, err := checkpoint.List(j.checkpoints())
		if err != nil {
			return err
		}
		for _, r := range refs {
			if r.Step > int64(j.done) {
				move = append(move, filepath.Join("checkpoints", filepath.Base(r.Dir)))
			}
		}
	}
	move = slices.DeleteFunc(move, func(name string) bool { return !exists(j.path(name)) })
	if len(move) == 0 {
		return nil
	}
	var old string
	for n := 1; ; n++ {
		old = j.path(fmt.Sprintf("old-%d", n))
		if err := os.Mkdir(old, 0o777); err == nil {
			break
		} else if !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for _, name := range move {
		to := filepath.Join(old, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := os.Rename(j.path(name), to); err != nil {
			return err
		}
	}
	j.say("%s held an earlier run's %s: moved to %s", j.cfg.Output, strings.Join(move, ", "), old)
	return nil
}

func sameFolder(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
