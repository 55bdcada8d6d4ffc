package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/models/gorgonia/mnist/mnisttest"
)

// The program as a reader starts it: two processes, which learn in a hundred steps what
// is well beyond chance, and say it once.
func TestTheProgramOnTwoRanks(t *testing.T) {
	folder, bin := mnisttest.Part(t, 6000, 1000), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, ".", "../../launcher/gorun")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	job := exec.CommandContext(ctx, filepath.Join(bin, "gorun"), "--nproc", "2", "--", filepath.Join(bin, "gorgonia-mnist"), "-data", folder, "-steps", "100")
	job.Dir = t.TempDir()
	out, err := job.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var right float64
	_, said, _ := strings.Cut(string(out), "[rank0] ")
	n, err := fmt.Sscanf(said, "%f %% of the test images are right after 100 steps, ranks: 2\n", &right)
	if n != 1 || err != nil || !(right > 80) || strings.Count(string(out), "right after") != 1 {
		t.Errorf("the program says %q, want 80 %% or more, once", out)
	}
}
