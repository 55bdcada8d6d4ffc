package data

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

func names(files []file) string {
	var s []string
	for _, f := range files {
		s = append(s, f.rel)
	}
	return strings.Join(s, " ")
}

func TestGlob(t *testing.T) {
	dir := folder(t, map[string]string{
		"a.go": "1", "b.txt": "1", "x/a.go": "1", "x/y/a.go": "1", "x/y/z.go/inner.go": "1", "x/[1].txt": "1", "x/empty.go": "",
	})
	if err := os.Symlink(filepath.Join(dir, "a.go"), filepath.Join(dir, "x/link.go")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "x"), filepath.Join(dir, "to-x")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ pattern, want string }{
		{"*.go", "a.go"},
		{"**/*.go", "a.go x/a.go x/y/a.go x/y/z.go/inner.go"}, // the link is a.go again, the folder z.go no file
		{"x/**", "[1].txt a.go link.go y/a.go y/z.go/inner.go"},
		{"x/*/*.go", "y/a.go"},
		{"**/y/**/*.go", "x/y/a.go x/y/z.go/inner.go"},
		{"*/a.go", "x/a.go"},
		{"[ab].*", "a.go b.txt"},
		{"x/[1].txt", "[1].txt"},
		{"to-x/*.go", "a.go link.go"}, // a link before the wildcard is followed
		{"?.txt", "b.txt"},
	} {
		files, _, err := find([]string{filepath.Join(dir, c.pattern)})
		if err != nil || names(files) != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.pattern, names(files), err, c.want)
		}
	}
	files, empty, err := find([]string{dir + "/x/*.go", dir + "/a.go", dir + "/x/a.go", dir + "/b.txt"})
	if got := names(files); err != nil || got != "a.go link.go b.txt" || empty != 1 {
		t.Errorf("several patterns: got %q, %d empty, %v", got, empty, err)
	}
}

func TestGlobRelativeToTheFolder(t *testing.T) {
	t.Chdir(folder(t, map[string]string{"a.go": "1", "x/b.go": "1"}))
	for pattern, want := range map[string]string{"**/*.go": "a.go x/b.go", "./*.go": "a.go", "x/*": "b.go", "a.go": "a.go"} {
		if files, _, err := find([]string{pattern}); err != nil || names(files) != want {
			t.Errorf("%s: got %q, %v", pattern, names(files), err)
		}
	}
}

// Bad input is an error before the first step that names the path or pattern,
// what was found, and the key to change.
func TestBadInput(t *testing.T) {
	dir := folder(t, map[string]string{
		"a.txt": "hello", "empty.txt": "", "sub/empty.txt": "",
		"odd.bin": "abc", "ids.bin": encode([]int32{1, 2, 300, 4}, 2), "ids32.bin": encode([]int32{1, 2, 300, 4}, 4),
	})
	tokens := func(seqLen int, dtype string, train string) Options {
		o := textOptions(seqLen, filepath.Join(dir, train))
		o.Format, o.DType = "tokens", dtype
		return o
	}
	with := func(o Options, change func(*Options)) Options { change(&o); return o }
	for _, c := range []struct {
		name string
		o    Options
		want []string
	}{
		{"missing", textOptions(2, dir+"/no.txt"), []string{"data.train: cannot read " + dir + "/no.txt", "no such file"}},
		{"missing folder of a glob", textOptions(2, dir+"/no/*.txt"), []string{"glob " + dir + "/no/*.txt", "no such file"}},
		{"no match", textOptions(2, dir+"/**/*.md"), []string{"glob " + dir + "/**/*.md matches no file", "6 files and 1 folders"}},
		{"malformed glob", textOptions(2, dir+"/[a"), []string{"[a", "malformed"}},
		{"a folder", textOptions(2, dir), []string{dir + " is a folder; " + dir + "/**"}},
		{"empty", textOptions(2, dir+"/empty.txt"), []string{"data.train: " + dir + "/empty.txt names 1 file(s), all of them empty"}},
		{"all empty", textOptions(2, dir+"/**/empty.txt"), []string{"names 2 file(s), all of them empty"}},
		{"none", textOptions(2), []string{"data.train names no files"}},
		{"too short", textOptions(6, dir+"/a.txt"), []string{"data.train holds 6 tokens in 1 file(s)", "data.seq_len = 6 takes 7"}},
		{"missing evaluation", with(textOptions(2, dir+"/a.txt"), func(o *Options) { o.Eval = []string{dir + "/no"} }), []string{"data.eval: cannot read"}},
		{"short evaluation", with(textOptions(3, dir+"/a.txt"), func(o *Options) { o.EvalSplit = 0.2 }), []string{"evaluation holds 2 tokens"}},
		{"nothing left", with(textOptions(2, dir+"/a.txt"), func(o *Options) { o.Eval = []string{dir + "/*.txt"} }), []string{"data.eval names all files"}},
		{"split of too few", with(textOptions(2, dir+"/a.txt", dir+"/odd.bin"), func(o *Options) { o.EvalSplit = 1e-9 }), []string{"data.eval_split 1e-09 holds back 0 of 2 files"}},
		{"half a token", tokens(2, "uint16", "odd.bin"), []string{"odd.bin: its 3 bytes are not a multiple of 2", "data.dtype"}},
		{"unknown id", tokens(2, "uint16", "ids.bin"), []string{"ids.bin: token 2 is 300", "model.vocab is 256"}},
		{"unknown id, 32 bits", tokens(2, "uint32", "ids32.bin"), []string{"ids32.bin: token 2 is 300"}},
		{"wrong width", with(tokens(1, "uint32", "ids.bin"), func(o *Options) { o.Vocab = 60000 }), []string{"token 0 is 131073", "is data.dtype right?"}},
		{"unknown dtype", tokens(2, "int8", "ids.bin"), []string{`data.dtype "int8"`}},
		{"unknown format", with(textOptions(2, dir), func(o *Options) { o.Format = "chatt" }), []string{`data.format "chatt"`}},
		{"vocab below the bytes", with(textOptions(2, dir), func(o *Options) { o.Vocab = 255 }), []string{"256 bytes", "255"}},
		{"documents of tokens", with(tokens(2, "uint16", "odd.bin"), func(o *Options) { o.Packing = false }), []string{"data.packing"}},
		{"no length", textOptions(0, dir), []string{"seq_len 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(context.Background(), c.o)
			wantError(t, err, c.want...)
		})
	}
}

func TestUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		testenv.Skip(t, "user", "root may read every file")
	}
	dir := folder(t, map[string]string{"a/b.txt": "hello"})
	if err := os.Chmod(dir+"/a/b.txt", 0); err != nil {
		t.Fatal(err)
	}
	_, err := Open(context.Background(), textOptions(2, dir+"/**/*.txt"))
	wantError(t, err, dir+"/a/b.txt", "permission denied")
}

func TestOpenStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Open(ctx, textOptions(2, folder(t, map[string]string{"a": "hello"})+"/*"))
	wantError(t, err, "canceled")
}

// A file that shrinks while it is mapped is an error, not a crash; so is an id
// that somebody writes into it later.
func TestTokensThatChange(t *testing.T) {
	dir := folder(t, map[string]string{"a.bin": encode(make([]int32, 40000), 4)})
	o := textOptions(64, dir+"/a.bin")
	o.Format, o.DType = "tokens", "uint32"
	d := open(t, o).Train
	tokens, targets := make([]int32, 64), make([]int32, 64)
	f, err := os.OpenFile(dir+"/a.bin", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1, 1, 0, 0}, 4*70); err != nil {
		t.Fatal(err)
	}
	_, err = d.Read(1, tokens, targets)
	wantError(t, err, "a.bin: token 70 is 257", "model.vocab = 256")
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	_, err = d.Read(500, tokens, targets)
	wantError(t, err, "a.bin", "shortened")
}

// What is held back depends on a file's name below the pattern alone: not on
// where the folder lies, nor on what other files are there.
func TestEvalSplit(t *testing.T) {
	files := map[string]string{}
	for i := range 2000 {
		files[fmt.Sprintf("d%d/%d.txt", i%7, i)] = pseudo(uint64(i), 20)
	}
	held := func(dir string) ([]string, Options) {
		o := textOptions(4, dir+"/**/*.txt")
		o.EvalSplit = 0.1
		train, eval, err := selectFiles(o, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(train.files)+len(eval.files) != len(files) {
			t.Errorf("%d + %d of %d files", len(train.files), len(eval.files), len(files))
		}
		return strings.Fields(names(eval.files)), o
	}
	before, _ := held(folder(t, files))
	if n := len(before); n < 160 || n > 240 {
		t.Errorf("%d of 2000 held back, want about 200", n)
	}
	for i := range 100 {
		files[fmt.Sprintf("new/%d.txt", i)] = "hello"
	}
	after, o := held(folder(t, files))
	after = slices.DeleteFunc(after, func(s string) bool { return strings.HasPrefix(s, "new/") })
	if !slices.Equal(before, after) {
		t.Error("the choice moved with the folder or with other files")
	}
	s := open(t, o)
	if s.Train.Info().Files+s.Eval.Info().Files != 2100 {
		t.Errorf("train %v, eval %v", s.Train.Info(), s.Eval.Info())
	}
}

// A single file gives its last part; a width of tokens is kept whole.
func TestEvalSplitOfOneFile(t *testing.T) {
	dir := folder(t, map[string]string{"a": pseudo(1, 1001)})
	o := textOptions(10, dir+"/a")
	o.EvalSplit = 0.1
	train, eval, err := selectFiles(o, 4)
	if err != nil {
		t.Fatal(err)
	}
	if train.files[0].from != 0 || train.files[0].to != 900 || eval.files[0].from != 900 || eval.files[0].to != 1001 {
		t.Errorf("train %+v, eval %+v", train.files, eval.files)
	}
	s := open(t, o)
	if a, b := s.Train.Info().Bytes, s.Eval.Info().Bytes; a != 901 || b != 100 {
		t.Errorf("%d and %d bytes", a, b)
	}
}

func TestMaxBytes(t *testing.T) {
	files := map[string]string{}
	for i := range 50 {
		files[fmt.Sprintf("%02d", i)] = pseudo(uint64(i), 10+i)
	}
	dir := folder(t, files)
	for _, max := range []int64{1, 2, 11, 100, 777, 1725, 5000} {
		for _, width := range []int{1, 2, 4} {
			all, _, err := find([]string{dir + "/*"})
			if err != nil {
				t.Fatal(err)
			}
			kept := limit(all, max, width)
			var sum int64
			cut := 0
			for i, f := range kept {
				sum += f.size()
				if f.size()%int64(width) != 0 && f.size() != int64(len(files[f.rel])) {
					t.Errorf("%s is cut within a token", f.rel)
				}
				if f.size() < int64(len(files[f.rel])) {
					cut++
				}
				if i > 0 && f.rel <= kept[i-1].rel {
					t.Error("the order of the files changed")
				}
			}
			if sum > max || sum < min(1725, max)-int64(width)+1 || cut > 1 {
				t.Errorf("max %d, width %d: %d bytes, %d files cut", max, width, sum, cut)
			}
			if all[0].size() != 10 {
				t.Error("the list that was given has changed")
			}
		}
	}
}

// Equal data has an equal fingerprint wherever it lies, and any change shows.
func TestFingerprint(t *testing.T) {
	base := map[string]string{"a": pseudo(1, 100), "b": pseudo(2, 50)}
	print := func(files map[string]string) uint64 {
		return open(t, textOptions(4, folder(t, files)+"/*")).Train.Info().Fingerprint
	}
	want := print(base)
	if got := print(base); got != want {
		t.Error("the same files differ")
	}
	for name, files := range map[string]map[string]string{
		"a byte":  {"a": pseudo(1, 99) + "\x00", "b": pseudo(2, 50)},
		"order":   {"b": pseudo(1, 100), "a": pseudo(2, 50)},
		"borders": {"a": pseudo(1, 100) + pseudo(2, 50)},
	} {
		if print(files) == want {
			t.Errorf("another %s shows no difference", name)
		}
	}
}

// Check finds what Open would stumble over, from names and sizes alone.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"full": "x", "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o000); err != nil { // not to be read
			t.Fatal(err)
		}
	}
	for pattern, want := range map[string]string{
		"full": "", "*": "", "empty": "all of them empty", "none": "no such file", "*.x": "matches no file", "": "is a folder",
	} {
		err := Check([]string{filepath.Join(dir, "full"), filepath.Join(dir, pattern)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", pattern, err, want)
		}
	}
	if err := Check(nil); err != nil {
		t.Error(err)
	}
}
