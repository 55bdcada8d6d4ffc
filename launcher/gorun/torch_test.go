package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// TestTorch runs scripts of examples/torch, unchanged, with the torch of Debian's
// python3-torch, or of the Python in $GORUN_PYTHON.
func TestTorch(t *testing.T) {
	python := os.Getenv("GORUN_PYTHON")
	if python == "" {
		python = "/usr/bin/python3" // all that is needed, and needs no PyPI
	}
	if exec.Command(python, "-c", "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))").Run() != nil {
		testenv.Skip(t, "torch", python+" has no torch (apt-get install --no-install-recommends python3-torch)")
	}
	torchScripts(t, python, "ddp.txt", "signals.txt")
}

// TestTransformersTrainer runs the Trainer of transformers, as it is.
func TestTransformersTrainer(t *testing.T) {
	torchScripts(t, testenv.Python(t, "torch", "transformers", "accelerate"), "trainer.txt")
}

// torchScripts runs scripts of testdata/torch.
func torchScripts(t *testing.T, python string, names ...string) {
	examples, err := filepath.Abs("../../examples/torch")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, name := range names {
		files = append(files, filepath.Join("testdata/torch", name))
	}
	testscript.Run(t, testscript.Params{
		Files: files, RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PYTHON", python)
			e.Setenv("EXAMPLES", examples)
			e.Setenv("PYTHONPATH", os.Getenv("PYTHONPATH"))
			e.Setenv("PYTHONDONTWRITEBYTECODE", "1")
			return nil
		},
		Cmds: scriptCommands,
	})
}
