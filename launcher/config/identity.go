package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
)

// A Setting is one key and its value, as text.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Settings lists the values of all keys, in the order of docs/config.md.
func (c *Config) Settings() []Setting {
	var all []Setting
	for _, f := range leaves {
		all = append(all, Setting{f.path, show(f.in(c))})
	}
	return all
}

// An Identity is what a resumed run must share with the run that wrote the
// checkpoint: otherwise it would not go on where that one stopped. A checkpoint
// stores it, so that a difference can be shown and not only detected.
type Identity []Setting

// Identity lists the settings that fix the weights' shapes and the samples of
// each step, for a job of world ranks. The number of ranks itself may change, as
// long as the global batch stays the same: its size stands here under the name
// global_batch, in sequences.
func (c *Config) Identity(world int) Identity {
	var id Identity
	for _, f := range leaves {
		if f.same {
			id = append(id, Setting{f.path, show(f.in(c))})
		}
	}
	batch := world * c.Train.MicroBatch * c.Train.GradAccum
	return append(id, Setting{"global_batch", strconv.Itoa(batch)})
}

// Hash is equal for equal identities: 64 hexadecimal digits.
func (id Identity) Hash() string {
	h := sha256.New()
	for _, s := range id {
		fmt.Fprintf(h, "%q=%q\n", s.Key, s.Value)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Diff says, a line each, how id, that of the job at hand, differs from the one
// stored in a checkpoint. Equal identities have no lines.
func (id Identity) Diff(stored Identity) []string {
	old := map[string]string{}
	for _, s := range stored {
		old[s.Key] = s.Value
	}
	var lines []string
	for _, s := range id {
		was, ok := old[s.Key]
		delete(old, s.Key)
		switch {
		case !ok:
			lines = append(lines, fmt.Sprintf("%s: the checkpoint does not say, now %s", s.Key, s.Value))
		case was != s.Value && s.Key == "global_batch":
			lines = append(lines, fmt.Sprintf("global_batch (train.micro_batch x train.grad_accum x ranks): %s in the checkpoint, now %s", was, s.Value))
		case was != s.Value:
			lines = append(lines, fmt.Sprintf("%s: %s in the checkpoint, now %s", s.Key, was, s.Value))
		}
	}
	for _, s := range stored {
		if was, ok := old[s.Key]; ok {
			lines = append(lines, fmt.Sprintf("%s: %s in the checkpoint, unknown now", s.Key, was))
		}
	}
	return lines
}
