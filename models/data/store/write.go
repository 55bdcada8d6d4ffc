package store

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"os"
)

// A Writer writes a store, sample after sample.
type Writer struct {
	head                  header
	file                  *os.File
	out                   *bufio.Writer
	ends, hashes, origins []uint64
	note                  string
	scratch               []byte
}

// Create begins a store at path, over what is there.
func Create(path string, key [32]byte) (*Writer, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	w := &Writer{head: header{Magic: Magic, Key: key}, file: file, out: bufio.NewWriterSize(file, 1<<20)}
	_, err = w.out.Write(make([]byte, headerSize)) // its place; see Finish
	return w, err
}

func (w *Writer) write(b []byte) error {
	w.head.Sum = crc32.Update(w.head.Sum, castagnoli, b)
	_, err := w.out.Write(b)
	return err
}

// Add writes one sample, of a row on a line of the numbered file.
func (w *Writer) Add(tokens []uint32, hash uint64, file, line int) error {
	w.scratch = w.scratch[:0]
	for _, t := range tokens {
		w.scratch = binary.LittleEndian.AppendUint32(w.scratch, t)
	}
	w.head.Tokens += uint64(len(tokens))
	w.head.Samples++
	w.ends, w.hashes = append(w.ends, w.head.Tokens), append(w.hashes, hash)
	w.origins = append(w.origins, uint64(file)<<32|uint64(uint32(line)))
	return w.write(w.scratch)
}

// Skip counts a row that could not be read.
func (w *Writer) Skip(why string) {
	if w.head.Skipped == 0 {
		w.note = why
	}
	w.head.Skipped++
}

// Finish writes what is left, and waits until it is on the disk. The header comes
// last.
func (w *Writer) Finish() error {
	for _, list := range [][]uint64{w.ends, w.hashes, w.origins} {
		for _, x := range list {
			w.scratch = binary.LittleEndian.AppendUint64(w.scratch[:0], x)
			if err := w.write(w.scratch); err != nil {
				return err
			}
		}
	}
	w.head.Note = uint64(len(w.note))
	if err := w.write([]byte(w.note)); err != nil {
		return err
	}
	if err := w.out.Flush(); err != nil {
		return err
	}
	w.head.Own = w.head.sumOf()
	if _, err := w.file.WriteAt(w.head.bytes(), 0); err != nil {
		return err
	}
	return w.file.Sync()
}

// Close closes the file, which is a store only if Finish has succeeded.
func (w *Writer) Close() error { return w.file.Close() }
