package checkpoint

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gorun-dev/gorun/runtime/publish"
)

// Writer writes files into a draft. WriteFile may be called concurrently, for
// different names.
type Writer struct {
	dir string

	mu      sync.Mutex // guards entries
	entries []Entry
}

// Draft is a checkpoint in the making, held by the rank that will publish it.
type Draft struct {
	Writer
	root string
	step int64
	lock *os.File // nil once published or discarded
}

// Begin makes a temporary folder for the checkpoint of a step under root, which is
// created if need be. While a draft is open, no other can be begun under the same
// root, by this process or another (ErrBusy): end it with Publish or Discard.
func Begin(root string, step int64) (*Draft, error) {
	if step < 0 || len(folder(step)) > len("step-")+18 {
		return nil, fmt.Errorf("checkpoint: step %d is below 0 or has more than 18 digits", step)
	}
	if err := makeRoot(root); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	lock, err := lockRoot(root)
	if err != nil {
		return nil, err
	}
	d := &Draft{root: root, step: step, lock: lock}
	d.dir = filepath.Join(root, tempName(folder(step)))
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", errors.Join(err, lock.Close()))
	}
	reached("begun")
	return d, nil
}

// makeRoot creates root with its parents and makes their names last.
func makeRoot(root string) error {
	if st, err := os.Stat(root); err == nil && st.IsDir() {
		return nil
	}
	parent := filepath.Dir(root)
	if parent != root {
		if err := makeRoot(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return publish.Sync(parent)
}

func tempName(name string) string { return name + ".tmp-" + rand.Text()[:12] }

// Join lets another rank write into a draft, given the Path of its Draft.
func Join(path string) (*Writer, error) {
	if !temporary.MatchString(filepath.Base(path)) {
		return nil, fmt.Errorf("checkpoint: %s is not the folder of a draft", path)
	}
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: this host does not see the folder %s: checkpoints need an output folder that all hosts share (or the draft was discarded)", path)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("checkpoint: %s is not a folder", path)
	}
	return &Writer{dir: path}, nil
}

// Path is the draft's folder, for Join.
func (w *Writer) Path() string { return w.dir }

// Entries are the files that this writer has written, for Publish.
func (w *Writer) Entries() []Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.entries)
}

// WriteFile writes one file, with what fill writes, and syncs it to disk. The name
// is a plain one, without folders. A file that fails is removed again. What fill has
// written is on the disk soon: a Write returns when all but the last 160 MiB before it
// are.
func (w *Writer) WriteFile(name string, fill func(io.Writer) error) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	entry, err := writeFile(w.dir, name, fill)
	if err != nil {
		return fmt.Errorf("checkpoint: writing %s: %w", name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries = append(w.entries, entry)
	return nil
}

func writeFile(dir, name string, fill func(io.Writer) error) (_ Entry, err error) {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return Entry{}, err
	}
	reached("created " + name)
	sum := &summer{w: &behind{f: f, window: writeWindow, depth: writeDepth}}
	b := bufio.NewWriterSize(sum, 1<<20)
	if err = fill(b); err == nil {
		err = b.Flush()
	}
	reached("written " + name)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = fmt.Errorf("after %d bytes: %w", sum.size, errors.Join(err, os.Remove(path)))
		return Entry{}, err
	}
	reached("synced " + name)
	return Entry{Name: name, Size: sum.size, Checksum: sum.crc}, nil
}

// summer passes bytes on and keeps their number and checksum.
type summer struct {
	w     io.Writer
	size  int64
	crc   Checksum
	moved Moved
}

func (s *summer) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.size += int64(n)
	s.crc = Checksum(crc32.Update(uint32(s.crc), castagnoli, p[:n]))
	if s.moved != nil {
		s.moved(n)
	}
	return n, err
}

// Publish completes the checkpoint: it checks that the files of this writer and of
// the others are all there, writes the manifest with meta (anything that
// encoding/json takes), syncs, and gives the folder its name. From then on it
// counts; whenever it fails or the machine stops before, what was published earlier
// still does. A published checkpoint of the same step is replaced; on a file system that
// cannot exchange folders (NFS) a crash right between can leave none of that step.
//
// After an error the draft is still open: Discard it.
func (d *Draft) Publish(meta any, others ...[]Entry) (*Checkpoint, error) {
	if d.lock == nil {
		return nil, fmt.Errorf("checkpoint: the draft of step %d has been published or discarded", d.step)
	}
	c, err := d.publish(meta, others)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: publishing step %d from %s: %w", d.step, d.dir, err)
	}
	lock := d.lock
	d.lock = nil
	return c, lock.Close()
}

func (d *Draft) publish(meta any, others [][]Entry) (*Checkpoint, error) {
	files := d.Entries()
	for _, o := range others {
		files = append(files, o...)
	}
	slices.SortFunc(files, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	if err := checkFolder(d.dir, files); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(meta)
	if err != nil {
		return nil, fmt.Errorf("the metadata: %w", err)
	}
	text, err := encodeManifest(manifest{Version: manifestVersion, Step: d.step, Files: files, Meta: raw})
	if err != nil {
		return nil, err
	}
	_, err = writeFile(d.dir, manifestName, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	if err := publish.Sync(d.dir); err != nil {
		return nil, err
	}
	reached("folder synced")
	final := filepath.Join(d.root, folder(d.step))
	replaced, err := publish.Exchange(d.dir, final, filepath.Join(d.root, tempName(folder(d.step))))
	if err != nil {
		return nil, err
	}
	reached("renamed")
	if err := publish.Sync(d.root); err != nil {
		return nil, err
	}
	reached("root synced")
	if replaced != "" {
		if err := os.RemoveAll(replaced); err != nil {
			return nil, fmt.Errorf("published, but the checkpoint that it replaces could not be removed: %w", err)
		}
	}
	return &Checkpoint{Dir: final, Step: d.step, Files: files, meta: raw}, nil
}

// checkFolder holds the folder against the sorted entries: a file that is missing
// or of another size, reported twice, or reported by nobody.
func checkFolder(dir string, files []Entry) error {
	reported := map[string]bool{}
	for _, e := range files {
		if err := checkName(e.Name); err != nil {
			return err
		}
		if reported[e.Name] {
			return fmt.Errorf("two ranks report a file %s", e.Name)
		}
		reported[e.Name] = true
	}
	if err := checkSizes(dir, files); err != nil {
		return fmt.Errorf("%w; do all hosts share this folder?", err)
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var extra []string
	for _, f := range found {
		if !reported[f.Name()] {
			extra = append(extra, f.Name())
		}
	}
	if extra != nil {
		return fmt.Errorf("files that no rank has reported: %s", strings.Join(extra, ", "))
	}
	return nil
}

// Discard removes the draft and all that was written into it. It has no effect on a
// draft that is published or discarded.
func (d *Draft) Discard() error {
	if d.lock == nil {
		return nil
	}
	err := errors.Join(os.RemoveAll(d.dir), d.lock.Close())
	d.lock = nil
	if err != nil {
		return fmt.Errorf("checkpoint: discarding a draft: %w", err)
	}
	return nil
}
