package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) *Reader {
	t.Helper()
	r, err := Open(path)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// raw is a file with any header and so many bytes of data.
func raw(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func write(t *testing.T, dir, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.WriteFile(path, b, 0o644))
	return path
}

func TestFixtures(t *testing.T) {
	for _, c := range []struct {
		file  string
		dtype dtype.DType
		shape []int
		want  []float64
	}{
		{"tensor-1d-int32", dtype.I32, []int{3}, []float64{1, 2, 3}},
		{"tensor-2d-float64", dtype.F64, []int{2, 3}, []float64{1, 2, 3, 24, 25, 26}},
		{"tensor-3d-float32", dtype.F32, []int{2, 2, 3}, []float64{22, 23, 24, 11, 12, 13, 2, 3, 4, 1, 2, 3}},
		{"tensor-4d-float32", dtype.F32, []int{2, 3, 1, 3}, []float64{11, 12, 13, 1, 2, 3, 4, 5, 6, 22, 23, 24, 15, 16, 17, 17, 18, 19}},
	} {
		r := open(t, testenv.Data(t, "safetensors/"+c.file+".safetensors"))
		if names := r.Names(); !slices.Equal(names, []string{"embedding"}) {
			t.Fatalf("%s: names %v", c.file, names)
		}
		info, b, err := r.Tensor("embedding")
		must(t, err)
		if info.DType != c.dtype || !slices.Equal(info.Shape, c.shape) {
			t.Errorf("%s: %s %v", c.file, info.DType, info.Shape)
		}
		if got := decode(info.DType, b); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.file, got, c.want)
		}
	}
}

func decode(d dtype.DType, b []byte) (values []float64) {
	for chunk := range slices.Chunk(b, d.Size()) {
		switch d {
		case dtype.I32:
			values = append(values, float64(int32(binary.LittleEndian.Uint32(chunk))))
		case dtype.F32:
			values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(chunk))))
		case dtype.F64:
			values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(chunk)))
		}
	}
	return values
}

// Real files, read and written again, hold the same tensors.
func TestRewrite(t *testing.T) {
	for _, name := range []string{"stories260K", "tiny-random-gpt2", "tiny-qwen2-synthetic"} {
		r := open(t, testenv.Data(t, name+"/model.safetensors"))
		copied := filepath.Join(t.TempDir(), "copy.safetensors")
		must(t, WriteFile(copied, all(t, r), r.Metadata()))
		c := open(t, copied)
		if len(c.Names()) != len(r.Names()) || !reflect.DeepEqual(c.Metadata(), r.Metadata()) {
			t.Fatalf("%s: %d tensors, metadata %v", name, len(c.Names()), c.Metadata())
		}
		for _, name := range r.Names() {
			was, want, err := r.Tensor(name)
			must(t, err)
			is, got, err := c.Tensor(name)
			must(t, err)
			if is.DType != was.DType || !slices.Equal(is.Shape, was.Shape) || !bytes.Equal(got, want) {
				t.Errorf("%s: %+v became %+v, or other bytes", name, was, is)
			}
		}
	}
}

// all makes writable tensors of what r holds.
func all(t *testing.T, r *Reader) (tensors []Tensor) {
	for _, name := range r.Names() {
		info, b, err := r.Tensor(name)
		must(t, err)
		tensors = append(tensors, Tensor{name, info.DType, info.Shape, Bytes(b)})
	}
	return tensors
}

// everyType has each type in each kind of shape, its data given in pieces.
func everyType() (tensors []Tensor, want map[string][]byte) {
	want = map[string][]byte{}
	for i, d := range dtype.All {
		for name, shape := range map[string][]int{"rank0": nil, "empty": {3, 0, 2}, "vector": {5}, "<&\"é>": {2, 1, 3}} {
			n := d.Size()
			for _, s := range shape {
				n *= s
			}
			data := bytes.Repeat([]byte{byte(i + 1)}, n)
			name = d.String() + "/" + name
			want[name] = data
			tensors = append(tensors, Tensor{name, d, shape, func(w io.Writer) error {
				for len(data) > 0 { // in pieces
					n, err := w.Write(data[:min(3, len(data))])
					if err != nil {
						return err
					}
					data = data[n:]
				}
				return nil
			}})
		}
	}
	return tensors, want
}

func TestRoundTrip(t *testing.T) {
	tensors, want := everyType()
	path := filepath.Join(t.TempDir(), "a.safetensors")
	must(t, WriteFile(path, tensors, map[string]string{"k": "v"}))
	r := open(t, path)
	if m := r.Metadata(); !reflect.DeepEqual(m, map[string]string{"format": "pt", "k": "v"}) {
		t.Errorf("metadata %v", m)
	}
	if len(r.Names()) != len(want) {
		t.Errorf("%d tensors, want %d", len(r.Names()), len(want))
	}
	for name, data := range want {
		info, b, err := r.Tensor(name)
		must(t, err)
		if !bytes.Equal(b, data) {
			t.Errorf("%s: other bytes came back", name)
		}
		if !strings.HasPrefix(name, info.DType.String()+"/") {
			t.Errorf("%s: type %s", name, info.DType)
		}
		if strings.HasSuffix(name, "rank0") && len(info.Shape) != 0 {
			t.Errorf("%s: shape %v", name, info.Shape)
		}
	}
	// Widest types first, names in order within a type.
	var types []dtype.DType
	for i, name := range r.Names() {
		info, _ := r.Info(name)
		if len(types) == 0 || types[len(types)-1] != info.DType {
			types = append(types, info.DType)
		} else if name <= r.Names()[i-1] {
			t.Errorf("%q stands after %q", name, r.Names()[i-1])
		}
	}
	if !slices.Equal(types, []dtype.DType{dtype.I64, dtype.F64, dtype.F32, dtype.I32, dtype.BF16, dtype.F16, dtype.U8}) {
		t.Errorf("order of types: %v", types)
	}
}

// Whatever the names' length, the data starts aligned.
func TestHeaderIsPadded(t *testing.T) {
	for n := range 8 {
		var out bytes.Buffer
		must(t, Encode(&out, []Tensor{{strings.Repeat("n", n), dtype.U8, nil, Bytes([]byte{9})}}, nil))
		h, err := parseHeader(out.Bytes(), int64(out.Len()))
		must(t, err)
		if h.start%8 != 0 {
			t.Errorf("a name of %d bytes: data starts at %d", n, h.start)
		}
	}
}

func TestMalformedFilesAreRefused(t *testing.T) {
	one := func(fields string) []byte { return raw(`{"a":{`+fields+`}}`, 4) }
	huge := binary.LittleEndian.AppendUint64(nil, maxHeader+1)
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":              {nil, "0 bytes"},
		"short":              {[]byte{1, 2, 3}, "3 bytes"},
		"header too long":    {append(huge, '{'), "at most 100000000"},
		"length of all ones": {bytes.Repeat([]byte{255}, 64), "18446744073709551615"},
		"truncated header":   {raw(`{"a":{}}`, 0)[:12], "only 4 follow"},
		"no header":          {raw("", 0), "'{'"},
		"leading space":      {raw(" {}", 0), "'{'"},
		"bad utf-8":          {raw("{\"\xff\":{}}", 0), "UTF-8"},
		"not closed":         {raw(`{"a":{"dtype":"U8"`, 0), "ends too early"},
		"no comma":           {raw(`{"a":{} "b":{}}`, 0), ""},
		"trailing comma":     {raw(`{"__metadata__":{"a":"b",}}`, 0), ""},
		"second value":       {raw(`{} {}`, 0), "after the closing brace"},
		"duplicate tensor":   {raw(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), "twice"},
		"duplicate field":    {one(`"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]`), "twice"},
		"duplicate metadata": {raw(`{"__metadata__":{"k":"1","k":"2"}}`, 0), "twice"},
		"metadata no string": {raw(`{"__metadata__":{"k":1}}`, 0), "string"},
		"unknown field":      {one(`"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1`), "unknown field"},
		"missing field":      {one(`"dtype":"F32","shape":[1]`), "needs"},
		"unknown dtype":      {one(`"dtype":"F31","shape":[1],"data_offsets":[0,4]`), "F31"},
		"negative dimension": {one(`"dtype":"F32","shape":[-1],"data_offsets":[0,4]`), "-1"},
		"fraction":           {one(`"dtype":"F32","shape":[1.0],"data_offsets":[0,4]`), "1.0"},
		"exponent":           {one(`"dtype":"F32","shape":[1e0],"data_offsets":[0,4]`), "1e0"},
		"dimension too big":  {one(`"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]`), "not a whole number"},
		"product overflows":  {one(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]`), "overflow"},
		"bits overflow":      {one(`"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]`), "overflow"},
		"half a byte":        {one(`"dtype":"F4","shape":[7],"data_offsets":[0,4]`), "whole number of bytes"},
		"range too short":    {one(`"dtype":"F32","shape":[1],"data_offsets":[0,3]`), "takes 4 bytes"},
		"range backwards":    {one(`"dtype":"F32","shape":[1],"data_offsets":[4,0]`), "takes 4 bytes"},
		"three offsets":      {one(`"dtype":"F32","shape":[1],"data_offsets":[0,4,4]`), "instead of 2"},
		"hole at the start":  {raw(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "hole of 4"},
		"hole between":       {raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3), "hole of 1"},
		"overlap":            {raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), `within tensor "a"`},
		"same place twice":   {raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2), "within tensor"},
		"truncated data":     {raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 7), "truncated"},
		"data appended":      {raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 9), "appended"},
		"data of nothing":    {raw(`{}`, 1), "appended"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "m.safetensors", c.file)
			r, err := Open(path)
			if err == nil {
				r.Close()
				t.Fatal("accepted")
			}
			// The path goes first, for it holds the name of the case.
			said, named := strings.CutPrefix(err.Error(), "safetensors: "+path+": ")
			if !named || !strings.Contains(said, c.want) {
				t.Errorf("%v; want the path, then %q", err, c.want)
			}
		})
	}
}

// A file that is shortened between its mapping and the reading of its header.
func TestAHeaderThatIsShortenedMeanwhileIsAnError(t *testing.T) {
	r := open(t, write(t, t.TempDir(), "x.safetensors", raw(`{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4)))
	f := r.files[0]
	must(t, os.Truncate(f.path, 0))
	if _, err := mappedHeader(f.data); err == nil || !strings.Contains(err.Error(), "its header: a part of it can no longer be read") {
		t.Errorf("got %v", err)
	}
}

func TestLegalOddities(t *testing.T) {
	dir := t.TempDir()
	if names := open(t, write(t, dir, "none.safetensors", raw("{}      ", 0))).Names(); len(names) != 0 {
		t.Errorf("names %v in an empty file", names)
	}
	// Unsorted header, unaligned data, empty tensors anywhere.
	r := open(t, write(t, dir, "odd.safetensors", raw(`{"c":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},
		"z":{"dtype":"F64","shape":[0],"data_offsets":[4,4]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 5)))
	if names := r.Names(); !slices.Equal(names, []string{"a", "z", "c"}) {
		t.Errorf("names %v", names)
	}
}

func TestTypesWithoutSupportAreListedAndRefused(t *testing.T) {
	r := open(t, write(t, t.TempDir(), "q.safetensors", raw(`{"f8":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},
		"f4":{"dtype":"F4","shape":[2,3],"data_offsets":[3,6]}}`, 6)))
	for _, name := range []string{"f8", "f4"} {
		info, ok := r.Info(name)
		if !ok || info.DType != dtype.Invalid || info.Bytes() != 3 {
			t.Errorf("%s is listed as %+v", name, info)
		}
		if _, _, err := r.Tensor(name); err == nil || !strings.Contains(err.Error(), info.Type) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s as a typed tensor: %v", name, err)
		}
		if _, b, err := r.Raw(name); err != nil || len(b) != 3 {
			t.Errorf("%s raw: %d bytes, %v", name, len(b), err)
		}
	}
	if _, _, err := r.Tensor("nope"); err == nil || !strings.Contains(err.Error(), "nope") {
		t.Errorf("absent tensor: %v", err)
	}
}

func TestWriterRefuses(t *testing.T) {
	ok := Tensor{"a", dtype.F32, []int{1}, Bytes(make([]byte, 4))}
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		tensors []Tensor
		want    string
	}{
		"twice":     {[]Tensor{ok, ok}, "twice"},
		"reserved":  {[]Tensor{{metadataKey, dtype.F32, nil, Bytes(make([]byte, 4))}}, "reserved"},
		"bad name":  {[]Tensor{{"\xff", dtype.F32, nil, Bytes(make([]byte, 4))}}, "UTF-8"},
		"bad type":  {[]Tensor{{"a", dtype.Invalid, nil, Bytes(nil)}}, "invalid"},
		"negative":  {[]Tensor{{"a", dtype.F32, []int{-1}, Bytes(nil)}}, "negative"},
		"overflow":  {[]Tensor{{"a", dtype.F32, []int{math.MaxInt, 2}, Bytes(nil)}}, "overflow"},
		"no data":   {[]Tensor{{"a", dtype.F32, nil, nil}}, "no Data"},
		"too short": {[]Tensor{{"a", dtype.F32, []int{2}, Bytes(make([]byte, 7))}}, "1 short"},
		"too long":  {[]Tensor{{"a", dtype.F32, []int{2}, Bytes(make([]byte, 9))}}, "1 bytes more"},
		"own error": {[]Tensor{{"a", dtype.F32, nil, func(io.Writer) error { return boom }}}, "boom"},
	} {
		if err := Encode(io.Discard, c.tensors, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	path := write(t, t.TempDir(), "there", nil)
	if err := WriteFile(path, []Tensor{ok}, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("WriteFile over a file: %v", err)
	}
}

// FuzzHeader: whatever is accepted tiles its data exactly, and survives being
// written and read again.
func FuzzHeader(f *testing.F) {
	f.Add(raw(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(raw(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"b":{"dtype":"BF16","shape":[],"data_offsets":[1,3]}}`, 3))
	f.Add(raw(`{}`, 0))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := parseHeader(file, int64(len(file)))
		if err != nil {
			return
		}
		data := file[h.start:]
		var end int64
		var tensors []Tensor
		for _, i := range h.tensors {
			if i.Offsets[0] != end || i.Offsets[1] < end || i.Offsets[1] > int64(len(data)) {
				t.Fatalf("tensor %q at %v after byte %d of %d", i.Name, i.Offsets, end, len(data))
			}
			end = i.Offsets[1]
			if i.DType != dtype.Invalid {
				tensors = append(tensors, Tensor{i.Name, i.DType, i.Shape, Bytes(data[i.Offsets[0]:i.Offsets[1]])})
			}
		}
		if end != int64(len(data)) {
			t.Fatalf("tensors end at %d of %d", end, len(data))
		}
		var out bytes.Buffer
		if err := Encode(&out, tensors, h.metadata); err != nil {
			t.Fatal(err)
		}
		again, err := parseHeader(out.Bytes(), int64(out.Len()))
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]Info{}
		for _, i := range h.tensors {
			byName[i.Name] = i
		}
		for _, i := range again.tensors {
			if o := byName[i.Name]; o.DType != i.DType || !slices.Equal(o.Shape, i.Shape) || o.Bytes() != i.Bytes() {
				t.Fatalf("%+v became %+v", o, i)
			}
		}
	})
}
