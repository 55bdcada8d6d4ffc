package safetensors

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/mapped"
)

// Reader gives access to the tensors of one file, or of the files that an index
// names. The files are mapped: a tensor's bytes are read from disk when touched.
// Its methods may be used concurrently, but not beside Close.
type Reader struct {
	files []*file
	byKey map[string]place
	names []string
}

// file is one mapped file.
type file struct {
	path string
	*header
	data []byte // the whole file
}

type place struct {
	file *file
	info Info
}

// Open opens a .safetensors file, a *.safetensors.index.json, or a folder that
// holds model.safetensors or model.safetensors.index.json. All headers are checked
// before it returns; of the data nothing is read.
func Open(path string) (*Reader, error) {
	if st, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	} else if st.IsDir() {
		if path, err = inFolder(path); err != nil {
			return nil, err
		}
	}
	if strings.HasSuffix(path, ".json") {
		return openIndex(path)
	}
	r := &Reader{byKey: map[string]place{}}
	if err := r.add(path); err != nil {
		return nil, err
	}
	return r, nil
}

func inFolder(dir string) (string, error) {
	names := []string{"model.safetensors", "model.safetensors.index.json"}
	for _, name := range names {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("safetensors: %w", err)
		}
	}
	return "", fmt.Errorf("safetensors: folder %s holds neither %s nor %s", dir, names[0], names[1])
}

// add maps one more file and takes its tensors in.
func (r *Reader) add(path string) error {
	f, err := mapFile(path)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	r.files = append(r.files, f)
	for _, t := range f.tensors {
		if p, ok := r.byKey[t.Name]; ok {
			return fmt.Errorf("safetensors: tensor %q stands both in %s and in %s", t.Name, p.file.path, path)
		}
		r.byKey[t.Name] = place{f, t}
		r.names = append(r.names, t.Name)
	}
	return nil
}

func mapFile(path string) (*file, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err) // the caller names the path
	}
	defer f.Close() // the mapping outlives it
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if st.Size() < 8 { // nothing to map, perhaps
		_, err := parseHeader(nil, st.Size())
		return nil, err
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", st.Size(), err)
	}
	h, err := mappedHeader(data)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(data))
	}
	return &file{path: path, header: h, data: data}, nil
}

func mappedHeader(data []byte) (h *header, err error) {
	defer mapped.Shortened("its header", debug.SetPanicOnFault(true), &err)
	return parseHeader(data, int64(len(data)))
}

// Names lists the tensors: file by file, in the order of their data.
func (r *Reader) Names() []string { return slices.Clone(r.names) }

// Info describes the named tensor, if there is one. The shape is shared: read only.
func (r *Reader) Info(name string) (Info, bool) {
	p, ok := r.byKey[name]
	return p.info, ok
}

// Metadata merges the files' __metadata__; of files that differ in a key, the first
// in order of name counts.
func (r *Reader) Metadata() map[string]string {
	m := map[string]string{}
	for _, f := range slices.Backward(r.files) {
		maps.Copy(m, f.metadata)
	}
	return m
}

// Tensor returns the named tensor and its bytes, little-endian and row-major. A
// type that the project does not have is refused; Raw gives its bytes.
//
// The bytes are a view of the mapped file: read only (a write is a fault), valid
// until Close, and not aligned if the file's writer did not pad its header. Where the
// file may be shortened meanwhile, read them under mapped.Shortened.
func (r *Reader) Tensor(name string) (Info, []byte, error) {
	info, view, err := r.Raw(name)
	if err == nil && info.DType == 0 {
		err = fmt.Errorf("safetensors: %s: tensor %q has type %s, which is not supported: convert it to F32, BF16 or another of %s",
			r.byKey[name].file.path, name, info.Type, supported())
	}
	if err != nil {
		return info, nil, err
	}
	return info, view, nil
}

// Raw is Tensor for every type of the format.
func (r *Reader) Raw(name string) (Info, []byte, error) {
	p, ok := r.byKey[name]
	if !ok {
		return Info{}, nil, fmt.Errorf("safetensors: no tensor %q in %s", name, r.describe())
	}
	from, to := p.file.start+p.info.Offsets[0], p.file.start+p.info.Offsets[1]
	return p.info, p.file.data[from:to:to], nil
}

// Path is the file that holds the named tensor, "" if there is no such tensor.
func (r *Reader) Path(name string) string {
	if p, ok := r.byKey[name]; ok {
		return p.file.path
	}
	return ""
}

// describe names the files in an error.
func (r *Reader) describe() string {
	switch len(r.files) {
	case 0:
		return "an index without files"
	case 1:
		return r.files[0].path
	}
	return fmt.Sprintf("%s and %d more files", r.files[0].path, len(r.files)-1)
}

func supported() string {
	var names []string
	for _, k := range kinds {
		if k.dtype != 0 {
			names = append(names, k.name)
		}
	}
	return strings.Join(names, ", ")
}

// Close unmaps the files. Views of tensors must not be touched after it.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.files {
		if err := unix.Munmap(f.data); err != nil {
			errs = append(errs, fmt.Errorf("safetensors: unmapping %s: %w", f.path, err))
		}
	}
	*r = Reader{}
	return errors.Join(errs...)
}
