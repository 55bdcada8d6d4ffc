package safetensors

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

const (
	shard1 = "model-00001-of-00002.safetensors"
	shard2 = "model-00002-of-00002.safetensors"
)

// sharded writes two shards with tensors a, b and c, and the given index.
func sharded(t *testing.T, index string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, WriteFile(filepath.Join(dir, shard1), []Tensor{
		{"a", dtype.U8, []int{2}, Bytes([]byte{1, 2})},
		{"b", dtype.U8, []int{1}, Bytes([]byte{3})},
	}, nil))
	must(t, WriteFile(filepath.Join(dir, shard2), []Tensor{{"c", dtype.U8, []int{1}, Bytes([]byte{4})}}, nil))
	write(t, dir, "model.safetensors.index.json", []byte(index))
	return dir
}

const goodIndex = `{"metadata":{"total_size":4},"weight_map":{"a":"` + shard1 + `","b":"` + shard1 + `","c":"` + shard2 + `"}}`

func TestSharded(t *testing.T) {
	dir := sharded(t, goodIndex)
	for _, path := range []string{dir, filepath.Join(dir, "model.safetensors.index.json")} {
		r := open(t, path)
		if names := r.Names(); !slices.Equal(names, []string{"a", "b", "c"}) {
			t.Errorf("names %v", names)
		}
		var all []byte
		for _, name := range r.Names() {
			_, b, err := r.Tensor(name)
			must(t, err)
			all = append(all, b...)
		}
		if !bytes.Equal(all, []byte{1, 2, 3, 4}) {
			t.Errorf("data %v", all)
		}
	}
}

func TestBadIndexIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ index, want string }{
		"no json":        {"{", "JSON"},
		"no map":         {`{"metadata":{}}`, "no weight_map"},
		"duplicate":      {strings.Replace(goodIndex, `"c":`, `"a":"`+shard1+`","c":`, 1), "twice"},
		"no string":      {`{"weight_map":{"a":1}}`, "string"},
		"wrong shard":    {strings.Replace(goodIndex, `"b":"`+shard1, `"b":"`+shard2, 1), `"b"`},
		"absent tensor":  {strings.Replace(goodIndex, `"c":`, `"d":"`+shard1+`","c":`, 1), "does not hold it"},
		"not listed":     {strings.Replace(goodIndex, `"b":"`+shard1+`",`, "", 1), `does not list tensor "b"`},
		"missing file":   {strings.Replace(goodIndex, shard2, "other.safetensors", 1), "other.safetensors"},
		"outside":        {strings.Replace(goodIndex, shard2, "../x.safetensors", 1), "no file name"},
		"absolute":       {strings.Replace(goodIndex, shard2, "/etc/passwd", 1), "no file name"},
		"another folder": {strings.Replace(goodIndex, shard2, "sub/x.safetensors", 1), "no file name"},
	} {
		if r, err := Open(sharded(t, c.index)); err == nil {
			r.Close()
			t.Errorf("%s: accepted", name)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	dir := sharded(t, goodIndex)
	must(t, os.Remove(filepath.Join(dir, shard2)))
	must(t, os.Link(filepath.Join(dir, shard1), filepath.Join(dir, shard2)))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "stands both in") {
		t.Errorf("a tensor in two shards: %v", err)
	}
}

func TestFolderWithoutModel(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Error(err)
	}
	if _, err := Open(filepath.Join(dir, "x.safetensors")); err == nil || !os.IsNotExist(unwrapAll(err)) {
		t.Error(err)
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}
