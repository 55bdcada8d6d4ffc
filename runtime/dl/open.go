package dl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// Spec says which library is wanted, where it may lie, and what to tell the user
// who lacks it.
type Spec struct {
	Name    string   // "NCCL", for errors
	Files   []string // names to try in this order: "libnccl.so.2"
	Env     string   // variable with a full path that replaces the search: "GORUN_NCCL_LIB"
	Folders []string // where pip's wheels keep it, below site-packages: "nvidia/nccl/lib"
	Beside  []string // patterns of files in the library's own folder that it opens by name itself
	Gives   string   // what the library is for: "collectives between GPUs"
	Install string   // what to install
}

// ErrNotFound is what an error of Open wraps when no place has the library.
var ErrNotFound = errors.New("not found")

// Open opens the library that s describes. The variable s.Env wins where it is
// set. Else each of s.Files is looked for, the first name everywhere before the
// second: by the loader itself (LD_LIBRARY_PATH, ldconfig), in CUDA toolkits, and
// in the wheels of the Python environment. A file that is there but does not open
// is told in the error beside the places without one.
func Open(s Spec) (*Library, error) {
	runtime.LockOSThread() // the loader keeps the reason of a failure for the thread
	defer runtime.UnlockOSThread()
	if path := os.Getenv(s.Env); s.Env != "" && path != "" {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("%s: %s is %q, which is not a full path", s.Name, s.Env, path)
		}
		l, err := s.open(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %s names a file that does not open: %w (give another, or unset it)", s.Name, s.Env, err)
		}
		l.env = s.Env
		return l, nil
	}
	var broken []string
	try := func(path string) *Library {
		l, err := s.open(path)
		if err == nil {
			return l
		}
		// Absent is what is looked for elsewhere; a file that lacks another one is broken.
		if !strings.HasPrefix(err.Error(), path+": cannot open shared object file: No such file") {
			broken = append(broken, err.Error())
		}
		return nil
	}
	for _, file := range s.Files {
		if l := try(file); l != nil {
			return l, nil
		}
	}
	places := append(toolkits(), wheels(s.Folders)...)
	for _, file := range s.Files {
		for _, folder := range places {
			path := filepath.Join(folder, file)
			if _, err := os.Stat(path); err != nil {
				continue
			}
			if l := try(path); l != nil {
				return l, nil
			}
		}
	}
	return nil, notFound(s, places, broken)
}

// open opens the library at path. What it opens by name itself the loader does
// not find in a folder that it was not told of; but it takes what is open already.
func (s Spec) open(path string) (*Library, error) {
	const mode = purego.RTLD_NOW | purego.RTLD_LOCAL
	h, err := purego.Dlopen(path, mode)
	if err != nil || !filepath.IsAbs(path) {
		return &Library{Name: s.Name, Path: path, handle: h}, err
	}
	for _, pattern := range s.Beside {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(path), pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if _, err := purego.Dlopen(f, mode); err != nil {
				return nil, err
			}
		}
	}
	return &Library{Name: s.Name, Path: path, handle: h}, nil
}

func notFound(s Spec, places, broken []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "no %s in the loader's path (LD_LIBRARY_PATH, ldconfig)", strings.Join(s.Files, " or "))
	if len(places) > 0 {
		fmt.Fprintf(&b, " or in %s", strings.Join(places, ", "))
	}
	for _, why := range broken {
		fmt.Fprintf(&b, "; does not open: %s", why)
	}
	fmt.Fprintf(&b, "; install %s", s.Install)
	if s.Env != "" {
		fmt.Fprintf(&b, ", or set %s to the file's full path", s.Env)
	}
	return fmt.Errorf("%s, for %s: %w: %s", s.Name, s.Gives, ErrNotFound, &b)
}
