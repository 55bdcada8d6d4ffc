package store

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
)

// What was written is read: tokens with their marks, where samples begin and come
// from, and what was skipped. Another key is another store.
func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	samples := [][]uint32{{1, 2 | Learned, IDMask | Learned}, {}, {7}, {8 | Learned}}
	w, err := Create(path, [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range samples {
		if err := w.Add(s, uint64(1)<<60+uint64(i), i, 1<<31+i); err != nil {
			t.Fatal(err)
		}
	}
	w.Skip("first")
	w.Skip("second")
	if err := errors.Join(w.Finish(), w.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	if s.Len() != len(samples) || s.Skipped() != 2 || s.FirstSkipped() != "first" || s.Path() != path {
		t.Errorf("%d samples, %d rows skipped, the first: %q", s.Len(), s.Skipped(), s.FirstSkipped())
	}
	for i, want := range samples {
		from, to := s.Sample(i)
		var got []uint32
		learned := 0
		for b := s.Tokens(from, int(to-from)); len(b) > 0; b = b[4:] {
			token := binary.LittleEndian.Uint32(b)
			got = append(got, token)
			learned += int(token / Learned)
		}
		if !slices.Equal(got, want) || s.Targets(from, int(to-from)) != learned {
			t.Errorf("sample %d is %v with %d targets, want %v", i, got, s.Targets(from, int(to-from)), want)
		}
		if file, line := s.Origin(i); file != i || line != 1<<31+i || s.Hash(i) != uint64(1)<<60+uint64(i) {
			t.Errorf("sample %d comes from file %d, line %d, hash %x", i, file, line, s.Hash(i))
		}
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := Open(path, [32]byte{2}); !errors.Is(err, ErrDamaged) {
		t.Errorf("with another key: %v", err)
	}
	if _, err := Open(path+"x", [32]byte{1}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not there: %v", err)
	}
}
