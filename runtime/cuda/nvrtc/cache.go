package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// An entry of the cache is a file: a line that names the format, the SHA-256 of
// the machine code, and the machine code. It is written to a temporary file and
// renamed, so that workers which compile the same text at the same time each find
// whole entries; the last one to finish wins, with the same content.
type entry string // the file; "" keeps nothing

const magic = "gorun kernel 1\n"

// Folder is where compiled kernels are kept: $XDG_CACHE_HOME/gorun/kernels, or
// ~/.cache/gorun/kernels.
func Folder() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, "gorun", "kernels"), nil
}

// key identifies what comes out of the compiler by all that goes in.
func (c *Compiler) key(text, arch string, options []string) [sha256.Size]byte {
	h := sha256.New()
	field := func(s string) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	field(fmt.Sprintf("%d.%d %d", c.major, c.minor, c.bytes))
	field(arch)
	field(floats)
	field(text)
	for _, o := range options {
		field(o)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func entryFor(key [sha256.Size]byte) (entry, error) {
	folder, err := Folder()
	if err != nil {
		return "", err
	}
	return entry(filepath.Join(folder, hex.EncodeToString(key[:])+".cubin")), nil
}

// read returns the entry's machine code, nil where there is none. A damaged entry
// is none; the next write replaces it.
func (e entry) read(name string) []byte {
	if e == "" {
		return nil
	}
	b, err := os.ReadFile(string(e))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		slog.Warn("a compiled kernel cannot be read", "kernels", name, "error", err)
		return nil
	}
	body, ok := bytes.CutPrefix(b, []byte(magic))
	if ok && len(body) > sha256.Size {
		if sum := sha256.Sum256(body[sha256.Size:]); bytes.Equal(sum[:], body[:sha256.Size]) {
			return body[sha256.Size:]
		}
	}
	slog.Warn("a compiled kernel is damaged and is compiled again", "kernels", name, "file", string(e))
	return nil
}

// write keeps machine code. That it cannot is no error of the job, which has it.
func (e entry) write(name string, cubin []byte) {
	if e == "" {
		return
	}
	if err := e.replace(cubin); err != nil {
		slog.Warn("a compiled kernel is not kept", "kernels", name, "error", err)
	}
}

func (e entry) replace(cubin []byte) error {
	folder := filepath.Dir(string(e))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".new-*")
	if err != nil {
		return err
	}
	sum := sha256.Sum256(cubin)
	_, err = f.Write(append(append([]byte(magic), sum[:]...), cubin...))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), string(e))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
