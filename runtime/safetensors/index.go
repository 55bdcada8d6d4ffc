package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// openIndex opens the files that an index names and holds index and files against
// each other: every tensor stands where the index says, and in no other place.
// metadata.total_size is not relied on: tools disagree on what it counts.
func openIndex(path string) (_ *Reader, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	where, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	r := &Reader{byKey: map[string]place{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, name := range slices.Compact(slices.Sorted(maps.Values(where))) {
		if !filepath.IsLocal(name) || filepath.Base(name) != name {
			return nil, fmt.Errorf("safetensors: %s: %q is no file name: files stand beside the index", path, name)
		}
		if err := r.add(filepath.Join(filepath.Dir(path), name)); err != nil {
			return nil, fmt.Errorf("%w (named by %s)", err, path)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(where)) {
		if p, ok := r.byKey[name]; !ok {
			return nil, fmt.Errorf("safetensors: %s places tensor %q in %s, which does not hold it", path, name, where[name])
		} else if filepath.Base(p.file.path) != where[name] {
			return nil, fmt.Errorf("safetensors: %s places tensor %q in %s, but it stands in %s", path, name, where[name], p.file.path)
		}
	}
	for _, name := range r.names {
		if _, ok := where[name]; !ok {
			return nil, fmt.Errorf("safetensors: %s does not list tensor %q of %s", path, name, r.byKey[name].file.path)
		}
	}
	return r, nil
}

// parseIndex returns the file of each tensor.
func parseIndex(text []byte) (map[string]string, error) {
	if !json.Valid(text) {
		return nil, errors.New("not valid JSON")
	}
	var where map[string]string
	d := json.NewDecoder(bytes.NewReader(text))
	err := eachMember(d, func(name string) error {
		if name != "weight_map" {
			var other json.RawMessage
			return d.Decode(&other)
		}
		where = map[string]string{}
		return eachMember(d, func(tensor string) error {
			file, err := readString(d)
			where[tensor] = file
			return err
		})
	})
	if err == nil && where == nil {
		err = errors.New("no weight_map")
	}
	return where, err
}
