package cublaslt

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
)

// Choice is the algorithm that a product takes.
type Choice struct {
	Machine   string        // GPU, driver and library: Config means nothing elsewhere
	Product   string        // shape, types and layout
	Algorithm string        // in words
	Config    string        // in the library's own form, as hexadecimal digits
	Time      time.Duration // of one launch, as measured when it was chosen; 0 where it was not
	From      string        // "timed", "disk", "adopted", or "untimed" where memory did not suffice
}

// Choices lists the algorithms of the products seen so far, for the log and the
// checkpoint.
func (h *Handle) Choices() []Choice {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []Choice
	for _, p := range h.plans {
		list = append(list, p.choice)
	}
	slices.SortFunc(list, func(a, b Choice) int { return cmp.Compare(a.Product, b.Product) })
	return list
}

// Adopt makes products that were not seen yet take the choices of an earlier run,
// before those on disk. Choices of another GPU, driver or library mean nothing here
// and are left out: taken says how many remain.
func (h *Handle) Adopt(list []Choice) (taken int, err error) {
	for _, c := range list {
		if c.Machine != h.choices.machine {
			continue
		}
		if _, err := parseConfig(c.Config); err != nil {
			return taken, fmt.Errorf("%s: the choice for the matrix product %s: %w", h.dev, c.Product, err)
		}
		c.From = "adopted"
		h.choices.adopt(c)
		taken++
	}
	return taken, nil
}

// choices is what was chosen on one kind of machine: a file of one line a product.
// All ranks of a host and all later runs share it. Lines are only ever added, under
// a lock of the file, and the first line of a product counts, so all agree.
type choices struct {
	machine string
	path    string // "" where there is no folder for it

	mu    sync.Mutex // guards what follows
	known map[string]Choice
	read  int64 // how much of the file is known
}

// openChoices opens the file in the folder of the kernel cache. That it cannot be
// kept is no error: the choices of this process then hold for this process.
func openChoices(machine string) *choices {
	c := &choices{machine: machine, known: map[string]Choice{}}
	folder, err := nvrtc.Folder()
	if err != nil {
		slog.Warn("cublaslt: choices of algorithms are not kept", "error", err)
		return c
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, strings.ToLower(machine))
	c.path = filepath.Join(folder, "products-"+name+".txt")
	return c
}

func (c *choices) adopt(one Choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[one.Product] = one
}

// find returns the choice for a product, reading what others have added.
func (c *choices) find(name string) (Choice, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one, ok := c.known[name]; ok || c.path == "" {
		return one, ok
	}
	f, err := os.Open(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return Choice{}, false
	}
	if err == nil {
		err = errors.Join(c.update(f), f.Close())
	}
	if err != nil {
		slog.Warn("cublaslt: choices of algorithms cannot be read", "error", err)
	}
	one, ok := c.known[name]
	return one, ok
}

// keep adds a choice to the file and returns the one that counts: this one, or
// another process's that was there before.
func (c *choices) keep(one Choice) Choice {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" {
		return one
	}
	kept, err := c.add(one)
	if err != nil {
		slog.Warn("cublaslt: a choice of an algorithm is not kept", "product", one.Product, "error", err)
		return one
	}
	return kept
}

func (c *choices) add(one Choice) (kept Choice, err error) {
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return one, err
	}
	f, err := os.OpenFile(c.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // which gives the lock back
	if err := lock(f); err != nil {
		return one, err
	}
	if err := c.update(f); err != nil {
		return one, err
	}
	if first, ok := c.known[one.Product]; ok {
		return first, nil
	}
	line := encode(one)
	// The end of a line that its writer did not finish must not swallow this one.
	if end, err := f.Seek(0, io.SeekEnd); err != nil {
		return one, err
	} else if end > c.read {
		line = "\n" + line
	}
	if _, err := f.WriteString(line); err != nil {
		return one, err
	}
	return one, nil
}

// lockPatience is how long to wait for the file's lock, which others hold for moments.
var lockPatience = 10 * time.Second

func lock(f *os.File) error {
	const pause = 5 * time.Millisecond
	for from := time.Now(); ; time.Sleep(pause) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("locking %s: %w", f.Name(), err)
		case time.Since(from) > lockPatience:
			return fmt.Errorf("%s is locked by another process for more than %v", f.Name(), lockPatience)
		}
	}
}

// update reads whole lines that the file has got since.
func (c *choices) update(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < c.read {
		c.read = 0 // another file has taken its place
	}
	text, err := io.ReadAll(io.NewSectionReader(f, c.read, info.Size()-c.read))
	if err != nil {
		return err
	}
	for {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return nil
		}
		at := c.read
		c.read += int64(len(line)) + 1
		text = rest
		if len(line) == 0 {
			continue
		}
		one, err := decode(string(line))
		if err != nil {
			slog.Warn("cublaslt: a damaged choice is passed over", "file", c.path, "offset", at, "error", err)
			continue
		}
		one.Machine, one.From = c.machine, "disk"
		if _, ok := c.known[one.Product]; !ok {
			c.known[one.Product] = one
		}
	}
}

// encode is a line of the file: a checksum of the rest, then four fields.
func encode(c Choice) string {
	rest := fmt.Sprintf("%s\t%d\t%s\t%s", c.Product, c.Time.Nanoseconds(), c.Config, c.Algorithm)
	return fmt.Sprintf("%08x\t%s\n", crc32.ChecksumIEEE([]byte(rest)), rest)
}

func decode(line string) (Choice, error) {
	sum, rest, _ := strings.Cut(line, "\t")
	if want := fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(rest))); sum != want {
		return Choice{}, fmt.Errorf("checksum %.8q, want %s", sum, want)
	}
	fields := strings.Split(rest, "\t")
	if len(fields) != 4 {
		return Choice{}, fmt.Errorf("%d fields, want 4", len(fields))
	}
	ns, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return Choice{}, err
	}
	if _, err := parseConfig(fields[2]); err != nil {
		return Choice{}, err
	}
	return Choice{Product: fields[0], Time: time.Duration(ns), Config: fields[2], Algorithm: fields[3]}, nil
}

// config is an algorithm as hexadecimal digits.
func config(a algorithm) string {
	var b []byte
	for _, word := range a {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return hex.EncodeToString(b)
}

func parseConfig(text string) (a algorithm, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 8*len(a) {
		return a, fmt.Errorf("%q is not %d bytes in hexadecimal", text, 8*len(a))
	}
	for i := range a {
		a[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return a, nil
}
