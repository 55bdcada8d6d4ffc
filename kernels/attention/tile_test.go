package attention

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// Dynamic shared memory that a block may have on cards of compute capability 8.0,
// 8.6 (8.9 and 12.x too) and 9.0.
const (
	sharedOf80 = 163 << 10
	sharedOf86 = 99 << 10
	sharedOf90 = 227 << 10
)

// kernelsOf is all kernels that a card of arch may get for heads of a size.
func kernelsOf(arch string, headDim int) []tile {
	limit := map[string]int{"sm_80": sharedOf80, "sm_86": sharedOf86, "sm_90": sharedOf90, "sm_90a": sharedOf90}[arch]
	all := []tile{deltaTile(), mmaForward(headDim), mmaDKV(headDim, limit), mmaDQ(headDim)}
	if arch == "sm_90a" && (headDim == 64 || headDim == 128) {
		all = append(all, wgmmaForward(headDim), wgmmaDKV(headDim), wgmmaDQ(headDim))
	}
	return all
}

// budget is the registers that a kernel had, and the bytes of them that it spilled,
// when it was as fast as the figures in the benchmark, by NVRTC 13.0; heads of 64 and
// 128, without documents and with. Few of the spills are inside of loops.
var budget = map[string][2]struct{ registers, spilled, bounded int }{
	"attention_delta":         {{28, 0, 0}, {28, 0, 0}},
	"attention_forward_mma":   {{235, 0, 0}, {255, 0, 0}},
	"attention_dkv_mma":       {{235, 0, 0}, {255, 24, 24}},
	"attention_dq_mma":        {{168, 12, 8}, {255, 0, 0}},
	"attention_forward_wgmma": {{128, 8, 40}, {168, 0, 0}},
	"attention_dkv_wgmma":     {{168, 0, 16}, {168, 0, 16}},
	"attention_dq_wgmma":      {{168, 0, 0}, {168, 0, 0}},
}

// Every kernel compiles for every kind of card and head size, without a warning:
// C7510 to C7514 tell of products that wait for one another, which are right and
// slow. What it needs of registers is what it needed when it was measured.
func TestCUDAKernelsCompile(t *testing.T) {
	c, err := nvrtc.Load()
	if err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	for _, build := range []struct {
		arch     string
		headDims []int
	}{
		{"sm_80", []int{8, 64, 80, 128}},
		{"sm_86", []int{128}},
		{"sm_90", []int{64, 128}},
		{"sm_90a", []int{40, 64, 128}},
	} {
		for _, headDim := range build.headDims {
			for _, docs := range []bool{false, true} {
				for _, k := range kernelsOf(build.arch, headDim) {
					if docs && k.entry == deltaTile().entry || strings.HasSuffix(k.entry, "_mma") && build.arch == "sm_90a" && headDim != 40 {
						continue // the same as another build
					}
					t.Run(fmt.Sprintf("%s/%d/%s,docs=%v", build.arch, headDim, k.entry, docs), func(t *testing.T) {
						compile(t, c, k, build.arch, headDim, docs)
					})
				}
			}
		}
	}
	for _, arch := range []string{"sm_80", "sm_90", "sm_90a"} {
		if _, log, err := c.Compile("next.cu", nv.Source("next.cu", source("next.cu")), arch); err != nil || log != "" {
			t.Errorf("%s: %v\n%s", arch, err, log)
		}
	}
}

var (
	used  = regexp.MustCompile(`Used (\d+) registers`)
	spill = regexp.MustCompile(`(\d+) bytes spill stores`)
)

func compile(t *testing.T, c *nvrtc.Compiler, k tile, arch string, headDim int, docs bool) {
	options := append(k.options(headDim, docs), "--ptxas-options=-v")
	_, log, err := c.Compile(k.entry, nv.Source(k.entry, source(k.files...)), arch, options...)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"warning", "C75"} {
		if strings.Contains(log, word) {
			t.Errorf("the compiler warns:\n%s", log)
		}
	}
	number := func(r *regexp.Regexp) int {
		m := r.FindStringSubmatch(log)
		if m == nil {
			t.Fatalf("no %v in the compiler's log:\n%s", r, log)
		}
		n, _ := strconv.Atoi(m[1])
		return n
	}
	registers, spilled := number(used), number(spill)
	t.Logf("%d registers, %d bytes spilled, %d bytes of shared memory", registers, spilled, k.shared)
	if major, minor := c.Version(); major != 13 || minor != 0 || headDim != 64 && headDim != 128 {
		return // other compilers, and heads that were not measured
	}
	b := budget[k.entry][headDim/128]
	allowed := b.spilled
	if docs {
		allowed = b.bounded
	}
	if registers > b.registers || spilled > allowed {
		t.Errorf("%d registers and %d bytes spilled, want at most %d and %d", registers, spilled, b.registers, allowed)
	}
}

// Shared memory as the kernels lay it out, and that each card's kernels fit it.
func TestTilesFitTheCards(t *testing.T) {
	for _, x := range []struct {
		tile   tile
		shared int
	}{
		{mmaForward(64), 49152}, {mmaForward(128), 65536},
		{mmaDKV(64, sharedOf86), 99840}, {mmaDKV(128, sharedOf80), 165376}, {mmaDKV(128, sharedOf86), 74496},
		{mmaDQ(64), 49152}, {mmaDQ(128), 98304},
		{wgmmaForward(64), 114768}, {wgmmaForward(128), 196688},
		{wgmmaDKV(64), 100664}, {wgmmaDKV(128), 198968},
		{wgmmaDQ(64), 114736}, {wgmmaDQ(128), 196672},
	} {
		if x.tile.shared != x.shared {
			t.Errorf("%s %v: %d bytes of shared memory, want %d", x.tile.entry, x.tile.defines, x.tile.shared, x.shared)
		}
	}
	for arch, limit := range map[string]int{"sm_80": sharedOf80, "sm_86": sharedOf86, "sm_90a": sharedOf90} {
		for headDim := 8; headDim <= 128; headDim += 8 {
			for _, k := range kernelsOf(arch, headDim) {
				if k.shared > limit {
					t.Errorf("%s: %s for heads of %d takes %d bytes of %d", arch, k.entry, headDim, k.shared, limit)
				}
			}
		}
	}
}

// A grid covers every row once; blocks that stay are no more than the card runs.
func TestGridCoversTheRows(t *testing.T) {
	for _, k := range []tile{mmaForward(64), mmaDKV(128, sharedOf86), wgmmaForward(64), wgmmaDKV(64)} {
		for _, length := range []int{1, 63, 64, 65, 192, 193, 4096} {
			blocks := 6 * ((length + k.rows - 1) / k.rows)
			if got := k.grid(6, length, 132, true).Blocks.X; got != blocks {
				t.Errorf("%s: %d blocks for 6 heads of %d rows with documents, want %d", k.entry, got, length, blocks)
			}
			if k.stays {
				blocks = min(blocks, 132)
			}
			if got := k.grid(6, length, 132, false).Blocks.X; got != blocks {
				t.Errorf("%s: %d blocks for 6 heads of %d rows, want %d", k.entry, got, length, blocks)
			}
		}
	}
}

func TestSupportedHeadSizes(t *testing.T) {
	for headDim := range 200 {
		err := Supported(headDim)
		if want := headDim%8 == 0 && headDim >= 8 && headDim <= 128; (err == nil) != want {
			t.Errorf("heads of %d: %v", headDim, err)
		}
		if err != nil && !strings.Contains(err.Error(), "multiple of 8") {
			t.Errorf("heads of %d: %v does not say what works", headDim, err)
		}
	}
}
