package data

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

// text is a corpus of bytes: the files one after the other, a Separator behind
// each.
type text struct {
	bytes       []byte
	starts      []int64 // of the documents, and the end of the last
	fingerprint uint64
}

func (t *text) tokens() int64 { return int64(len(t.bytes)) }

func (t *text) read(dst []int32, at int64) error {
	for i, b := range t.bytes[at : at+int64(len(dst))] {
		dst[i] = int32(b)
	}
	return nil
}

// readText reads files into memory, several at a time.
func readText(ctx context.Context, files []file) (*text, error) {
	t := &text{starts: make([]int64, len(files)+1)}
	for i, f := range files {
		t.starts[i+1] = t.starts[i] + f.size() + 1
	}
	t.bytes = make([]byte, t.starts[len(files)])
	r := reading{ctx: ctx, files: files, into: t, sums: make([]uint32, len(files)), errs: make([]error, len(files))}
	var all sync.WaitGroup
	for range min(len(files), 2*runtime.GOMAXPROCS(0)) {
		all.Go(r.work)
	}
	all.Wait()
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	t.fingerprint = join(r.sums)
	return t, nil
}

// A reading is files on their way into a text.
type reading struct {
	ctx   context.Context
	files []file
	into  *text
	sums  []uint32 // of each document
	errs  []error  // of each file
	next  atomic.Int64
}

// work reads files until none is left. readText starts several, and waits for
// them to end.
func (r *reading) work() {
	for {
		i := int(r.next.Add(1)) - 1
		if i >= len(r.files) {
			return
		}
		if r.ctx.Err() != nil {
			r.errs[i] = context.Cause(r.ctx)
			return
		}
		doc := r.into.bytes[r.into.starts[i]:r.into.starts[i+1]]
		r.errs[i] = readPart(r.files[i], doc[:len(doc)-1])
		doc[len(doc)-1] = Separator
		r.sums[i] = crc32.Checksum(doc, castagnoli)
	}
}

func readPart(f file, dst []byte) error {
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer in.Close() // read only: nothing can be lost
	n, err := in.ReadAt(dst, f.from)
	if n < len(dst) {
		if err == io.EOF {
			return fmt.Errorf("%s: became shorter while it was read: %d bytes of %d", f.path, f.from+int64(n), f.to)
		}
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Of the hash FNV-1a of 64 bits.
const (
	fnvBasis = 14695981039346656037
	fnvPrime = 1099511628211
)

// A fingerprint joins the checksums of a corpus's parts, in their order.
type fingerprint uint64

func newFingerprint() fingerprint { return fnvBasis }

func (h *fingerprint) add(sums ...uint32) {
	for _, s := range sums {
		for shift := 0; shift < 32; shift += 8 {
			*h = (*h ^ fingerprint(byte(s>>shift))) * fnvPrime
		}
	}
}

// join is the fingerprint of all of sums.
func join(sums []uint32) uint64 {
	h := newFingerprint()
	h.add(sums...)
	return uint64(h)
}
