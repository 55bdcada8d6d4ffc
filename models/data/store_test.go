package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/models/data/store"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// headerBytes is the size of a store's header.
const headerBytes = 80

// counting counts the texts that are encoded.
type counting struct {
	fakeTokenizer
	n *atomic.Int64
}

func (c counting) Encode(text string) []int32 {
	c.n.Add(1)
	return c.fakeTokenizer.Encode(text)
}

func counted(o Options) (Options, *atomic.Int64) {
	n := new(atomic.Int64)
	o.Encoding.Tokenizer = counting{fakeTokenizer{bos, eos}, n}
	return o, n
}

// stores lists the finished stores of a cache.
func stores(t *testing.T, o Options) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(o.Cache, "*.samples"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// What is made once is not made again, whatever of it a job takes; what the tokens
// depend on makes them anew.
func TestCache(t *testing.T) {
	dir := folder(t, map[string]string{"f": lines(someRows(1, 20, 20)...)})
	o, n := counted(samplesOptions(t, "prompt_completion", 32, dir+"/f"))
	want := shown(t, open(t, o).Train)
	made := n.Load()
	if made == 0 || len(stores(t, o)) != 1 {
		t.Fatalf("%d texts encoded, the stores are %q", made, stores(t, o))
	}
	for name, change := range map[string]func(*Options){
		"nothing":    func(o *Options) {},
		"seq_len":    func(o *Options) { o.SeqLen = 64 },
		"packing":    func(o *Options) { o.Packing = true },
		"truncation": func(o *Options) { o.Truncation = "drop" },
		"eval_split": func(o *Options) { o.EvalSplit = 0.2 },
		"weights":    func(o *Options) { o.Weights = []float64{3} },
		"seed":       func(o *Options) { o.Seed++ },
		"place": func(o *Options) {
			data, err := os.ReadFile(o.Train[0])
			if err != nil {
				t.Fatal(err)
			}
			o.Train = []string{folder(t, map[string]string{"g": string(data)}) + "/g"}
		},
	} {
		other := o
		change(&other)
		s := open(t, other)
		if got := n.Load(); got != made {
			t.Errorf("%s: encoded again", name)
		}
		if name == "nothing" && !slices.Equal(shown(t, s.Train), want) {
			t.Error("from the cache, the samples are others")
		}
	}
	for name, change := range map[string]func(*Options){
		"content": func(o *Options) {
			o.Train = []string{folder(t, map[string]string{"f": lines(someRows(1, 21, 20)...)}) + "/f"}
		},
		"tokenizer": func(o *Options) { o.Encoding.ID = "other" },
		"template":  func(o *Options) { o.Encoding.Template = nil },
		"format":    func(o *Options) { o.Format = "mixed" },
		"train_on":  func(o *Options) { o.TrainOn = "all" },
		"bad_rows":  func(o *Options) { o.BadRows = "skip" },
		"fields":    func(o *Options) { o.Fields.Prompt = "prompt" },
	} {
		other := o
		change(&other)
		before := n.Load()
		open(t, other)
		if n.Load() == before {
			t.Errorf("%s: not encoded anew", name)
		}
	}
}

// A store that is damaged in any way is told of and made again.
func TestDamagedCache(t *testing.T) {
	dir := folder(t, map[string]string{"f": lines(someRows(1, 20, 20)...)})
	o, n := counted(samplesOptions(t, "prompt_completion", 32, dir+"/f"))
	want := shown(t, open(t, o).Train)
	path := stores(t, o)[0]
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		b := slices.Clone(whole)
		b[at] ^= 4
		return b
	}
	for name, damaged := range map[string][]byte{
		"empty": {}, "half a header": whole[:40], "cut": whole[:len(whole)-1], "longer": append(slices.Clone(whole), 0),
		"magic": flip(0), "key": flip(9), "samples": flip(40), "skipped": flip(56), "first token": flip(headerBytes), "last byte": flip(len(whole) - 1), "middle": flip(len(whole) / 2),
	} {
		if err := os.WriteFile(path, damaged, 0o666); err != nil {
			t.Fatal(err)
		}
		var told []string
		o.Tell = func(s string) { told = append(told, s) }
		before := n.Load()
		if got := shown(t, open(t, o).Train); !slices.Equal(got, want) {
			t.Errorf("%s: the samples are %q", name, got)
		}
		if n.Load() == before || len(told) != 1 || !strings.Contains(told[0], path) || !strings.Contains(told[0], "damaged") {
			t.Errorf("%s: made again %t, told %q", name, n.Load() != before, told)
		}
	}
}

// A file that is shortened while it is in use is an error, not the end of the
// process.
func TestShortenedCache(t *testing.T) {
	o := samplesOptions(t, "prompt_completion", 32, folder(t, map[string]string{"f": lines(someRows(1, 2000, 20)...)})+"/f")
	d := open(t, o).Train
	if err := os.Truncate(stores(t, o)[0], int64(headerBytes)); err != nil {
		t.Fatal(err)
	}
	_, err := d.Read(d.Len()-1, make([]int32, 32), make([]int32, 32))
	wantError(t, err, o.Cache, "shortened")
}

// Of several that need the same tokens at once, one makes them.
func TestOneBuilds(t *testing.T) {
	dir := folder(t, map[string]string{"f": lines(someRows(1, 500, 20)...)})
	o, n := counted(samplesOptions(t, "prompt_completion", 32, dir+"/f"))
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			s, err := Open(context.Background(), o)
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	together := n.Load()
	alone, m := counted(o)
	alone.Cache = t.TempDir()
	open(t, alone)
	if together != m.Load() {
		t.Errorf("six at once encoded %d texts, one alone %d", together, m.Load())
	}
}

// The process that TestKilledBuilder starts: it does not get beyond its first text
// while that one lives.
func TestBuildForever(t *testing.T) {
	cache, file := os.Getenv("GORUN_TEST_CACHE"), os.Getenv("GORUN_TEST_FILE")
	if cache == "" {
		return // not started by TestKilledBuilder: nothing to do
	}
	o := samplesOptions(t, "prompt_completion", 32, file)
	o.Cache = cache
	o.Encoding.Tokenizer = stuck{}
	_, err := Open(t.Context(), o)
	t.Fatal(err)
}

// stuck says that it was called, and waits to be killed.
type stuck struct{ fakeTokenizer }

func (stuck) Encode(string) []int32 {
	fmt.Println("building")
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// While one process builds another waits; when the first is killed, the other
// builds. What the first has left does no harm.
func TestKilledBuilder(t *testing.T) {
	dir := folder(t, map[string]string{"f": lines(someRows(1, 50, 20)...)})
	o, n := counted(samplesOptions(t, "prompt_completion", 32, dir+"/f"))
	builder := exec.Command(os.Args[0], "-test.run=^TestBuildForever$")
	builder.Env = append(os.Environ(), "GORUN_TEST_CACHE="+o.Cache, "GORUN_TEST_FILE="+dir+"/f", "TMPDIR="+t.TempDir()) // it cannot clean up
	out, err := builder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := builder.StdinPipe(); err != nil { // open for as long as this process lives
		t.Fatal(err)
	}
	if err := builder.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(out, new(string)); err != nil { // it holds the lock
		t.Fatal(err)
	}
	o.Patience = time.Millisecond
	_, err = Open(t.Context(), o)
	wantError(t, err, "another process holds this lock", fmt.Sprintf("process %d on ", builder.Process.Pid), "data.cache")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("asked to stop"))
	o.Patience = 0
	key := o
	_, err = Open(ctx, key)
	wantError(t, err, "asked to stop")

	opened := make(chan error)
	go func() { // ends with the test, which waits for it
		s, err := Open(t.Context(), o)
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	if err := builder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	builder.Wait() // killed: says so
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	if n.Load() == 0 {
		t.Error("nobody built")
	}
	if left, err := filepath.Glob(o.Cache + "/*.tmp"); err != nil || len(left) > 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}

// A build that fails leaves nothing that could be taken for a store.
func TestFailedBuild(t *testing.T) {
	o := samplesOptions(t, "prompt_completion", 32, folder(t, map[string]string{"f": lines(append(someRows(1, 3000, 20), 5)...)})+"/f")
	_, err := Open(t.Context(), o)
	wantError(t, err, "f:3001: a row must be a JSON object")
	entries, err := os.ReadDir(o.Cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".lock") {
			t.Errorf("%s is left", e.Name())
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("asked to stop"))
	_, err = Open(ctx, o)
	wantError(t, err, "asked to stop")
	o.Cache = o.Train[0] // a file
	_, err = Open(t.Context(), o)
	wantError(t, err, "data.cache")
	if _, err := store.Open(filepath.Join(t.TempDir(), "x"), [32]byte{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store that is not there: %v", err)
	}
}

// The first bad row is the one that is named, however many are read at once.
func TestTheFirstErrorIsNamed(t *testing.T) {
	var list []any
	for i := range 5000 {
		list = append(list, pair("x", fmt.Sprint(i)))
		if i > 1000 && i%7 == 0 {
			list = append(list, pair("x", ""))
		}
	}
	o := samplesOptions(t, "prompt_completion", 32, folder(t, map[string]string{"f": lines(list...)})+"/f")
	for range 5 {
		_, err := Open(t.Context(), o)
		wantError(t, err, "f:1003: ")
	}
}

// A cache in which this user cannot write is said, with the setting that names another.
func TestACacheThatCannotBeWritten(t *testing.T) {
	if os.Geteuid() == 0 {
		testenv.Skip(t, "user", "root may write everywhere")
	}
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(path, []byte(`{"prompt": "a", "completion": "b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	o := samplesOptions(t, "prompt_completion", 16, path)
	if err := os.Chmod(o.Cache, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "give data.cache a folder") {
		t.Errorf("got %v", err)
	}
}
