package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// counting is the bytes of f32 from, from+1, ..., to-1.
func counting(from, to int) (b []byte) {
	for i := from; i < to; i++ {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(i)))
	}
	return b
}

// holding writes a safetensors file: each name with the elements that it counts.
func holding(tensors map[string][2]int, shape ...int) func(io.Writer) error {
	var list []safetensors.Tensor
	for name, r := range tensors {
		s := shape
		if s == nil {
			s = []int{r[1] - r[0]}
		}
		list = append(list, safetensors.Tensor{Name: name, DType: dtype.F32, Shape: s, Data: safetensors.Bytes(counting(r[0], r[1]))})
	}
	return func(w io.Writer) error { return safetensors.Encode(w, list, nil) }
}

// indexed publishes two files that hold pieces of w [3,4], 5 and 7 elements, an empty
// tensor, and one of rank 1 alone, with an index that change may spoil: before it is
// encoded, or its text.
func indexed(t *testing.T, change func(x *Index), text func(string) string) (*Checkpoint, error) {
	t.Helper()
	d, err := Begin(filepath.Join(t.TempDir(), "checkpoints"), 1)
	must(t, err)
	t.Cleanup(func() { must(t, d.Discard()) })
	must(t, d.WriteFile("a.safetensors", holding(map[string][2]int{"w[0:5]": {0, 5}, "none": {0, 0}})))
	must(t, d.WriteFile("b.safetensors", holding(map[string][2]int{"w[5:12]": {5, 12}, "own": {50, 53}})))
	var x Index
	shape := []int{3, 4}
	must(t, x.Add("w", "F32", shape, Piece{"b.safetensors", "w[5:12]", 5, 12}))
	must(t, x.Add("w", "F32", shape, Piece{"a.safetensors", "w[0:5]", 0, 5}))
	must(t, x.Add("none", "F32", []int{0}, Piece{"a.safetensors", "none", 0, 0}))
	must(t, x.AddPrivate(1, "residual", "F32", []int{3}, Piece{"b.safetensors", "own", 0, 3}))
	if change != nil {
		change(&x)
	}
	b, err := x.Encode(d.Entries())
	if err != nil {
		return nil, err
	}
	if text != nil {
		b = []byte(text(string(b)))
	}
	must(t, d.WriteFile(IndexName, content(string(b))))
	c, err := d.Publish(nil)
	must(t, err)
	return c, nil
}

func TestAnyElementsAreReadFromTheirPieces(t *testing.T) {
	c, err := indexed(t, nil, nil)
	must(t, err)
	x, err := c.Tensors()
	must(t, err)
	defer x.Close()
	if got := x.Names(); !slices.Equal(got, []string{"none", "w"}) {
		t.Errorf("names %v", got)
	}
	if w, ok := x.Find("w"); !ok || !slices.Equal(w.Shape, []int{3, 4}) || w.Type != "F32" || w.Pieces[0].File != "a.safetensors" {
		t.Errorf("w is %+v", w)
	}
	for from := range 13 {
		for to := from; to <= 12; to++ {
			next := from
			must(t, x.Read("w", from, to, func(at int, b []byte) error {
				if at != next || !bytes.Equal(b, counting(at, at+len(b)/4)) {
					t.Errorf("[%d, %d): %d bytes at %d, want at %d", from, to, len(b), at, next)
				}
				next = at + len(b)/4
				return nil
			}))
			if next != to {
				t.Errorf("[%d, %d): ended at %d", from, to, next)
			}
		}
	}
	must(t, x.Read("none", 0, 0, func(int, []byte) error { return errors.New("called") }))
	must(t, x.ReadPrivate(1, "residual", func(at int, b []byte) error {
		if at != 0 || !bytes.Equal(b, counting(50, 53)) {
			t.Errorf("rank 1's own: %v at %d", b, at)
		}
		return nil
	}))
	if len(x.Private(0)) != 0 || len(x.Private(1)) != 1 {
		t.Errorf("private: %v, %v", x.Private(0), x.Private(1))
	}
	enough := errors.New("enough")
	if err := x.Read("w", 0, 12, func(int, []byte) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	for what, err := range map[string]error{
		`elements 3 to 13 of tensor "w", which has 12`: x.Read("w", 3, 13, nil),
		`no tensor "v"`: x.Read("v", 0, 0, nil),
		`rank 0 has no tensor "residual" of its own`: x.ReadPrivate(0, "residual", nil),
	} {
		wantErr(t, err, what)
	}
}

// A file that nobody asks anything of is not opened.
func TestOnlyTheFilesThatAreNeededAreOpened(t *testing.T) {
	c, err := indexed(t, nil, nil)
	must(t, err)
	must(t, os.Remove(filepath.Join(c.Dir, "b.safetensors")))
	x, err := c.Tensors()
	must(t, err)
	defer x.Close()
	must(t, x.Read("w", 0, 5, func(int, []byte) error { return nil }))
	wantErr(t, x.Read("w", 0, 6, func(int, []byte) error { return nil }), `tensor "w", elements 5 to 12`, "b.safetensors", "no such file")
}

// Whoever writes an index that leaves out elements learns it before it counts, and
// whoever reads one, too.
func TestAnIndexMustHoldEachElementOnce(t *testing.T) {
	piece := func(i int, change func(p *Piece)) func(x *Index) {
		return func(x *Index) {
			slices.SortFunc(x.Tensors["w"].Pieces, func(a, b Piece) int { return a.From - b.From })
			change(&x.Tensors["w"].Pieces[i])
		}
	}
	for name, c := range map[string]struct {
		change func(x *Index)
		want   []string
	}{
		"hole":       {piece(1, func(p *Piece) { p.From = 6 }), []string{`tensor "w"`, "elements 5 to 6 are in no file", "b.safetensors"}},
		"overlap":    {piece(1, func(p *Piece) { p.From = 4 }), []string{`tensor "w"`, "elements 4 to 5 are both in a.safetensors and in b.safetensors"}},
		"begins":     {piece(0, func(p *Piece) { p.From = 1 }), []string{`tensor "w"`, "elements 0 to 1 are in no file", "a.safetensors"}},
		"ends":       {piece(1, func(p *Piece) { p.To = 11 }), []string{`tensor "w"`, "elements 11 to 12 are in no file"}},
		"beyond":     {piece(1, func(p *Piece) { p.To = 13 }), []string{`tensor "w"`, "b.safetensors", "elements 5 to 13", "[3 4] has 12"}},
		"before":     {piece(0, func(p *Piece) { p.From = -1 }), []string{`tensor "w"`, "a.safetensors", "elements -1 to 5"}},
		"nothing":    {piece(0, func(p *Piece) { p.From = 5 }), []string{`tensor "w"`, "elements 5 to 5, which are none"}},
		"other file": {piece(0, func(p *Piece) { p.File = "c.safetensors" }), []string{`tensor "w"`, `"c.safetensors", which is no file`}},
		"path":       {piece(0, func(p *Piece) { p.File = "../a.safetensors" }), []string{`tensor "w"`, `"../a.safetensors", which is no file`}},
		"missing":    {func(x *Index) { x.Tensors["w"] = Tensor{Type: "F32", Shape: []int{3, 4}} }, []string{`tensor "w"`, "elements 0 to 12 are in no file"}},
		"shape":      {func(x *Index) { x.Tensors["w"] = Tensor{Type: "F32", Shape: []int{3, -4}} }, []string{`tensor "w"`, "[3 -4] is none"}},
		"overflow":   {func(x *Index) { x.Tensors["w"] = Tensor{Type: "F32", Shape: []int{1 << 40, 1 << 40}} }, []string{`tensor "w"`, "is none"}},
		"private":    {func(x *Index) { x.Private[1]["residual"].Pieces[0].To = 2 }, []string{`tensor "residual"`, "elements 2 to 3 are in no file"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := indexed(t, c.change, nil)
			wantErr(t, err, c.want...)
		})
	}
}

// The same holds for the text of an index that someone else has written.
func TestADamagedIndexIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		old, new string
		want     []string
	}{
		"hole":    {`"from": 5`, `"from": 6`, []string{`tensor "w"`, "elements 5 to 6 are in no file"}},
		"overlap": {`"to": 5`, `"to": 7`, []string{`tensor "w"`, "both in a.safetensors and in b.safetensors"}},
		"version": {`"version": 1`, `"version": 2`, []string{"index.json", "version 2, this program reads version 1"}},
		"json":    {`"to": 5`, `"to": 5,`, []string{"index.json", "invalid character"}},
		"file":    {`"file": "a.safetensors"`, `"file": "manifest.json"`, []string{`"manifest.json", which is no file`}},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := indexed(t, nil, func(s string) string {
				if !strings.Contains(s, c.old) {
					t.Fatalf("no %s in\n%s", c.old, s)
				}
				return strings.Replace(s, c.old, c.new, 1)
			})
			must(t, err)
			_, err = made.Tensors()
			wantErr(t, err, append(c.want, made.Dir)...)
		})
	}
}

// An index and the files must agree.
func TestAFileThatHoldsOtherThanTheIndexSaysIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		old, new string
		want     []string
	}{
		"type": {`"dtype": "F32"`, `"dtype": "BF16"`, []string{`"w[0:5]" as F32[5]`, "5 elements of BF16"}},
		"name": {`"tensor": "w[0:5]"`, `"tensor": "w"`, []string{`no tensor "w"`, "a.safetensors"}},
		"size": {"", "", []string{"a.safetensors", `"w[0:5]" as F32[5]`, "6 elements"}},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := indexed(t, nil, func(s string) string {
				if name == "size" { // the cut is one further on
					return strings.Replace(strings.Replace(s, `"to": 5`, `"to": 6`, 1), `"from": 5`, `"from": 6`, 1)
				}
				i := strings.Index(s, `"w": {`) // behind the other tensors
				return s[:i] + strings.Replace(s[i:], c.old, c.new, 1)
			})
			must(t, err)
			x, err := made.Tensors()
			must(t, err)
			defer x.Close()
			wantErr(t, x.Read("w", 0, 12, func(int, []byte) error { return nil }), append(c.want, `tensor "w"`, made.Dir)...)
		})
	}
}

// A piece that is shortened while it is read is an error that names it, and not the end
// of the process. What lies in other files is still read.
func TestAPieceThatIsShortenedMeanwhileIsAnError(t *testing.T) {
	c, err := indexed(t, nil, nil)
	must(t, err)
	x, err := c.Tensors()
	must(t, err)
	defer x.Close()
	touch := func(_ int, b []byte) error {
		_ = bytes.Clone(b)
		return nil
	}
	file := filepath.Join(c.Dir, "b.safetensors")
	err = x.Read("w", 0, 12, func(at int, b []byte) error {
		if at == 5 { // opened and mapped by now
			must(t, os.Truncate(file, 0))
		}
		return touch(at, b)
	})
	wantErr(t, err, file+": a part of it can no longer be read")
	wantErr(t, x.ReadPrivate(1, "residual", touch), file+": a part of it can no longer be read")
	must(t, x.Read("w", 0, 5, touch))
}

// A checkpoint from before there was an index holds whole tensors.
func TestACheckpointWithoutIndexIsRead(t *testing.T) {
	d, err := Begin(t.TempDir(), 1)
	must(t, err)
	defer d.Discard()
	must(t, d.WriteFile("model.safetensors", holding(map[string][2]int{"w": {0, 12}}, 3, 4)))
	must(t, d.WriteFile("optimizer.safetensors", holding(map[string][2]int{"m.w": {20, 32}}, 3, 4)))
	must(t, d.WriteFile("config.yaml", content("a: b")))
	c, err := d.Publish(nil)
	must(t, err)
	x, err := c.Tensors()
	must(t, err)
	defer x.Close()
	if got := x.Names(); !slices.Equal(got, []string{"m.w", "w"}) {
		t.Errorf("names %v", got)
	}
	must(t, x.Read("m.w", 3, 5, func(at int, b []byte) error {
		if at != 3 || !bytes.Equal(b, counting(23, 25)) {
			t.Errorf("%v at %d", b, at)
		}
		return nil
	}))

	twice, err := Begin(t.TempDir(), 1)
	must(t, err)
	defer twice.Discard()
	must(t, twice.WriteFile("a.safetensors", holding(map[string][2]int{"w": {0, 12}})))
	must(t, twice.WriteFile("b.safetensors", holding(map[string][2]int{"w": {0, 12}})))
	c, err = twice.Publish(nil)
	must(t, err)
	_, err = c.Tensors()
	wantErr(t, err, `tensor "w"`, "both in a.safetensors and in b.safetensors")
}

func TestPiecesOfOneTensorAreAlike(t *testing.T) {
	var x Index
	must(t, x.Add("w", "F32", []int{3, 4}, Piece{"a", "w", 0, 5}))
	wantErr(t, x.Add("w", "F32", []int{4, 3}, Piece{"b", "w", 5, 12}), `tensor "w" is F32[4 3] in b, and F32[3 4] in a`)
}

// The ranks' shares are all files, each once, and about as many bytes.
func TestFilesAreDealtOutForVerifying(t *testing.T) {
	c := &Checkpoint{}
	for i := range 7 {
		c.Files = append(c.Files, Entry{Name: fmt.Sprint(i), Size: int64(100 + i)})
	}
	for ranks := 1; ranks <= 9; ranks++ {
		seen, sizes := map[string]int{}, make([]int64, ranks)
		for r := range ranks {
			for _, e := range c.Share(r, ranks) {
				seen[e.Name]++
				sizes[r] += e.Size
			}
		}
		if len(seen) != 7 {
			t.Errorf("%d ranks: %v", ranks, seen)
		}
		if slices.Max(sizes)-slices.Min(sizes) > 106 {
			t.Errorf("%d ranks verify %v bytes", ranks, sizes)
		}
	}
}

// What is written behind is what was given, wherever windows end, and all that is
// counted is read again.
func TestWritingBehind(t *testing.T) {
	want := counting(0, 100)
	for _, size := range []int{1, 3, 16, 17, 400} {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		must(t, err)
		defer f.Close()
		b := &behind{f: f, window: 16, depth: 2}
		for piece := range slices.Chunk(want, size) {
			if n, err := b.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("%d of %d bytes: %v", n, len(piece), err)
			}
		}
		if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) || b.sent != 400 {
			t.Errorf("pieces of %d: %d bytes, %d of them sent (%v)", size, len(got), b.sent, err)
		}
	}
}

func TestVerifyTellsOfProgress(t *testing.T) {
	c := publishStep(t, t.TempDir(), 5)
	var moved int
	must(t, c.Verify(c.Files[:1], func(n int) { moved += n }))
	if int64(moved) != c.Files[0].Size {
		t.Errorf("%d bytes, the file has %d", moved, c.Files[0].Size)
	}
	must(t, os.WriteFile(filepath.Join(c.Dir, c.Files[0].Name), []byte("a.bin cOntent of 5"), 0o644))
	wantErr(t, c.Verify(c.Files[:1], nil), "a.bin is damaged")
	must(t, c.Verify(c.Files[1:], nil)) // it looks at no others
}
