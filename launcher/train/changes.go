package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/launcher/config"
)

// optimization lists the settings that a resumed run may change, and that make it
// train otherwise than it would have without the stop.
var optimization = []string{
	"train.max_steps", "train.epochs", "train.lr", "train.schedule", "train.warmup_steps", "train.warmup_ratio", "train.min_lr_ratio",
	"train.cycles", "train.power", "train.decay_steps", "train.decay_shape",
	"train.betas", "train.eps", "train.weight_decay", "train.max_grad_norm",
}

// tellChanges remarks upon the settings that are not those of the run which wrote the
// checkpoint, and what becomes of the learning rate. Rank 0 reads the file.
func (j *job) tellChanges(c recorded) {
	if j.rank() != 0 {
		return
	}
	old, err := configOf(c.Checkpoint)
	if err != nil {
		j.say("whether the optimizer's settings are the checkpoint's is not known: %v", err)
		return
	}
	list := changes(old, j.cfg)
	if len(list) == 0 {
		return
	}
	text := "settings that are not the checkpoint's: " + strings.Join(list, ", ")
	// The data is the same, and so is the global batch.
	was, err := newCourse(old.Train, steps(old, j.data.Train.Len(), j.share().Batch()))
	if err == nil && j.done < j.total && was.differs(j.course, j.done) {
		text += fmt.Sprintf(". The learning rate goes on as if they had been so from the start: step %d has %.3g, and would have had %.3g",
			j.done+1, j.course.at(j.done), was.at(j.done))
	}
	j.say("%s", text)
}

// differs says that the rates of two courses are not the same from a step on.
func (x course) differs(y course, from int) bool {
	for step := from; step < max(x.total, y.total); step++ {
		if x.at(step) != y.at(step) {
			return true
		}
	}
	return false
}

// changes are the settings of optimization that differ.
func changes(old, now *config.Config) (list []string) {
	was := old.Settings()
	for i, s := range now.Settings() { // both have all keys, in one order
		if slices.Contains(optimization, s.Key) && was[i].Value != s.Value {
			list = append(list, fmt.Sprintf("%s is %s, was %s", s.Key, s.Value, was[i].Value))
		}
	}
	return list
}
