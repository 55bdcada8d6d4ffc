package data

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// A store is the samples of some files as tokens, in a file that is mapped into
// memory:
//
//	header   see below
//	tokens   [tokens]u32, the highest bit set where the token is learned
//	ends     [samples]u64, the number of tokens up to each sample's end
//	hashes   [samples]u64, of each row's text
//	origins  [samples]u64, number of the file << 32 | line
//	note     the first row that was skipped
//
// All is little-endian.
type store struct {
	header
	path   string
	mapped []byte
	sum    uint32 // of the tokens
}

// header is the store's first bytes.
type header struct {
	Magic                          [8]byte
	Key                            [32]byte // of what the store was made of
	Samples, Tokens, Skipped, Note uint64
	Sum                            uint32 // of all that follows
	Own                            uint32 // of the header up to here
}

// The magic ends in the version of the form, and of how rows become tokens: whoever
// changes either raises it.
var storeMagic = [8]byte{'g', 'o', 'r', 'u', 'n', 's', 'f', 1}

var headerSize = binary.Size(header{})

// sumOf is the checksum of a header without its last field.
func (h header) sumOf() uint32 {
	b := h.bytes()
	return crc32.Checksum(b[:len(b)-4], castagnoli)
}

func (h header) bytes() []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		panic("data: " + err.Error()) // a struct of fixed size always fits
	}
	return b.Bytes()
}

// errDamaged is a store that is not as it was written.
var errDamaged = errors.New("damaged")

// openStore maps the store at path and verifies it. The error is fs.ErrNotExist
// where there is none, and errDamaged where it is not whole, or of something else.
func openStore(path string, key [32]byte) (*store, error) {
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
		return fmt.Errorf("%s: %w: %s", path, errDamaged, fmt.Sprintf(format, args...))
	}
	s := &store{path: path}
	if err := binary.Read(in, binary.LittleEndian, &s.header); err != nil {
		return nil, damaged("its header is cut off")
	}
	size := info.Size()
	switch {
	case s.Own != s.sumOf():
		return nil, damaged("the checksum of its header is wrong")
	case s.Magic != storeMagic || s.Key != key:
		return nil, damaged("it is of something else than its name says")
	case s.size() != size:
		return nil, damaged("it has %d bytes, and should have %d", size, s.size())
	}
	if s.mapped, err = unix.Mmap(int(in.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("%s: map %d bytes: %w", path, size, err)
	}
	if err := s.verify(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// size is that of the file that the header describes.
func (h header) size() int64 {
	return int64(headerSize) + 4*int64(h.Tokens) + 3*8*int64(h.Samples) + int64(h.Note)
}

func (s *store) verify() (err error) {
	defer shortened(s.path, debug.SetPanicOnFault(true), &err)
	lists := headerSize + 4*int(s.Tokens)
	s.sum = crc32.Checksum(s.mapped[headerSize:lists], castagnoli)
	if crc32.Update(s.sum, castagnoli, s.mapped[lists:]) != s.Sum {
		return fmt.Errorf("%s: %w: the checksum of its content is wrong", s.path, errDamaged)
	}
	return nil
}

// tokenBytes is n tokens with their marks, from the one at on.
func (s *store) tokenBytes(at int64, n int) []byte {
	from := int64(headerSize) + 4*at
	return s.mapped[from : from+4*int64(n)]
}

// targets counts those of a piece.
func (s *store) targets(p piece) (n int) {
	for b := s.tokenBytes(p.at+1, int(p.n)-1); len(b) > 0; b = b[4:] {
		n += int(b[3] >> 7) // the mark
	}
	return n
}

// column reads the i-th number of one of the three lists.
func (s *store) column(which, i int) uint64 {
	at := int64(headerSize) + 4*int64(s.Tokens) + 8*(int64(which)*int64(s.Samples)+int64(i))
	return binary.LittleEndian.Uint64(s.mapped[at:])
}

// sample is where the tokens of the i-th sample are.
func (s *store) sample(i int) (from, to int64) {
	if i > 0 {
		from = int64(s.column(0, i-1))
	}
	return from, int64(s.column(0, i))
}

// hash is of the row's text, origin its file and line.
func (s *store) hash(i int) uint64 { return s.column(1, i) }
func (s *store) origin(i int) (file, line int) {
	o := s.column(2, i)
	return int(o >> 32), int(uint32(o))
}

// note is what was wrong with the first row that was skipped.
func (s *store) note() string { return string(s.mapped[len(s.mapped)-int(s.Note):]) }

func (s *store) close() error {
	m := s.mapped
	s.mapped = nil
	if m == nil {
		return nil
	}
	return unix.Munmap(m)
}

// storeWriter writes a store, sample after sample.
type storeWriter struct {
	header
	file                  *os.File
	out                   *bufio.Writer
	ends, hashes, origins []uint64
	note                  string
	scratch               []byte
}

// createStore begins a store at path, over what is there.
func createStore(path string, key [32]byte) (*storeWriter, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	w := &storeWriter{header: header{Magic: storeMagic, Key: key}, file: file, out: bufio.NewWriterSize(file, 1<<20)}
	_, err = w.out.Write(make([]byte, headerSize)) // its place; see finish
	return w, err
}

func (w *storeWriter) write(b []byte) error {
	w.Sum = crc32.Update(w.Sum, castagnoli, b)
	_, err := w.out.Write(b)
	return err
}

// add writes one sample.
func (w *storeWriter) add(tokens []uint32, hash uint64, file, line int) error {
	w.scratch = w.scratch[:0]
	for _, t := range tokens {
		w.scratch = binary.LittleEndian.AppendUint32(w.scratch, t)
	}
	w.Tokens += uint64(len(tokens))
	w.Samples++
	w.ends, w.hashes = append(w.ends, w.Tokens), append(w.hashes, hash)
	w.origins = append(w.origins, uint64(file)<<32|uint64(uint32(line)))
	return w.write(w.scratch)
}

// skip counts a row that could not be read.
func (w *storeWriter) skip(why string) {
	if w.Skipped == 0 {
		w.note = why
	}
	w.Skipped++
}

// finish writes what is left, and waits until it is on the disk. The header comes
// last.
func (w *storeWriter) finish() error {
	for _, list := range [][]uint64{w.ends, w.hashes, w.origins} {
		for _, x := range list {
			w.scratch = binary.LittleEndian.AppendUint64(w.scratch[:0], x)
			if err := w.write(w.scratch); err != nil {
				return err
			}
		}
	}
	w.Note = uint64(len(w.note))
	if err := w.write([]byte(w.note)); err != nil {
		return err
	}
	if err := w.out.Flush(); err != nil {
		return err
	}
	w.Own = w.sumOf()
	if _, err := w.file.WriteAt(w.header.bytes(), 0); err != nil {
		return err
	}
	return w.file.Sync()
}

func (w *storeWriter) close() error { return w.file.Close() }
