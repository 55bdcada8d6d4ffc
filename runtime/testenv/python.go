package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// unavailable is the status with which .ci/python says that PyPI is out of reach.
const unavailable = 69

// python is the Python of $GORUN_PYTHON, or the one that .ci/python makes the first
// time that a test asks for it, on this machine.
var python = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("GORUN_PYTHON"); path != "" {
		return path, nil
	}
	_, self, _, _ := runtime.Caller(0)
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute) // the script's own limits are shorter
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(filepath.Dir(self), "..", "..", ".ci", "python")).Output()
	return strings.TrimSpace(string(out)), err
})

// Python returns the path of a Python that has modules, of those that users open our
// files with: transformers, tokenizers, safetensors, peft, accelerate and tensorboard,
// at the versions of .ci/python.txt, and torch where the machine has it. The test is
// skipped without torch (feature "torch"), and where PyPI is out of reach (feature
// "pypi").
func Python(t testing.TB, modules ...string) string {
	t.Helper()
	path, err := python()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		if exit.ExitCode() == unavailable {
			Skip(t, "pypi", string(bytes.TrimSpace(exit.Stderr)))
		}
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		t.Fatalf(".ci/python: %v", err)
	}
	const missing = "import sys; from importlib.util import find_spec; print(*[m for m in sys.argv[1:] if not find_spec(m)])"
	lacks := strings.Fields(string(RunPython(t, path, nil, append([]string{"-c", missing}, modules...)...)))
	for _, m := range lacks {
		if m == "torch" {
			Skip(t, "torch", path+" has no torch (apt-get install --no-install-recommends python3-torch)")
		}
		Skip(t, "pypi", fmt.Sprintf("%s has no %s (pip install %s, or unset GORUN_PYTHON)", path, m, m))
	}
	return path
}

// RunPython runs a Python with arguments and returns what it prints. It fails the test,
// with what it says on stderr, unless the exit status is 0. Nothing is fetched from
// elsewhere, and one thread computes.
func RunPython(t testing.TB, path string, stdin io.Reader, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = stdin, &said
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "OMP_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", path, errors.Join(err, ctx.Err()), said.Bytes())
	}
	return out
}
