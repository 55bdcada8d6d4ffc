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

// sh runs a program in dir and returns all that it prints. It must succeed.
func sh(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", program, args, err, out)
	}
	return string(out)
}

// The program as a reader starts it: two processes, which learn in a hundred steps what
// is well beyond chance, and say it once. And what needs no program: the YAML, which is
// interrupted by its end and goes on.
func TestOnTwoRanks(t *testing.T) {
	folder, dir := mnisttest.Part(t, 6000, 1000), t.TempDir()
	sh(t, ".", "go", "build", "-o", dir, ".", "../../launcher/gorun")
	gorun := filepath.Join(dir, "gorun")
	configs, err := filepath.Abs("../../configs")
	if err != nil {
		t.Fatal(err)
	}

	out := sh(t, dir, gorun, "--nproc", "2", "--", "./gorgonia-mnist", "-data", folder, "-steps", "100")
	var right float64
	_, said, _ := strings.Cut(out, "[rank0] ")
	n, err := fmt.Sscanf(said, "%f %% of the test images are right after 100 steps, ranks: 2\n", &right)
	if n != 1 || err != nil || !(right > 80) || strings.Count(out, "right after") != 1 {
		t.Errorf("the program says %q, want 80 %% or more, once", out)
	}

	job := func(steps int) string {
		return sh(t, dir, gorun, "--nproc", "2", "--resume", filepath.Join(configs, "mnist-mlp.yaml"),
			"--set", "data.train="+folder, "--set", "train.epochs=0", "--set", fmt.Sprint("train.max_steps=", steps))
	}
	job(20)
	out = job(100)
	_, said, _ = strings.Cut(out, "evaluation after step 100: ")
	var loss float64
	n, err = fmt.Sscanf(said, "loss %f nats an image, %f %% of the images right", &loss, &right)
	if n != 2 || err != nil || !(right > 80) || !strings.Contains(out, "step 20 of 100") {
		t.Errorf("the job says %q, want that it goes on from step 20, and 80 %% or more", out)
	}
}
