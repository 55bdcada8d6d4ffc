package attention

import (
	"embed"
	"fmt"
	"strings"

	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
)

//go:embed attention.cuh delta.cu mma.cuh mma_forward.cu mma_dkv.cu mma_dq.cu
//go:embed wgmma.cuh wgmma_forward.cu wgmma_dkv.cu wgmma_dq.cu next.cu
var sources embed.FS

// source is the files one after the other, each counted from its own first line.
func source(files ...string) string {
	var b strings.Builder
	for _, name := range files {
		text, err := sources.ReadFile(name)
		if err != nil {
			panic(err) // embedded above
		}
		fmt.Fprintf(&b, "#line 1 %q\n%s", name, text)
	}
	return b.String()
}

// A tile is what a kernel is compiled with and how it is launched. The sizes are
// those that were fastest on an H200.
type tile struct {
	entry   string   // the kernel's name
	files   []string // its text
	defines []string // its sizes, as "KEYS=64"
	rows    int      // query rows, or keys, of a block
	threads int      // of a block
	shared  int      // dynamic shared memory of a block, bytes
	maps    bool     // it takes tensor maps
	stays   bool     // its blocks take items of rows until none is left
}

// options are the compiler's for heads of size headDim.
func (t tile) options(headDim int, docs bool) []string {
	options := []string{"--std=c++17", fmt.Sprintf("-DHD=%d", headDim), fmt.Sprintf("-DDOCS=%d", nv.Flag(docs))}
	for _, d := range t.defines {
		options = append(options, "-D"+d)
	}
	return options
}

// grid covers length rows (or keys) of each of so many heads.
func (t tile) grid(heads, length, sms int, docs bool) cuda.Grid {
	blocks := heads * nv.Blocks(length, t.rows)
	if t.stays && !docs {
		blocks = min(blocks, sms)
	}
	return cuda.Grid{Blocks: cuda.Dim{X: blocks}, Threads: cuda.Dim{X: t.threads}, Shared: t.shared}
}

// columns is the width of tiles in shared memory: D in the kernels.
func columns(headDim int) int {
	if headDim <= 64 {
		return 64
	}
	return 128
}

// by is a for tiles of 64 columns, b for those of 128.
func by(headDim, a, b int) int {
	if columns(headDim) == 64 {
		return a
	}
	return b
}

func define(name string, value int) string { return fmt.Sprintf("%s=%d", name, value) }

func deltaTile() tile {
	return tile{entry: "attention_delta", files: []string{"attention.cuh", "delta.cu"}, threads: 256}
}

// mmaForward: 64 keys a tile at 128 columns spill registers and are 5 % slower.
func mmaForward(headDim int) tile {
	keys := by(headDim, 64, 32)
	return tile{
		entry: "attention_forward_mma", files: []string{"attention.cuh", "mma.cuh", "mma_forward.cu"},
		defines: []string{define("KEYS", keys), define("BLOCKS", 2)},
		rows:    128, threads: 128, shared: (128 + 4*keys) * columns(headDim) * 2,
	}
}

// mmaDKV takes at most limit bytes of shared memory: 165376 at 128 columns, and with
// the smaller tile 74496, for cards that allow no more than 101376 (8.6, 8.9, 12.x).
func mmaDKV(headDim, limit int) tile {
	with := func(keys, queries int) tile {
		return tile{
			entry: "attention_dkv_mma", files: []string{"attention.cuh", "mma.cuh", "mma_dkv.cu"},
			defines: []string{define("KEYS", keys), define("QUERIES", queries)},
			rows:    keys, threads: 2 * keys,
			shared: 4*columns(headDim)*(keys+2*queries) + 4*keys*queries + 24*queries,
		}
	}
	if t := with(128, 64); t.shared <= limit {
		return t
	}
	return with(64, 32)
}

// mmaDQ: three blocks a multiprocessor at 64 columns are 2 to 10 % faster than two.
func mmaDQ(headDim int) tile {
	const keys = 32
	return tile{
		entry: "attention_dq_mma", files: []string{"attention.cuh", "mma.cuh", "mma_dq.cu"},
		defines: []string{define("KEYS", keys), define("BLOCKS", by(headDim, 3, 2))},
		rows:    128, threads: 128, shared: (256 + 4*keys) * columns(headDim) * 2,
	}
}

func wgmmaForward(headDim int) tile {
	const keys, stages = 128, 2
	groups := by(headDim, 3, 2)
	return tile{
		entry: "attention_forward_wgmma", files: []string{"attention.cuh", "wgmma.cuh", "wgmma_forward.cu"},
		defines: []string{define("GROUPS", groups), define("KEYS", keys), define("STAGES", stages)},
		rows:    64 * groups, threads: 128 * (groups + 1), maps: true, stays: true,
		shared: (256*groups+4*stages*keys)*headDim + 16 + 32*stages,
	}
}

// wgmmaDKV: a block for each block of keys. Blocks that stay were 6 to 8 % slower.
func wgmmaDKV(headDim int) tile {
	const groups, queries, stages = 2, 64, 3
	return tile{
		entry: "attention_dkv_wgmma", files: []string{"attention.cuh", "wgmma.cuh", "wgmma_dkv.cu"},
		defines: []string{define("GROUPS", groups), define("QUERIES", queries), define("STAGES", stages)},
		rows:    64 * groups, threads: 128 * (groups + 1), maps: true,
		shared: 384*groups*headDim + stages*queries*(4*headDim+12) + 8 + 16*stages,
	}
}

func wgmmaDQ(headDim int) tile {
	const groups = 2
	keys, stages := by(headDim, 128, 64), by(headDim, 2, 3)
	return tile{
		entry: "attention_dq_wgmma", files: []string{"attention.cuh", "wgmma.cuh", "wgmma_dq.cu"},
		defines: []string{define("GROUPS", groups), define("KEYS", keys), define("STAGES", stages)},
		rows:    64 * groups, threads: 128 * (groups + 1), maps: true, stays: true,
		shared: (384*groups+4*stages*keys)*headDim + 16 + 16*stages,
	}
}
