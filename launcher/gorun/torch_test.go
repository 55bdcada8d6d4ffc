package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// TestTorch runs testdata/torch/*.txt: the scripts of examples/torch, unchanged,
// with the torch of Debian's python3-torch, or of the Python in $GORUN_PYTHON.
func TestTorch(t *testing.T) {
	python := os.Getenv("GORUN_PYTHON")
	if python == "" {
		python = "/usr/bin/python3"
	}
	has := func(module string) bool {
		return exec.Command(python, "-c", "import importlib.util, sys; sys.exit(not importlib.util.find_spec('"+module+"'))").Run() == nil
	}
	if !has("torch") {
		testenv.Skip(t, "torch", python+" has no torch (apt-get install --no-install-recommends python3-torch)")
	}
	examples, err := filepath.Abs("../../examples/torch")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/torch", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PYTHON", python)
			e.Setenv("EXAMPLES", examples)
			e.Setenv("PYTHONPATH", os.Getenv("PYTHONPATH"))
			e.Setenv("PYTHONDONTWRITEBYTECODE", "1")
			return nil
		},
		Condition: func(cond string) (bool, error) { return has(cond), nil },
		Cmds:      scriptCommands,
	})
}
