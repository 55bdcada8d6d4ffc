package cudnn

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlansAreKeptOnDisk(t *testing.T) {
	f := openFake(t)
	folder := filepath.Join(t.TempDir(), "gorun", "kernels")
	x := tensors(2, 64, 4, 2, 64)
	// use runs both passes with a new SDPA, as a new process would, and returns how
	// many plans were made and how many restored.
	use := func(change func(*cache)) (made, restored int) {
		t.Helper()
		f.controls["fakeReset"].Call()
		a, _ := testSDPA(t, f, folder)
		if change != nil {
			change(&a.cache)
		}
		s := &testStream{handle: 99}
		a.both(s, x)
		if s.err != nil {
			t.Fatal(s.err)
		}
		if n := f.count("execute"); n != 2 {
			t.Fatalf("%d executions", n)
		}
		if err := a.Close(); err != nil || f.live() != 0 {
			t.Fatalf("Close: %v, %d live", err, f.live())
		}
		return f.count("plan of engine"), f.count("plan restored")
	}
	expect := func(what string, made, restored int, change func(*cache)) {
		t.Helper()
		if m, r := use(change); m != made || r != restored {
			t.Errorf("%s: %d plans made and %d restored, want %d and %d", what, m, r, made, restored)
		}
	}
	files := func() []string {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(folder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}

	expect("an empty folder", 2, 0, nil)
	expect("the same again", 0, 2, nil)
	if n := len(files()); n != 2 {
		t.Errorf("%d files: %v", n, files())
	}
	expect("another cuDNN", 2, 0, func(c *cache) { c.cudnn = "9.19.0" })
	expect("another driver", 2, 0, func(c *cache) { c.driver = "13.1 590.1" })
	expect("another card", 2, 0, func(c *cache) { c.card = "another" })
	expect("the first key", 0, 2, nil)
	if n := len(files()); n != 8 {
		t.Errorf("%d files: %v", n, files())
	}

	spoil := func(edit func([]byte) []byte) {
		t.Helper()
		for _, file := range files() {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, edit(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	spoil(func(b []byte) []byte { return b[:len(b)/2] })
	expect("cut files", 2, 0, nil)
	spoil(func(b []byte) []byte { return bytes.Replace(b, []byte(`{\"fake\":[`), []byte(`{\"fake\":[7`), 1) })
	expect("a plan of which a byte changed", 2, 0, nil)
	expect("made anew", 0, 2, nil)

	// A file that is whole but that the library refuses.
	c := cache{folder: folder, cudnn: "9.14.0", driver: "13.0 580.1", card: "a card"}
	one, other := forward(whole(2, 64, 4, 2, 64)), backward(whole(2, 64, 4, 2, 64))
	for _, g := range []*graph{one, other} {
		if err := c.keep(g, []byte("of another time")); err != nil {
			t.Fatal(err)
		}
	}
	expect("a refused plan", 2, 0, nil)
	expect("made anew", 0, 2, nil)

	// A file under another's name.
	data, err := os.ReadFile(c.key(one).path(folder))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.key(other).path(folder), data, 0o644); err != nil {
		t.Fatal(err)
	}
	expect("a file under another's name", 1, 1, nil)
	expect("made anew", 0, 2, nil)

	expect("no folder", 2, 0, func(c *cache) { c.folder = "" })
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	expect("a folder that cannot be made", 2, 0, func(c *cache) { c.folder = filepath.Join(blocked, "kernels") })

	for _, file := range files() {
		if strings.HasSuffix(file, ".tmp") {
			t.Errorf("%s is left behind", file)
		}
	}
}

// Keys that run into one another when written without bounds stay apart.
func TestKeysStayApart(t *testing.T) {
	g := forward(whole(1, 64, 2, 1, 64))
	seen := map[string]cache{}
	for _, c := range []cache{
		{cudnn: "9.14.0", driver: "13.0", card: "x"}, {cudnn: "9.14.01", driver: "3.0", card: "x"},
		{cudnn: "9.14.0", driver: "13.0x", card: ""}, {cudnn: "9.14.0", driver: "13.0", card: `x" "`},
	} {
		path := c.key(g).path("")
		if other, ok := seen[path]; ok {
			t.Errorf("%+v and %+v share %s", c, other, path)
		}
		seen[path] = c
	}
	a, b := cache{}, cache{}
	if a.key(g).path("") == b.key(forward(whole(1, 65, 2, 1, 64))).path("") || a.key(g).path("") == b.key(backward(whole(1, 64, 2, 1, 64))).path("") {
		t.Error("graphs share a file")
	}
}
