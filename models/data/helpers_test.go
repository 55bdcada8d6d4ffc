package data

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
)

// folder makes files, whose names may hold slashes, and returns their folder.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// textOptions are those of byte-level text.
func textOptions(seqLen int, train ...string) Options {
	return Options{Train: train, Format: "text", DType: "uint16", SeqLen: seqLen, Packing: true, Vocab: 256}
}

func open(t testing.TB, o Options) *Set {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// pseudo is n bytes that look random and hold no zero.
func pseudo(seed uint64, n int) string {
	r := models.NewRand(seed, "test")
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + r.Uint64(uint64(i))%255)
	}
	return string(b)
}

// encode writes token ids as a file of width bytes each.
func encode(ids []int32, width int) string {
	var b []byte
	for _, id := range ids {
		if width == 2 {
			b = binary.LittleEndian.AppendUint16(b, uint16(id))
		} else {
			b = binary.LittleEndian.AppendUint32(b, uint32(id))
		}
	}
	return string(b)
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q lacks %q", err, p)
		}
	}
}
