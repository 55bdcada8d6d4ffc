package publish

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// draft is a temporary folder for final with a file that holds text.
func draft(t *testing.T, final, text string) string {
	t.Helper()
	dir, err := Temp(final)
	if err != nil {
		t.Fatal(err)
	}
	if err := File(filepath.Join(dir, "file"), []byte(text)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The new folder stands under its name, the one that it replaces is gone, and nothing
// is left beside it.
func TestFolder(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "made", "on the way")
	final := filepath.Join(parent, "model")
	for _, text := range []string{"first", "second"} {
		if err := Folder(draft(t, final, text), final); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(final, "file"))
		if err != nil || string(got) != text {
			t.Errorf("got %q, %v; want %q", got, err, text)
		}
		all, err := os.ReadDir(parent)
		if err != nil || len(all) != 1 {
			t.Errorf("beside the folder: %v, %v", all, err)
		}
	}
}

// A file is written once.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := File(path, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := File(path, []byte("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("again: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "first" {
		t.Errorf("it holds %q, %v", got, err)
	}
}

// What cannot be moved stays as it was.
func TestFolderFails(t *testing.T) {
	final := filepath.Join(t.TempDir(), "model")
	if err := Folder(draft(t, final, "kept"), final); err != nil {
		t.Fatal(err)
	}
	if err := Folder(filepath.Join(t.TempDir(), "missing"), final); err == nil {
		t.Error("a folder that does not exist was published")
	}
	if got, err := os.ReadFile(filepath.Join(final, "file")); err != nil || string(got) != "kept" {
		t.Errorf("what was there is now %q, %v", got, err)
	}
}

// Where the file system cannot exchange, the old folder steps aside, and comes back
// where the new one cannot take its place.
func TestMoveAside(t *testing.T) {
	parent := t.TempDir()
	final, aside := filepath.Join(parent, "model"), filepath.Join(parent, "aside")
	if err := Folder(draft(t, final, "first"), final); err != nil {
		t.Fatal(err)
	}
	holds := func(dir, want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", dir, got, err, want)
		}
	}
	second := draft(t, final, "second")
	if err := moveAside(second, final, aside); err != nil {
		t.Fatal(err)
	}
	holds(final, "second")
	holds(aside, "first")
	if err := os.RemoveAll(aside); err != nil {
		t.Fatal(err)
	}
	if err := moveAside(second, final, aside); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is gone: %v", err)
	}
	holds(final, "second")
}

// What a writer of the same folder has left, and that alone, is removed.
func TestClear(t *testing.T) {
	parent := t.TempDir()
	final := filepath.Join(parent, "model")
	if err := Clear(filepath.Join(parent, "missing", "model")); err != nil {
		t.Error(err)
	}
	draft(t, final, "left")
	draft(t, final, "left")
	other := draft(t, filepath.Join(parent, "model.tmp-2"), "another's")
	if err := Folder(draft(t, final, "kept"), final); err != nil {
		t.Fatal(err)
	}
	if err := Clear(final); err != nil {
		t.Error(err)
	}
	all, err := os.ReadDir(parent)
	if err != nil || len(all) != 2 || all[0].Name() != filepath.Base(other) || all[1].Name() != "model" {
		t.Errorf("there are %v, %v", all, err)
	}
}
