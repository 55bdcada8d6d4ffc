// Package kernels_test compiles the project's CUDA kernels, which needs no GPU.
package kernels_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// archs are the kinds of card that kernels are compiled for here: Ampere, Hopper,
// and Hopper with the instructions that it alone has.
var archs = []string{"sm_80", "sm_90", "sm_90a"}

// ways is how every .cu file of the project is compiled, by its path below the root.
var ways = map[string]way{
	"kernels/activation/activation.cu":   common,
	"kernels/adamw/adamw.cu":             common,
	"kernels/attention/next.cu":          common,
	"kernels/attention/rope.cu":          common,
	"kernels/dropout/dropout.cu":         common,
	"kernels/elementwise/elementwise.cu": common,
	"kernels/embedding/embedding.cu":     common,
	"kernels/linear/bias.cu":             common,
	"kernels/loss/loss.cu":               common,
	"kernels/lowrank/lowrank.cu":         common,
	"kernels/norm/norm.cu":               common,
	"kernels/norm/qk.cu":                 common,
	"kernels/sum/sum.cu":                 common,

	"comm/dma/direct.cu":          "comm/dma/compile_test.go",
	"comm/dma/exchange.cu":        "comm/dma/compile_test.go",
	"comm/dma/pairs.cu":           "comm/dma/compile_test.go",
	"comm/dma/sum.cu":             alone,
	"comm/gpudirect.cu":           alone,
	"runtime/cuda/arith/arith.cu": alone,

	// Attention's sizes are set by the host, and each has a budget of registers.
	"kernels/attention/delta.cu":         "kernels/attention/tile_test.go",
	"kernels/attention/mma_dkv.cu":       "kernels/attention/tile_test.go",
	"kernels/attention/mma_dq.cu":        "kernels/attention/tile_test.go",
	"kernels/attention/mma_forward.cu":   "kernels/attention/tile_test.go",
	"kernels/attention/wgmma_dkv.cu":     "kernels/attention/tile_test.go",
	"kernels/attention/wgmma_dq.cu":      "kernels/attention/tile_test.go",
	"kernels/attention/wgmma_forward.cu": "kernels/attention/tile_test.go",
}

// way is common or alone, or else the test file that compiles a kernel.
type way string

const (
	common way = "behind common.cuh"
	alone  way = "alone"
)

// Every .cu file of the project compiles for every kind of card, without a warning
// and without spilling registers.
func TestEveryKernelCompiles(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	files := find(t, root, ".cu")
	for path := range ways {
		if files[path] == "" {
			t.Errorf("%s is listed here and is not there", path)
		}
	}
	c, err := nvrtc.Load()
	missing := err
	for path, text := range files {
		t.Run(path, func(t *testing.T) {
			w := ways[path]
			switch w {
			case "":
				t.Fatal("nothing says how this file is compiled: list it in ways")
			case common:
				text = nv.Source(filepath.Base(path), text)
			case alone:
			default:
				if _, err := os.Stat(filepath.Join(root, string(w))); err != nil {
					t.Errorf("the test that compiles it is gone: %v", err)
				}
				return
			}
			if missing != nil {
				testenv.Skip(t, "nvrtc", missing.Error())
			}
			for _, arch := range archs {
				t.Run(arch, func(t *testing.T) { compile(t, c, path, text, arch) })
			}
		})
	}
}

// find reads the files below root whose names end in ext.
func find(t *testing.T, root, ext string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ext {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		files[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// kernel is what the assembler tells of one: its name, local memory and registers.
var kernel = regexp.MustCompile(`Function properties for (\S+)\s+\S+\s+\.\s+(\d+) bytes stack frame.*\s+ptxas info\s+: Used (\d+) registers`)

func compile(t *testing.T, c *nvrtc.Compiler, path, text, arch string) {
	_, log, err := c.Compile(filepath.Base(path), text, arch, "--ptxas-options=-v")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.ToLower(log), "warning") {
		t.Errorf("the compiler warns:\n%s", log)
	}
	kernels := kernel.FindAllStringSubmatch(log, -1)
	if want := strings.Count(log, "Compiling entry function"); want == 0 || len(kernels) != want {
		t.Fatalf("the compiler's log tells of %d kernels, and this test finds %d:\n%s", want, len(kernels), log)
	}
	for _, k := range kernels {
		t.Logf("%s: %s registers", k[1], k[3])
		if k[2] != "0" {
			t.Errorf("%s keeps %s bytes a thread in local memory, want all of it in registers", k[1], k[2])
		}
	}
}
