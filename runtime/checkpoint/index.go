package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/bits"
	"slices"
)

// IndexName is the file that says which tensors a checkpoint holds, and where. A
// checkpoint without one holds the tensors of its .safetensors files, each whole.
const IndexName = "index.json"

const indexVersion = 1

// Index says where a checkpoint's tensors are. Who wrote them, and how many ranks
// that were, does not matter to a reader.
type Index struct {
	Tensors map[string]Tensor `json:"tensors"`
	// Private are tensors that one rank alone has, by its number. They mean something
	// to the same rank of as many.
	Private map[int]map[string]Tensor `json:"private,omitempty"`
}

// Tensor is a tensor and the pieces that it lies in.
type Tensor struct {
	Type   string  `json:"dtype"` // as a safetensors file spells it: "F32"
	Shape  []int   `json:"shape"`
	Pieces []Piece `json:"pieces"` // in order of elements
}

// Piece is elements [From, To) of a tensor, row-major: all of what a file has under
// a name.
type Piece struct {
	File string `json:"file"`
	Name string `json:"tensor"` // in the file
	From int    `json:"from"`
	To   int    `json:"to"`
}

// Numel is the number of elements. ok is false where the shape is none.
func (t Tensor) Numel() (n int, ok bool) {
	n = 1
	for _, d := range t.Shape {
		if d < 0 {
			return 0, false
		}
		hi, lo := bits.Mul64(uint64(n), uint64(d))
		if hi != 0 || lo > 1<<62 {
			return 0, false
		}
		n = int(lo)
	}
	return n, true
}

// Add adds a piece of a tensor of that name, which all of its pieces describe alike.
func (x *Index) Add(name, dtype string, shape []int, p Piece) error {
	if x.Tensors == nil {
		x.Tensors = map[string]Tensor{}
	}
	return addTo(x.Tensors, name, dtype, shape, p)
}

// AddPrivate adds a tensor of one rank, whole.
func (x *Index) AddPrivate(rank int, name, dtype string, shape []int, p Piece) error {
	if x.Private == nil {
		x.Private = map[int]map[string]Tensor{}
	}
	if x.Private[rank] == nil {
		x.Private[rank] = map[string]Tensor{}
	}
	return addTo(x.Private[rank], name, dtype, shape, p)
}

func addTo(list map[string]Tensor, name, dtype string, shape []int, p Piece) error {
	t, ok := list[name]
	if !ok {
		t = Tensor{Type: dtype, Shape: shape}
	} else if t.Type != dtype || !slices.Equal(t.Shape, shape) {
		return fmt.Errorf("tensor %q is %s%v in %s, and %s%v in %s", name, dtype, shape, p.File, t.Type, t.Shape, t.Pieces[0].File)
	}
	t.Pieces = append(t.Pieces, p)
	list[name] = t
	return nil
}

// sort brings the pieces into order.
func (x *Index) sort() {
	for _, list := range x.lists() {
		for _, t := range list {
			slices.SortFunc(t.Pieces, func(a, b Piece) int { return cmp.Or(a.From-b.From, a.To-b.To, cmp.Compare(a.File, b.File)) })
		}
	}
}

// lists are all maps of tensors that the index has, in a fixed order.
func (x *Index) lists() []map[string]Tensor {
	all := []map[string]Tensor{x.Tensors}
	for _, rank := range slices.Sorted(maps.Keys(x.Private)) {
		all = append(all, x.Private[rank])
	}
	return all
}

// check makes sure that each tensor's pieces hold each of its elements once, and lie
// in the given files.
func (x *Index) check(files []Entry) error {
	known := map[string]bool{}
	for _, f := range files {
		known[f.Name] = true
	}
	for _, list := range x.lists() {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			if err := list[name].check(known); err != nil {
				return fmt.Errorf("tensor %q: %w", name, err)
			}
		}
	}
	return nil
}

func (t Tensor) check(files map[string]bool) error {
	n, ok := t.Numel()
	if !ok {
		return fmt.Errorf("shape %v is none", t.Shape)
	}
	at, before := 0, ""
	for i, p := range t.Pieces {
		switch {
		case !files[p.File]:
			return fmt.Errorf("elements %d to %d are to be in %q, which is no file of the checkpoint", p.From, p.To, p.File)
		case p.From < 0 || p.To > n:
			return fmt.Errorf("%s is to hold elements %d to %d, the shape %v has %d", p.File, p.From, p.To, t.Shape, n)
		case p.To <= p.From && (n > 0 || i > 0):
			return fmt.Errorf("%s is to hold elements %d to %d, which are none", p.File, p.From, p.To)
		case p.From > at:
			return fmt.Errorf("elements %d to %d are in no file; the next ones are in %s", at, p.From, p.File)
		case p.From < at:
			return fmt.Errorf("elements %d to %d are both in %s and in %s", p.From, min(at, p.To), before, p.File)
		}
		at, before = p.To, p.File
	}
	if at < n {
		return fmt.Errorf("elements %d to %d are in no file of the checkpoint", at, n)
	}
	return nil
}

// Encode is the file's text, for WriteFile under IndexName. files are those that all
// ranks have written. An index of which a reader would find that elements are missing
// or doubled is an error.
func (x *Index) Encode(files []Entry) ([]byte, error) {
	x.sort()
	if err := x.check(files); err != nil {
		return nil, fmt.Errorf("checkpoint: the index: %w", err)
	}
	text, err := json.MarshalIndent(struct {
		Version int `json:"version"`
		*Index
	}{indexVersion, x}, "", " ")
	if err != nil {
		return nil, fmt.Errorf("checkpoint: the index: %w", err)
	}
	return append(text, '\n'), nil
}

// parseIndex reads what Encode wrote, beside the checkpoint's files.
func parseIndex(text []byte, files []Entry) (x Index, err error) {
	head := struct {
		Version int `json:"version"`
		*Index
	}{Index: &x}
	if err := json.Unmarshal(text, &head); err != nil {
		return x, err
	}
	if head.Version != indexVersion {
		return x, fmt.Errorf("version %d, this program reads version %d", head.Version, indexVersion)
	}
	return x, x.check(files)
}
