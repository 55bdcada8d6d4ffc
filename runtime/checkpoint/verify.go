package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
)

// ErrNone: no checkpoint verifies.
var ErrNone = errors.New("no complete checkpoint")

// Checkpoint is a published checkpoint.
type Checkpoint struct {
	Dir   string
	Step  int64
	Files []Entry // in order of name
	meta  json.RawMessage
}

// Meta decodes the metadata that was given to Publish.
func (c *Checkpoint) Meta(into any) error {
	if err := json.Unmarshal(c.meta, into); err != nil {
		return fmt.Errorf("checkpoint: the metadata of %s: %w", c.Dir, err)
	}
	return nil
}

// Path is the path of one of the checkpoint's files.
func (c *Checkpoint) Path(name string) (string, error) {
	if !slices.ContainsFunc(c.Files, func(e Entry) bool { return e.Name == name }) {
		return "", fmt.Errorf("checkpoint: %s has no file %s", c.Dir, name)
	}
	return filepath.Join(c.Dir, name), nil
}

// Inspect reads the manifest and checks that every file is there in its full size.
// It does not read the files: for ranks that rely on another's Open, and for lists.
func Inspect(dir string) (*Checkpoint, error) {
	c, err := inspect(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
	}
	return c, nil
}

func inspect(dir string) (*Checkpoint, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	if step, ok := stepOf(filepath.Base(dir)); ok && step != m.Step {
		return nil, fmt.Errorf("the manifest is of step %d: the folder was renamed", m.Step)
	}
	if err := checkSizes(dir, m.Files); err != nil {
		return nil, err
	}
	return &Checkpoint{Dir: dir, Step: m.Step, Files: m.Files, meta: m.Meta}, nil
}

// checkSizes names every file that is missing or of another size.
func checkSizes(dir string, files []Entry) error {
	var errs []error
	for _, e := range files {
		st, err := os.Lstat(filepath.Join(dir, e.Name))
		switch {
		case err != nil:
			errs = append(errs, err)
		case !st.Mode().IsRegular():
			errs = append(errs, fmt.Errorf("%s is not a regular file", e.Name))
		case st.Size() != e.Size:
			errs = append(errs, fmt.Errorf("%s has %d bytes, %d were written", e.Name, st.Size(), e.Size))
		}
	}
	return errors.Join(errs...)
}

// Open is Inspect, and Verify of every file.
func Open(dir string) (*Checkpoint, error) { return open(dir, nil) }

func open(dir string, moved Moved) (*Checkpoint, error) {
	c, err := Inspect(dir)
	if err != nil {
		return nil, err
	}
	return c, c.Verify(c.Files, moved)
}

// Moved, where it is not nil, is told of bytes that were read or written, as that goes
// on, from any goroutine: whoever waits can tell slow from stuck.
type Moved func(bytes int)

// Verify reads the given ones of the checkpoint's files and compares them with the
// manifest. The error names each damaged file, with the checksums and sizes expected
// and found.
func (c *Checkpoint) Verify(files []Entry, moved Moved) error {
	errs := make([]error, len(files)) // in order of file, whichever is read first
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, e := range files {
		g.Go(func() error {
			errs[i] = verify(c.Dir, e, moved)
			return nil
		})
	}
	g.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.Dir, err)
	}
	return nil
}

// Share deals the files out to ranks that verify them together: about as many bytes
// to each, every file to one of them.
func (c *Checkpoint) Share(rank, ranks int) (mine []Entry) {
	files := slices.SortedStableFunc(slices.Values(c.Files), func(a, b Entry) int { return cmp.Compare(b.Size, a.Size) })
	dealt := make([]int64, ranks)
	for _, e := range files {
		least := slices.Index(dealt, slices.Min(dealt))
		dealt[least] += e.Size
		if least == rank {
			mine = append(mine, e)
		}
	}
	return mine
}

func verify(dir string, want Entry, moved Moved) error {
	f, err := os.Open(filepath.Join(dir, want.Name))
	if err != nil {
		return err
	}
	defer f.Close()
	sum := &summer{w: io.Discard, moved: moved}
	if _, err := io.CopyBuffer(sum, onlyReader{f}, make([]byte, 1<<20)); err != nil {
		return fmt.Errorf("%s: after %d bytes of %d: %w", want.Name, sum.size, want.Size, err)
	}
	if sum.crc != want.Checksum || sum.size != want.Size {
		return fmt.Errorf("%s is damaged: found %s over %d bytes, expected %s over %d",
			want.Name, sum.crc, sum.size, want.Checksum, want.Size)
	}
	return nil
}

// onlyReader hides what would make io.CopyBuffer ignore its large buffer.
type onlyReader struct{ io.Reader }

// Broken is a published folder that does not verify.
type Broken struct {
	Ref
	Err error
}

// Newest opens the newest checkpoint under root that verifies. It also returns the
// newer ones that do not, newest first, with the reason. Without any that verifies
// the error is ErrNone.
func Newest(root string, moved Moved) (*Checkpoint, []Broken, error) {
	refs, err := List(root)
	if err != nil {
		return nil, nil, err
	}
	var broken []Broken
	for _, r := range slices.Backward(refs) {
		c, err := open(r.Dir, moved)
		if err == nil {
			return c, broken, nil
		}
		broken = append(broken, Broken{r, err})
	}
	return nil, broken, fmt.Errorf("checkpoint: %w under %s", ErrNone, root)
}
