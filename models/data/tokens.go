package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/mapped"
)

// tokens is a corpus of stored token ids, mapped into memory: files of any size
// cost no time to read and no memory of one's own. Nothing stands between two
// files; whoever wrote them has put separators where they belong.
type tokens struct {
	width       int // bytes of a token
	vocab       int
	parts       []part
	size        int64
	fingerprint uint64
}

// A part is the tokens of one file.
type part struct {
	path   string
	start  int64  // of its first token in the row
	bytes  []byte // of its tokens
	mapped []byte // what to unmap
}

// mapTokens maps files and checks every token id.
func mapTokens(files []file, width, vocab int) (*tokens, error) {
	t := &tokens{width: width, vocab: vocab}
	var sums []uint32
	for _, f := range files {
		p, err := mapPart(f, width)
		if err != nil {
			return nil, errors.Join(err, t.close())
		}
		p.start = t.size
		t.parts = append(t.parts, p)
		t.size += int64(len(p.bytes) / width)
		sum, err := p.check(width, vocab)
		if err != nil {
			return nil, errors.Join(err, t.close())
		}
		sums = append(sums, sum)
	}
	t.fingerprint = join(sums)
	return t, nil
}

func mapPart(f file, width int) (part, error) {
	in, err := os.Open(f.path)
	if err != nil {
		return part{}, err
	}
	defer in.Close() // a mapping outlives its descriptor
	info, err := in.Stat()
	if err != nil {
		return part{}, err
	}
	switch size := info.Size(); {
	case size < f.to:
		return part{}, fmt.Errorf("%s: became shorter while it was opened: %d bytes of %d", f.path, size, f.to)
	case size%int64(width) != 0:
		return part{}, fmt.Errorf("%s: its %d bytes are not a multiple of %d, the size of a token (data.dtype)", f.path, size, width)
	}
	m, err := unix.Mmap(int(in.Fd()), 0, int(f.to), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return part{}, fmt.Errorf("%s: map %d bytes: %w", f.path, f.to, err)
	}
	return part{path: f.path, bytes: m[f.from:], mapped: m}, nil
}

// check returns the checksum of p, or an error for the first token id that the
// model does not have.
func (p *part) check(width, vocab int) (sum uint32, err error) {
	defer mapped.Shortened(p.path, debug.SetPanicOnFault(true), &err)
	for i := 0; i < len(p.bytes); i += width {
		if id := token(p.bytes[i:], width); int64(id) >= int64(vocab) {
			return 0, fmt.Errorf("%s: token %d is %d, and model.vocab is %d, so that ids end at %d (is data.dtype right?)",
				p.path, i/width, id, vocab, vocab-1)
		}
	}
	return crc32.Checksum(p.bytes, castagnoli), nil
}

func token(b []byte, width int) uint32 {
	if width == 2 {
		return uint32(binary.LittleEndian.Uint16(b))
	}
	return binary.LittleEndian.Uint32(b)
}

func (t *tokens) tokens() int64 { return t.size }

func (t *tokens) read(dst []int32, at int64) error {
	i, found := slices.BinarySearchFunc(t.parts, at, func(p part, at int64) int { return int(min(1, max(-1, p.start-at))) })
	if !found {
		i--
	}
	for len(dst) > 0 {
		n, err := t.parts[i].read(dst, at, t.width, t.vocab)
		if err != nil {
			return err
		}
		dst, at, i = dst[n:], at+int64(n), i+1
	}
	return nil
}

// read copies tokens from position at of the row to dst, as many as p has. Ids
// are checked again: the file may have been written to.
func (p *part) read(dst []int32, at int64, width, vocab int) (n int, err error) {
	defer mapped.Shortened(p.path, debug.SetPanicOnFault(true), &err)
	src := p.bytes[int(at-p.start)*width:]
	n = min(len(dst), len(src)/width)
	for i := range n {
		id := token(src[i*width:], width)
		if int64(id) >= int64(vocab) {
			return 0, fmt.Errorf("%s: token %d is %d, above model.vocab = %d; it has changed since the start", p.path, at-p.start+int64(i), id, vocab)
		}
		dst[i] = int32(id)
	}
	return n, nil
}

func (t *tokens) close() error {
	var errs []error
	for _, p := range t.parts {
		errs = append(errs, unix.Munmap(p.mapped))
	}
	t.parts = nil
	return errors.Join(errs...)
}
