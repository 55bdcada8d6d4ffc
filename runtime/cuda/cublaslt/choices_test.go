package cublaslt

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt/fakelt"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// once multiplies two matrices with a new handle and returns what was chosen.
func (f *fake) once(t *testing.T, adopt ...Choice) Choice {
	t.Helper()
	h := f.handle(t, 0)
	if n, err := h.Adopt(adopt); err != nil || n != len(adopt) {
		t.Fatalf("%d choices adopted, %v", n, err)
	}
	newBed(f.dev, f.stream, h).run(t, small)
	return h.Choices()[0]
}

var small = trialCase{m: 8, n: 8, k: 8, in: dtype.BF16, out: dtype.BF16, tb: true}

// algo is the library's form of one of the fake's algorithms.
func algo(id uint64) algorithm { return algorithm{0: id, 1: 1, 7: 0xfeed} }

func TestChoicesAreKept(t *testing.T) {
	f := newFake(t)
	first := f.once(t)
	before := f.lt.Record()
	again := f.once(t)
	if r := f.lt.Record(); r.Products != before.Products+1 || r.Searches != before.Searches {
		t.Errorf("%d products and %d searches for a product that is on disk", r.Products-before.Products, r.Searches-before.Searches)
	}
	if first.From != "timed" || again.From != "disk" || again.Config != first.Config || again.Config != config(algo(fakelt.Good)) ||
		again.Time != first.Time || again.Machine != first.Machine {
		t.Errorf("first %+v\nagain %+v", first, again)
	}
	entries, err := os.ReadDir(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "gorun", "kernels"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "products-fake-gpu--driver-of-cuda-13.0--cublaslt-13.1.0.txt" {
		t.Errorf("the cache holds %v, %v", entries, err)
	}
}

// Two ranks time the same product: both take what is on disk first.
func TestFirstChoiceCounts(t *testing.T) {
	f := newFake(t)
	h := f.handle(t, 0)
	if err := os.MkdirAll(filepath.Dir(h.choices.path), 0o755); err != nil {
		t.Fatal(err)
	}
	other, err := os.Create(h.choices.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	b := newBed(f.dev, f.stream, h)
	d, x, y := b.square(t, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
	}()
	for f.lt.Record().Searches == 0 { // the file has been read, and is locked for what is found
		runtime.Gosched()
	}
	name := newProduct(d.Matrix, x.Matrix, y.Matrix, 0, Matrix{}).String()
	if _, err := other.WriteString(encode(Choice{Product: name, Config: config(algo(fakelt.Slow)), Time: 1})); err != nil {
		t.Fatal(err)
	}
	other.Close()
	<-done
	wait(t, f.stream)
	if c := h.Choices()[0]; c.Config != config(algo(fakelt.Slow)) || c.From != "disk" || f.lt.Record().Algorithm != fakelt.Slow {
		t.Errorf("choice %+v, want that of the other rank", c)
	}
}

func TestManyWritersAgree(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const writers, products = 6, 20
	var kept [writers][products]string
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			c := openChoices("machine")
			for p := range products {
				one := Choice{Product: fmt.Sprint("product ", p), Config: config(algo(uint64(w))), Algorithm: "id"}
				kept[w][p] = c.keep(one).Config
			}
		})
	}
	all.Wait()
	c := openChoices("machine")
	for p := range products {
		one, ok := c.find(fmt.Sprint("product ", p))
		for w := range writers {
			if !ok || kept[w][p] != one.Config {
				t.Errorf("product %d: writer %d goes on with %s, the file says %v", p, w, kept[w][p], one)
			}
		}
	}
	text, err := os.ReadFile(c.path)
	if lines := strings.Count(string(text), "\n"); err != nil || lines != products {
		t.Errorf("%d lines, want %d: %v", lines, products, err)
	}
}

func TestDamagedChoices(t *testing.T) {
	f := newFake(t)
	first := f.once(t)
	path := f.handle(t, 0).choices.path
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		b := slices.Clone(whole)
		b[at] ^= 1
		return b
	}
	foreign := encode(Choice{Product: first.Product, Config: config(algorithm{0: 99}), Time: 1})
	for name, c := range map[string]struct {
		text []byte
		says string
	}{
		"a checksum":     {flip(2), "a damaged choice is passed over"},
		"a product":      {flip(12), "a damaged choice is passed over"},
		"half a line":    {whole[:len(whole)/2], ""},
		"another format": {[]byte("hello\n\n"), "a damaged choice is passed over"},
		"unknown":        {[]byte(foreign), "a choice does not serve and is passed over"},
	} {
		if err := os.WriteFile(path, c.text, 0o644); err != nil {
			t.Fatal(err)
		}
		f.log.Reset()
		if got := f.once(t); got.From != "timed" || got.Config != first.Config {
			t.Errorf("%s is damaged: choice %+v", name, got)
		}
		if !strings.Contains(f.log.String(), c.says) {
			t.Errorf("%s is damaged: the log does not say %q:\n%s", name, c.says, f.log)
		}
		if name == "unknown" {
			continue // the first line counts for all, so it stays the first
		}
		// What was found instead is kept, behind the damage.
		if got := f.once(t); got.From != "disk" || got.Config != first.Config {
			t.Errorf("%s was damaged: then %+v", name, got)
		}
	}
}

func TestChoicesWithoutADisk(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", file)
	if c := f.once(t); c.From != "timed" {
		t.Errorf("choice %+v", c)
	}
	if !strings.Contains(f.log.String(), "a choice of an algorithm is not kept") {
		t.Errorf("the log says %s", f.log)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if c := f.once(t); c.From != "timed" {
		t.Errorf("choice %+v", c)
	}
	if !strings.Contains(f.log.String(), "choices of algorithms are not kept") {
		t.Errorf("the log says %s", f.log)
	}
}

func TestAdopt(t *testing.T) {
	f := newFake(t)
	timed := f.once(t)
	before := timed
	before.Config = config(algo(fakelt.Slow))
	if c := f.once(t, before); c.From != "adopted" || c.Config != before.Config || f.lt.Record().Algorithm != fakelt.Slow {
		t.Errorf("choice %+v, want %+v adopted", c, before)
	}
	h := f.handle(t, 0)
	other := before
	other.Machine = "another GPU"
	broken := before
	broken.Config = "12"
	if n, err := h.Adopt([]Choice{other}); n != 0 || err != nil {
		t.Errorf("a choice of another machine: %d taken, %v", n, err)
	}
	if n, err := h.Adopt([]Choice{before, broken}); n != 1 || err == nil || !strings.Contains(err.Error(), `"12" is not 64 bytes`) {
		t.Errorf("a broken choice: %d taken, %v", n, err)
	}
	// One that the library refuses is timed anew, and said.
	f.lt.Fail("cublasLtMatmulAlgoCheck", 15)
	if c := f.once(t, before); c.From != "timed" {
		t.Errorf("choice %+v", c)
	}
	if !strings.Contains(f.log.String(), "cublasLtMatmulAlgoCheck: fake: not supported") {
		t.Errorf("the log says %s", f.log)
	}
}

func TestLockIsWaitedFor(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	restore := lockPatience
	lockPatience = 20 * time.Millisecond
	defer func() { lockPatience = restore }()
	c := openChoices("machine")
	one := Choice{Product: "p", Config: config(algo(1)), Algorithm: "id"}
	c.keep(one)
	f, err := os.Open(c.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	two := one
	two.Product = "q"
	if got := c.keep(two); got != two || !strings.Contains(log.String(), "is locked by another process for more than 20ms") {
		t.Errorf("kept %+v; the log says %s", got, &log)
	}
}
