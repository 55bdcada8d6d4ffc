package dl

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// toolkits lists the library folders of the CUDA toolkits on this machine, the
// one that CUDA_HOME or CUDA_PATH names first, then newer before older.
func toolkits() []string {
	var roots []string
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if root := os.Getenv(name); root != "" {
			roots = append(roots, root)
		}
	}
	installed, _ := filepath.Glob("/usr/local/cuda*") // the pattern is well formed
	slices.SortFunc(installed, func(a, b string) int { return compareVersions(b, a) })
	roots = append(roots, installed...)
	var found []string
	for _, root := range roots {
		for _, pattern := range []string{"lib64", "targets/*/lib"} {
			folders, _ := filepath.Glob(filepath.Join(root, pattern))
			found = append(found, folders...)
		}
	}
	return existing(found)
}

// compareVersions orders paths such as cuda-9.2 and cuda-13.0 by their numbers.
func compareVersions(a, b string) int {
	number := func(s string) (n []int) {
		for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
			v := 0
			for _, r := range f {
				v = v*10 + int(r-'0')
			}
			n = append(n, v)
		}
		return n
	}
	if c := slices.Compare(number(a), number(b)); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

// wheels lists folders below each site-packages of the Python environment: the
// active virtual or conda environment, and the python3 on PATH.
func wheels(folders []string) []string {
	var roots []string
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if env := os.Getenv(name); env != "" {
			sites, _ := filepath.Glob(filepath.Join(env, "lib/python3*/site-packages"))
			roots = append(roots, sites...)
		}
	}
	if env := os.Getenv("CONDA_PREFIX"); env != "" {
		roots = append(roots, filepath.Join(env, "lib")) // conda's own packages
	}
	roots = append(roots, pythonPath()...)
	var found []string
	for _, root := range roots {
		for _, folder := range folders {
			found = append(found, filepath.Join(root, folder))
		}
		if filepath.Base(root) == "lib" {
			found = append(found, root)
		}
	}
	return existing(found)
}

// pythonPath asks the python3 on PATH where it looks for packages. Without a
// python3, or with one that does not answer, there are no such places.
func pythonPath() []string {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil
	}
	pythonMu.Lock()
	defer pythonMu.Unlock()
	if paths, ok := pythonPaths[python]; ok {
		return paths
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-c", `import sys; print("\n".join(sys.path))`).Output()
	var paths []string
	if err == nil {
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSpace(line); filepath.IsAbs(line) {
				paths = append(paths, line)
			}
		}
	}
	pythonPaths[python] = paths
	return paths
}

var (
	pythonMu    sync.Mutex
	pythonPaths = map[string][]string{} // by the interpreter's path
)

// existing keeps the folders that exist, each once.
func existing(folders []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, f := range folders {
		real, err := filepath.EvalSymlinks(f)
		if err != nil || seen[real] {
			continue
		}
		seen[real] = true
		out = append(out, f)
	}
	return out
}
