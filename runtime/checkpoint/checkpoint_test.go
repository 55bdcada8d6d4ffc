package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that names %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not name %q", err, p)
		}
	}
}

func content(b string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, b)
		return err
	}
}

// publish makes a checkpoint of two files whose content tells the step.
func publishStep(t *testing.T, root string, step int64) *Checkpoint {
	t.Helper()
	c, err := tryPublish(root, step, fmt.Sprint("content of ", step))
	must(t, err)
	return c
}

func tryPublish(root string, step int64, text string) (*Checkpoint, error) {
	d, err := Begin(root, step)
	if err != nil {
		return nil, err
	}
	defer d.Discard()
	for _, name := range []string{"a.bin", "b.bin"} {
		if err := d.WriteFile(name, content(name+" "+text)); err != nil {
			return nil, err
		}
	}
	return d.Publish(map[string]int64{"step": step})
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("%s holds %v, want %v", dir, got, want)
	}
}

func TestPublishAndOpen(t *testing.T) {
	root := filepath.Join(t.TempDir(), "not", "there", "yet")
	made := publishStep(t, root, 100)
	wantNames(t, root, lockName, "step-00000100")
	wantNames(t, made.Dir, "a.bin", "b.bin", manifestName)
	for _, open := range []func(string) (*Checkpoint, error){Open, Inspect} {
		c, err := open(made.Dir)
		must(t, err)
		if c.Step != 100 || !slices.Equal(c.Files, made.Files) || c.Files[0].Name != "a.bin" {
			t.Errorf("opened %+v, published %+v", c, made)
		}
		var meta map[string]int64
		must(t, c.Meta(&meta))
		if meta["step"] != 100 {
			t.Errorf("metadata %v", meta)
		}
		path, err := c.Path("a.bin")
		must(t, err)
		b, err := os.ReadFile(path)
		must(t, err)
		if string(b) != "a.bin content of 100" {
			t.Errorf("a.bin holds %q", b)
		}
		_, err = c.Path("x")
		wantErr(t, err, "no file x")
	}
}

// The checksum is the CRC32C of the standards: its check value is known.
func TestChecksum(t *testing.T) {
	d, err := Begin(t.TempDir(), 0)
	must(t, err)
	defer d.Discard()
	must(t, d.WriteFile("f", func(w io.Writer) error { // in pieces
		return errors.Join(content("1234")(w), content("56789")(w))
	}))
	want := Entry{"f", 9, 0xe3069283}
	if e := d.Entries(); len(e) != 1 || e[0] != want {
		t.Fatalf("entries %v, want %v", e, want)
	}
	b, err := json.Marshal(want)
	must(t, err)
	if string(b) != `{"name":"f","size":9,"checksum":"crc32c:e3069283"}` {
		t.Errorf("as JSON: %s", b)
	}
	var back Entry
	must(t, json.Unmarshal(b, &back))
	if back != want {
		t.Errorf("back from JSON: %v", back)
	}
	for _, bad := range []string{"", "e3069283", "crc32c:E3069283", "crc32c:e3069283 ", "crc32c:123"} {
		if err := new(Checksum).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("took %q for a checksum", bad)
		}
	}
}

// Every flipped bit and every truncation of every file is found, and the error
// names the file.
func TestDamageIsFound(t *testing.T) {
	c := publishStep(t, t.TempDir(), 7)
	for _, name := range names(t, c.Dir) {
		path := filepath.Join(c.Dir, name)
		good, err := os.ReadFile(path)
		must(t, err)
		damage := func(what string, b []byte) {
			must(t, os.WriteFile(path, b, 0o644))
			if _, err := Open(c.Dir); err == nil {
				t.Errorf("%s: %s was not found", name, what)
			} else if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), c.Dir) {
				t.Errorf("%s: %s gives %v", name, what, err)
			}
		}
		for i := range good {
			for bit := range 8 {
				bad := bytes.Clone(good)
				bad[i] ^= 1 << bit
				damage(fmt.Sprintf("flipped bit %d of byte %d", bit, i), bad)
			}
			damage(fmt.Sprintf("truncation to %d", i), good[:i])
		}
		damage("an appended byte", append(bytes.Clone(good), ' '))
		must(t, os.Remove(path))
		if _, err := Open(c.Dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: absence gives %v", name, err)
		}
		must(t, os.WriteFile(path, good, 0o644))
	}
	_, err := Open(c.Dir)
	must(t, err)
}

func TestDamageErrorsSayAll(t *testing.T) {
	root := t.TempDir()
	c := publishStep(t, root, 7)
	must(t, os.WriteFile(filepath.Join(c.Dir, "a.bin"), []byte("A.bin content of 7"), 0o644))
	must(t, os.WriteFile(filepath.Join(c.Dir, "b.bin"), []byte("B.bin content of 7"), 0o644))
	_, err := Open(c.Dir)
	wantErr(t, err, "a.bin is damaged", "b.bin is damaged", c.Files[0].Checksum.String(), "found crc32c:", "18 bytes")
	must(t, os.Truncate(filepath.Join(c.Dir, "a.bin"), 3))
	_, err = Inspect(c.Dir)
	wantErr(t, err, "a.bin has 3 bytes, 18 were written")
	renamed := filepath.Join(root, folder(8))
	must(t, os.Rename(c.Dir, renamed))
	_, err = Open(renamed)
	wantErr(t, err, "step 7", "renamed")
	_, err = Open(filepath.Join(root, "nothing"))
	wantErr(t, err, "nothing", "no such folder")
}

func TestNewestSkipsTheDamaged(t *testing.T) {
	root := t.TempDir()
	if _, _, err := Newest(root, nil); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	if _, _, err := Newest(filepath.Join(root, "absent"), nil); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	for _, step := range []int64{99999999, 100000000, 5, 200} { // order of number, not of text
		publishStep(t, root, step)
	}
	must(t, os.WriteFile(filepath.Join(root, "step-00000009"), nil, 0o644)) // no folder
	refs, err := List(root)
	must(t, err)
	if len(refs) != 4 || refs[0].Step != 5 || refs[3].Step != 100000000 {
		t.Errorf("list %v", refs)
	}
	c, broken, err := Newest(root, nil)
	must(t, err)
	if c.Step != 100000000 || len(broken) != 0 {
		t.Errorf("newest %d, broken %v", c.Step, broken)
	}
	must(t, os.Remove(filepath.Join(refs[3].Dir, "a.bin")))
	must(t, os.WriteFile(filepath.Join(refs[2].Dir, "b.bin"), make([]byte, 25), 0o644))
	c, broken, err = Newest(root, nil)
	must(t, err)
	if c.Step != 200 || len(broken) != 2 || broken[0].Step != 100000000 || broken[1].Step != 99999999 {
		t.Fatalf("newest %d, broken %v", c.Step, broken)
	}
	wantErr(t, broken[0].Err, "a.bin", "no such file")
	wantErr(t, broken[1].Err, "b.bin")
	for _, r := range refs[:2] {
		must(t, os.Remove(filepath.Join(r.Dir, manifestName)))
	}
	if _, broken, err = Newest(root, nil); !errors.Is(err, ErrNone) || len(broken) != 4 {
		t.Errorf("%d broken, %v", len(broken), err)
	}
}

func TestSeveralWriters(t *testing.T) {
	const ranks = 4
	root := t.TempDir()
	d, err := Begin(root, 1)
	must(t, err)
	defer d.Discard()
	sent := make([][]byte, ranks)
	var wg sync.WaitGroup
	for rank := range ranks {
		wg.Go(func() {
			w, err := Join(d.Path())
			if err != nil {
				t.Error(err)
				return
			}
			var inner sync.WaitGroup
			for i := range 3 { // and several at once within a rank
				inner.Go(func() {
					name := fmt.Sprintf("rank-%d-%d", rank, i)
					if err := w.WriteFile(name, content(strings.Repeat(name, 1000))); err != nil {
						t.Error(err)
					}
				})
			}
			inner.Wait()
			sent[rank], err = json.Marshal(w.Entries())
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	must(t, d.WriteFile("shared", content("x")))
	var others [][]Entry
	for _, b := range sent {
		var e []Entry
		must(t, json.Unmarshal(b, &e))
		others = append(others, e)
	}

	_, err = d.Publish(nil, others[1:]...)
	wantErr(t, err, "no rank has reported", "rank-0-0, rank-0-1, rank-0-2")
	_, err = d.Publish(nil, append(others, others[0])...)
	wantErr(t, err, "two ranks", "rank-0-0")
	_, err = d.Publish(nil, append(others, []Entry{{"elsewhere", 3, 0}})...)
	wantErr(t, err, "elsewhere", "share this folder")
	_, err = d.Publish(nil, append(others, []Entry{{"../x", 3, 0}})...)
	wantErr(t, err, "not a plain file name")
	c, err := d.Publish(nil, others...)
	must(t, err)
	if len(c.Files) != ranks*3+1 {
		t.Errorf("%d files", len(c.Files))
	}
	_, err = Open(c.Dir)
	must(t, err)
	_, err = d.Publish(nil)
	wantErr(t, err, "has been published")

	_, err = Join(d.Path())
	wantErr(t, err, "this host does not see", "share")
	_, err = Join(c.Dir)
	wantErr(t, err, "not the folder of a draft")
}

func TestBadNamesAreRefused(t *testing.T) {
	d, err := Begin(t.TempDir(), 1)
	must(t, err)
	defer d.Discard()
	for _, name := range []string{"", ".", "..", "a/b", "/a", "../a", manifestName, "\xff"} {
		if err := d.WriteFile(name, content("x")); err == nil {
			t.Errorf("took the name %q", name)
		}
	}
	must(t, d.WriteFile("a", content("x")))
	wantErr(t, d.WriteFile("a", content("y")), "exists")
	if len(d.Entries()) != 1 {
		t.Errorf("entries %v", d.Entries())
	}
	for _, step := range []int64{-1, 1e18} {
		_, err := Begin(t.TempDir(), step)
		wantErr(t, err, "step")
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, root := range []string{file, filepath.Join(file, "below")} {
		_, err := Begin(root, 1)
		wantErr(t, err, file)
	}
}

func TestFailedFileLeavesNothing(t *testing.T) {
	root := t.TempDir()
	d, err := Begin(root, 1)
	must(t, err)
	boom := errors.New("boom")
	err = d.WriteFile("a", func(w io.Writer) error { return errors.Join(content("half")(w), boom) })
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	wantNames(t, d.Path())
	must(t, d.Discard())
	must(t, d.Discard())
	wantNames(t, root, lockName)
}

func TestSameStepAgainReplaces(t *testing.T) {
	root := t.TempDir()
	publishStep(t, root, 100)
	c, err := tryPublish(root, 100, "second")
	must(t, err)
	wantNames(t, root, lockName, "step-00000100")
	c, err = Open(c.Dir)
	must(t, err)
	if want := int64(len("a.bin second")); c.Files[0].Size != want {
		t.Errorf("a.bin has %d bytes, want %d", c.Files[0].Size, want)
	}
}

func TestOneWriterAtATime(t *testing.T) {
	root := t.TempDir()
	d, err := Begin(root, 1)
	must(t, err)
	_, err = Begin(root, 2)
	if !errors.Is(err, ErrBusy) {
		t.Fatalf("a second draft: %v", err)
	}
	wantErr(t, err, root, fmt.Sprint("process ", os.Getpid()))
	must(t, d.Discard())
	publishStep(t, root, 2)
	publishStep(t, root, 3)
}
