package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
)

// fill makes checkpoints and the damage that a case asks for.
func fill(t *testing.T, steps []int64, flipped, incomplete []int64) string {
	t.Helper()
	root := t.TempDir()
	for _, s := range steps {
		publishStep(t, root, s)
	}
	for _, s := range flipped { // same size: only a full read tells
		path := filepath.Join(root, folder(s), "b.bin")
		b, err := os.ReadFile(path)
		must(t, err)
		b[3] ^= 4
		must(t, os.WriteFile(path, b, 0o644))
	}
	for _, s := range incomplete {
		must(t, os.Remove(filepath.Join(root, folder(s), "a.bin")))
	}
	return root
}

func TestPrune(t *testing.T) {
	four := []int64{1, 2, 3, 4}
	for name, c := range map[string]struct {
		keep                int
		flipped, incomplete []int64
		stay                []int64
		want                []string
	}{
		"keeps the newest":                  {keep: 1, want: []string{"step-00000004"}},
		"keeps two":                         {keep: 2, want: []string{"step-00000003", "step-00000004"}},
		"keeps all":                         {keep: 9, want: []string{"step-00000001", "step-00000002", "step-00000003", "step-00000004"}},
		"never the newest complete":         {keep: 1, flipped: []int64{4}, want: []string{"step-00000003", "step-00000004"}},
		"two damaged ones in front":         {keep: 1, flipped: []int64{4}, incomplete: []int64{3}, want: []string{"step-00000002", "step-00000003", "step-00000004"}},
		"an incomplete one does not count":  {keep: 2, incomplete: []int64{3}, want: []string{"step-00000002", "step-00000004"}},
		"keeps one, and what is to stay":    {keep: 1, stay: []int64{2, 7}, want: []string{"step-00000002", "step-00000004"}},
		"what is to stay does not count":    {keep: 2, stay: []int64{1}, want: []string{"step-00000001", "step-00000003", "step-00000004"}},
		"the newest may stay":               {keep: 2, stay: []int64{4}, want: []string{"step-00000003", "step-00000004"}},
		"none complete: nothing is deleted": {keep: 1, flipped: []int64{1, 2}, incomplete: []int64{3, 4}, want: []string{"step-00000001", "step-00000002", "step-00000003", "step-00000004"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := fill(t, four, c.flipped, c.incomplete)
			deleted, err := Prune(root, c.keep, nil, c.stay...)
			must(t, err)
			wantNames(t, root, append([]string{lockName}, c.want...)...)
			if len(deleted)+len(c.want) != len(four) {
				t.Errorf("says that it deleted %v", deleted)
			}
		})
	}
	if _, err := Prune(t.TempDir(), 0, nil); err == nil {
		t.Error("took keep 0")
	}
	if d, err := Prune(filepath.Join(t.TempDir(), "absent"), 1, nil); err != nil || d != nil {
		t.Errorf("an absent root: %v, %v", d, err)
	}
}

// Temporary folders go when nobody writes, and only what is ours goes.
func TestPruneClearsTemporaryFolders(t *testing.T) {
	root := t.TempDir()
	publishStep(t, root, 1)
	stale := filepath.Join(root, tempName(folder(2)))
	must(t, os.Mkdir(stale, 0o755))
	must(t, os.WriteFile(filepath.Join(stale, "half"), nil, 0o644))
	for _, foreign := range []string{"step-3.tmp-x", "step-00000002.tmp", "notes"} {
		must(t, os.Mkdir(filepath.Join(root, foreign), 0o755))
	}
	d, err := Begin(root, 2)
	must(t, err)
	deleted, err := Prune(root, 1, nil)
	must(t, err)
	if len(deleted) != 0 {
		t.Errorf("deleted %v beside a writer", deleted)
	}
	must(t, d.WriteFile("a", content("x")))
	_, err = d.Publish(nil)
	must(t, err)
	_, err = Prune(root, 1, nil)
	must(t, err)
	wantNames(t, root, lockName, "notes", "step-00000002", "step-00000002.tmp", "step-3.tmp-x")
}
