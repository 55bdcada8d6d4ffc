package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/models/data/rows"
	"github.com/gorun-dev/gorun/models/data/store"
)

// A source is the files of one entry of data.train, or those of data.eval.
type source struct {
	name   string
	files  []file
	empty  int     // files that hold nothing
	weight float64 // how often its samples come in an epoch
}

// A build makes the store of a source: the rows are read by one goroutine and
// turned into tokens by several, and what they make is written in the rows' order.
type build struct {
	o      Options
	source source
	sums   [][sha256.Size]byte // of the files
	key    [sha256.Size]byte
	path   string

	work  chan *chunk // to those that encode
	order chan *chunk // the same, to the one that writes
	rows  int         // read, for those who watch
	told  time.Time
}

// A chunk is rows of one file, next to each other.
type chunk struct {
	file int
	rows []rows.Row
	done chan []encoded // has room: who encodes does not wait
}

// encoded is what becomes of one row.
type encoded struct {
	tokens []uint32
	err    error
}

// A chunk ends where it holds so many rows, or so many bytes.
const (
	chunkRows  = 256
	chunkBytes = 1 << 20
)

// openSource returns the store of a source: from the cache, or built now.
func (o Options) openSource(ctx context.Context, s source) (*store.Store, error) {
	b := &build{o: o, source: s, told: time.Now()}
	if err := b.identify(ctx); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Cache, 0o777); err != nil {
		return nil, fmt.Errorf("data.cache: %w; give a folder that can be written", err)
	}
	b.path = filepath.Join(o.Cache, hex.EncodeToString(b.key[:16])+".samples")
	if st, err := store.Open(b.path, b.key); err == nil {
		return st, nil // what else it may be shows again below
	}
	l, err := store.TakeLock(ctx, b.path+".lock", o.Patience, o.Tell)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return nil, fmt.Errorf("%w: the tokens are kept there; give data.cache a folder that this user can write", err)
	}
	if err != nil {
		return nil, err
	}
	// Somebody else may have made it while this process waited.
	st, err := b.cached()
	if st == nil && err == nil {
		if err = b.make(ctx, l); err == nil {
			st, err = store.Open(b.path, b.key)
		}
	}
	return st, errors.Join(err, l.Release())
}

// identify finds the key: a hash of all that the tokens follow from.
func (b *build) identify(ctx context.Context) error {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %+q %q %q %q %t\n", store.Magic, b.o.Format, b.o.Fields, b.o.TrainOn, b.o.BadRows, b.o.Encoding.ID, b.o.Encoding.Template != nil)
	for _, f := range b.source.files {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		sum, err := sumFile(f.path)
		if err != nil {
			return err
		}
		b.sums = append(b.sums, sum)
		h.Write(sum[:])
	}
	h.Sum(b.key[:0])
	return nil
}

func sumFile(path string) (sum [sha256.Size]byte, err error) {
	in, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer in.Close() // read only: nothing can be lost
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return sum, fmt.Errorf("%s: %w", path, err)
	}
	h.Sum(sum[:0])
	return sum, nil
}

// cached is the store where there is a good one, else nil.
func (b *build) cached() (*store.Store, error) {
	st, err := store.Open(b.path, b.key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, store.ErrDamaged):
		b.o.Tell(err.Error() + "; it is made anew")
		return nil, nil
	}
	return st, err
}

// make builds the store beside its place, and puts it there when it is whole. Only
// the owner of the lock does, so that what an earlier one has left is written over.
func (b *build) make(ctx context.Context, l *store.Lock) error {
	tmp := b.path + ".tmp"
	w, err := store.Create(tmp, b.key)
	if err != nil {
		return err
	}
	if err = b.run(ctx, w, l); err == nil {
		err = w.Finish()
	}
	if err = errors.Join(err, w.Close()); err == nil {
		err = os.Rename(tmp, b.path)
	}
	if err != nil {
		if gone := os.Remove(tmp); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return err
	}
	return nil
}

// run reads all rows and writes all samples.
func (b *build) run(ctx context.Context, w *store.Writer, l *store.Lock) (err error) {
	workers := runtime.GOMAXPROCS(0)
	b.work, b.order = make(chan *chunk), make(chan *chunk, 4*workers)
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	var unread error
	all.Go(func() { unread = b.read(ctx) })
	for range workers {
		all.Go(b.encode)
	}
	for c := range b.order {
		made := <-c.done
		if err != nil {
			continue // until the reader has noticed
		}
		if err = b.write(w, l, c, made); err != nil {
			stop()
		}
	}
	stop()
	all.Wait()
	if err == nil {
		err = unread
	}
	return err
}

// read hands out all rows in chunks. run starts it and waits for it: it ends behind
// the last file, or with ctx.
func (b *build) read(ctx context.Context) error {
	defer close(b.work)
	defer close(b.order)
	for i, f := range b.source.files {
		c := &chunk{file: i}
		size := 0
		send := func() error {
			if len(c.rows) == 0 {
				return nil
			}
			c.done = make(chan []encoded, 1)
			select {
			case b.order <- c:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			b.work <- c // those that encode never stop before this channel is closed
			c, size = &chunk{file: i}, 0
			return nil
		}
		h := sha256.New()
		err := b.reader()(f.path, h, func(r rows.Row) error {
			c.rows = append(c.rows, r)
			if size += len(r.Raw); len(c.rows) < chunkRows && size < chunkBytes {
				return nil
			}
			return send()
		})
		if err == nil {
			err = send()
		} else if ctx.Err() == nil {
			err = errors.Join(send(), err) // what is wrong in the rows before it is said first
		}
		if err != nil {
			return err
		}
		if [sha256.Size]byte(h.Sum(nil)) != b.sums[i] {
			return fmt.Errorf("%s: changed while it was read", f.path)
		}
	}
	return nil
}

// reader is how the files' rows are found.
func (b *build) reader() func(path string, sum io.Writer, each func(rows.Row) error) error {
	if b.o.Format == "text" {
		return rows.ReadWhole
	}
	return rows.Read
}

// encode turns rows into tokens until there are no more. run starts several.
func (b *build) encode() {
	e := &encoder{b.o.Encoding, b.o.TrainOn}
	for c := range b.work {
		made := make([]encoded, len(c.rows))
		for i, r := range c.rows {
			made[i].tokens, made[i].err = b.tokens(e, r)
		}
		c.done <- made
	}
}

func (b *build) tokens(e *encoder, r rows.Row) ([]uint32, error) {
	var s rows.Sample
	err := error(nil)
	if b.o.Format == "text" {
		s.Answer, err = string(r.Raw), r.CheckText()
	} else {
		s, err = rows.Understand(r, b.o.Format, b.o.Fields, e.Template != nil)
	}
	if err != nil {
		return nil, err
	}
	tokens, err := e.tokens(s)
	if err != nil {
		return nil, r.Errorf("%w", err)
	}
	return tokens, nil
}

// write adds a chunk's samples to the store.
func (b *build) write(w *store.Writer, l *store.Lock, c *chunk, made []encoded) error {
	for i, r := range made {
		switch {
		case r.err == nil:
			if err := w.Add(r.tokens, hashOf(r.tokens), c.file, c.rows[i].Line); err != nil {
				return err
			}
		case b.o.BadRows == "skip":
			w.Skip(r.err.Error())
		default:
			return fmt.Errorf("%w (data.bad_rows: skip leaves such rows out, and counts them)", r.err)
		}
	}
	b.rows += len(made)
	done := fmt.Sprintf("%d rows of %s are tokens", b.rows, b.source.name)
	if time.Since(b.told) > store.TellEvery {
		b.told = time.Now()
		b.o.Tell(done)
	}
	return l.Progress(done)
}

// hashOf is FNV-1a of a sample's tokens, whether they are learned or not.
func hashOf(tokens []uint32) uint64 {
	h := uint64(fnvBasis)
	for _, t := range tokens { // in words of 32 bits
		h = (h ^ uint64(t&store.IDMask)) * fnvPrime
	}
	return h
}
