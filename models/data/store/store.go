// Package store keeps samples as tokens in files that are mapped into memory
// (store.go, write.go), and lets one process at a time make them (lock.go).
package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/mapped"
)

// A Store is the samples of some files as tokens, in a file that is mapped into
// memory:
//
//	header   see below
//	tokens   [tokens]u32, the highest bit set where the token is learned
//	ends     [samples]u64, the number of tokens up to each sample's end
//	hashes   [samples]u64, of each sample's tokens
//	origins  [samples]u64, number of the file << 32 | line
//	note     the first row that was skipped
//
// All is little-endian.
type Store struct {
	head   header
	path   string
	mapped []byte
	sum    uint32 // of the tokens
}

// Path is where the store lies, Len the number of its samples, Skipped that of rows
// that could not be read, and Sum a checksum of the tokens.
func (s *Store) Path() string { return s.path }
func (s *Store) Len() int     { return int(s.head.Samples) }
func (s *Store) Skipped() int { return int(s.head.Skipped) }
func (s *Store) Sum() uint32  { return s.sum }

// header is the store's first bytes.
type header struct {
	Magic                          [8]byte
	Key                            [32]byte // of what the store was made of
	Samples, Tokens, Skipped, Note uint64
	Sum                            uint32 // of all that follows
	Own                            uint32 // of the header up to here
}

// Magic is how a store begins. It ends in the version of the form, and of how rows
// become tokens: whoever changes either raises it.
var Magic = [8]byte{'g', 'o', 'r', 'u', 'n', 's', 'f', 1}

var headerSize = binary.Size(header{})

// sumOf is the checksum of a header without its last field.
func (h header) sumOf() uint32 {
	b := h.bytes()
	return crc32.Checksum(b[:len(b)-4], castagnoli)
}

func (h header) bytes() []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		panic("store: " + err.Error()) // a struct of fixed size always fits
	}
	return b.Bytes()
}

// A token as it is kept: the id, and the mark that it is learned.
const (
	Learned = 1 << 31
	IDMask  = Learned - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged is a store that is not as it was written.
var ErrDamaged = errors.New("damaged")

// Open maps the store at path and verifies it. The error is fs.ErrNotExist
// where there is none, and ErrDamaged where it is not whole, or of something else.
func Open(path string, key [32]byte) (*Store, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close() // a mapping outlives its descriptor
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	damaged := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", path, ErrDamaged, fmt.Sprintf(format, args...))
	}
	s := &Store{path: path}
	switch err := binary.Read(in, binary.LittleEndian, &s.head); {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, damaged("its header is cut off")
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	size := info.Size()
	switch {
	case s.head.Own != s.head.sumOf():
		return nil, damaged("the checksum of its header is wrong")
	case s.head.Magic != Magic || s.head.Key != key:
		return nil, damaged("it is of something else than its name says")
	case s.head.size() != size:
		return nil, damaged("it has %d bytes, and should have %d", size, s.head.size())
	}
	if s.mapped, err = unix.Mmap(int(in.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("%s: map %d bytes: %w", path, size, err)
	}
	if err := s.verify(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// size is that of the file that the header describes.
func (h header) size() int64 {
	return int64(headerSize) + 4*int64(h.Tokens) + 3*8*int64(h.Samples) + int64(h.Note)
}

func (s *Store) verify() (err error) {
	defer mapped.Shortened(s.path, debug.SetPanicOnFault(true), &err)
	lists := headerSize + 4*int(s.head.Tokens)
	s.sum = crc32.Checksum(s.mapped[headerSize:lists], castagnoli)
	if crc32.Update(s.sum, castagnoli, s.mapped[lists:]) != s.head.Sum {
		return fmt.Errorf("%s: %w: the checksum of its content is wrong", s.path, ErrDamaged)
	}
	return nil
}

// Tokens is n tokens from the one at on, 4 bytes each: the id, and the mark that it
// is learned. The memory is the file's: see mapped.Shortened.
func (s *Store) Tokens(at int64, n int) []byte {
	from := int64(headerSize) + 4*at
	return s.mapped[from : from+4*int64(n)]
}

// Targets counts those of n tokens from the one at on that are learned.
func (s *Store) Targets(at int64, n int) (learned int) {
	for b := s.Tokens(at, n); len(b) > 0; b = b[4:] {
		learned += int(b[3] >> 7) // the mark
	}
	return learned
}

// column reads the i-th number of one of the three lists.
func (s *Store) column(which, i int) uint64 {
	at := int64(headerSize) + 4*int64(s.head.Tokens) + 8*(int64(which)*int64(s.head.Samples)+int64(i))
	return binary.LittleEndian.Uint64(s.mapped[at:])
}

// Sample is where the tokens of the i-th sample are.
func (s *Store) Sample(i int) (from, to int64) {
	if i > 0 {
		from = int64(s.column(0, i-1))
	}
	return from, int64(s.column(0, i))
}

// Hash is of a sample's tokens.
func (s *Store) Hash(i int) uint64 { return s.column(1, i) }

// Origin is the number of a sample's file among those that the store was made of,
// and the line of its row.
func (s *Store) Origin(i int) (file, line int) {
	o := s.column(2, i)
	return int(o >> 32), int(uint32(o))
}

// FirstSkipped is what was wrong with the first row that was skipped.
func (s *Store) FirstSkipped() string { return string(s.mapped[len(s.mapped)-int(s.head.Note):]) }

// Close unmaps the file. The store must not be used any more.
func (s *Store) Close() error {
	m := s.mapped
	s.mapped = nil
	if m == nil {
		return nil
	}
	return unix.Munmap(m)
}
