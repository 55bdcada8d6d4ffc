package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// header is a checked header: its tensors tile the data.
type header struct {
	tensors  []Info // in the order of their data
	metadata map[string]string
	start    int64 // of the data, from the start of the file
}

// parseHeader checks the whole of a file's layout. file holds at least the length
// and the header; size is that of the file.
func parseHeader(file []byte, size int64) (*header, error) {
	if size < 8 {
		return nil, fmt.Errorf("%d bytes; even an empty file has 8 for the header's length", size)
	}
	n := binary.LittleEndian.Uint64(file)
	switch {
	case n > maxHeader:
		return nil, fmt.Errorf("header of %d bytes, at most %d are allowed: not a safetensors file, or damaged", n, maxHeader)
	case int64(n) > size-8:
		return nil, fmt.Errorf("header of %d bytes, but only %d follow: the file is truncated, or not a safetensors file", n, size-8)
	}
	text := file[8 : 8+n]
	if n == 0 || text[0] != '{' {
		return nil, errors.New("the header does not start with '{'")
	}
	if !utf8.Valid(text) { // encoding/json would replace bad bytes, so that names could meet
		return nil, errors.New("the header is not valid UTF-8")
	}
	h := &header{start: 8 + int64(n)}
	if err := h.parse(text); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	return h, h.checkTiling(size - h.start)
}

func (h *header) parse(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // float64 would round large offsets
	err := eachMember(d, func(name string) error {
		if name == metadataKey {
			h.metadata = map[string]string{}
			return eachMember(d, func(key string) error {
				v, err := readString(d)
				h.metadata[key] = v
				return err
			})
		}
		info, err := parseTensor(d, name)
		h.tensors = append(h.tensors, info)
		return err
	})
	if err != nil {
		return err
	}
	if t, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%v (%v) after the closing brace", t, err)
	}
	return nil
}

// eachMember reads an object and calls value for each member, which must read the
// member's value. Duplicate names are refused.
func eachMember(d *json.Decoder, value func(name string) error) error {
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		name, err := readString(d)
		if err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("%q stands twice", name)
		}
		seen[name] = true
		if err := value(name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return expect(d, json.Delim('}'))
}

func parseTensor(d *json.Decoder, name string) (Info, error) {
	info := Info{Name: name}
	var offsets []int64
	var have int
	err := eachMember(d, func(field string) (err error) {
		have++
		switch field {
		case "dtype":
			info.Type, err = readString(d)
		case "shape":
			var dims []int64
			dims, err = readInts(d)
			info.Shape = make([]int, len(dims))
			for i, v := range dims {
				info.Shape[i] = int(v)
			}
		case "data_offsets":
			offsets, err = readInts(d)
			if err == nil && len(offsets) != 2 {
				err = fmt.Errorf("%d numbers instead of 2", len(offsets))
			}
		default:
			err = errors.New("unknown field: want dtype, shape and data_offsets")
		}
		return err
	})
	if err != nil {
		return info, err
	}
	if have != 3 {
		return info, errors.New("needs dtype, shape and data_offsets")
	}
	rank, ok := kindNamed(info.Type)
	if !ok {
		return info, fmt.Errorf("unknown dtype %q", info.Type)
	}
	info.DType = kinds[rank].dtype
	info.Offsets = [2]int64(offsets)
	want, err := kinds[rank].size(info.Shape)
	if err != nil {
		return info, err
	}
	if info.Offsets[0] > info.Offsets[1] || info.Bytes() != want {
		return info, fmt.Errorf("shape %v of %s takes %d bytes, but data_offsets %v span %d",
			info.Shape, info.Type, want, offsets, info.Bytes())
	}
	return info, nil
}

func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		return jsonError(err)
	}
	if t != want {
		return fmt.Errorf("%q where %q should be", fmt.Sprint(t), want.String())
	}
	return nil
}

func readString(d *json.Decoder) (string, error) {
	t, err := d.Token()
	if err != nil {
		return "", jsonError(err)
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("%q where a string should be", fmt.Sprint(t))
	}
	return s, nil
}

// readInts reads an array of whole numbers from 0 to the largest int64.
func readInts(d *json.Decoder) ([]int64, error) {
	if err := expect(d, json.Delim('[')); err != nil {
		return nil, err
	}
	list := []int64{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, jsonError(err)
		}
		n, ok := t.(json.Number)
		if !ok {
			return nil, fmt.Errorf("%q where a number should be", fmt.Sprint(t))
		}
		v, err := strconv.ParseUint(n.String(), 10, 64)
		if err != nil || v > math.MaxInt64 {
			return nil, fmt.Errorf("%s is not a whole number from 0 to %d", n, int64(math.MaxInt64))
		}
		list = append(list, int64(v))
	}
	return list, expect(d, json.Delim(']'))
}

func jsonError(err error) error {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early")
	}
	return err
}

// checkTiling orders the tensors by their place and demands that they cover the
// data from its first byte to its last, each byte once.
func (h *header) checkTiling(data int64) error {
	slices.SortStableFunc(h.tensors, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Offsets[0], b.Offsets[0]), cmp.Compare(a.Offsets[1], b.Offsets[1]))
	})
	var end int64
	for i, t := range h.tensors {
		switch {
		case t.Offsets[0] > end:
			return fmt.Errorf("tensor %q starts at byte %d: a hole of %d bytes before it", t.Name, t.Offsets[0], t.Offsets[0]-end)
		case t.Offsets[0] < end:
			return fmt.Errorf("tensor %q starts at byte %d, within tensor %q, which ends at %d", t.Name, t.Offsets[0], h.tensors[i-1].Name, end)
		}
		end = t.Offsets[1]
	}
	if end != data {
		return fmt.Errorf("the tensors end at byte %d of the data, the file at %d: truncated, or with something appended", end, data)
	}
	return nil
}
