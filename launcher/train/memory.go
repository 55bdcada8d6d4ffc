package train

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/kernels/gpu"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/zero"
)

// memoryRow is a part of what a rank allocates.
type memoryRow struct {
	name  string
	bytes int64
}

// bytes is what a rank allocates, without the data. The sum is less than that of the
// rows where some share their place.
func (a *architecture) bytes() (rows []memoryRow, sum int64) {
	for _, r := range append(a.onDevice(), []memoryRow{
		{"what compression keeps and sends", a.compression.memory()},
		{"scratch of the operations", a.scratch()},
		{"scratch of the attention", a.attention},
		{"slots of collectives between GPUs", a.copySlots()},
		{"copy of what is saved", a.copyOnDevice()},
	}...) {
		if r.bytes > 0 {
			rows = append(rows, r)
			sum += r.bytes
		}
	}
	sum += a.memory.Bytes()
	for _, r := range a.memory.Regions() {
		rows = append(rows, memoryRow{r.Name, int64(r.Bytes())})
	}
	return rows, sum
}

// replicated is the state that every rank holds under plain data parallelism.
func (a *architecture) replicated() (rows []memoryRow) {
	var trained []*param.Param
	for _, p := range a.params {
		if !p.Frozen {
			trained = append(trained, p)
		}
	}
	add := func(name string, dt dtype.DType, params []*param.Param) {
		rows = append(rows, memoryRow{name, tensor.PackedBytes(dt, param.Shapes(params))})
	}
	weights := computeType(a.on)
	add("weights", weights, a.params)
	if weights != dtype.F32 {
		add(mastersRow, dtype.F32, trained)
	}
	grads := gradType(a.cfg, a.on)
	add("gradients", grads, trained)
	if reduced := typeNamed(a.cfg.Parallel.ReduceDType); a.world > 1 && reduced != dtype.Invalid && reduced != grads {
		add("gradients on their way", reduced, trained)
	}
	add(momentsRow, dtype.F32, slices.Concat(trained, trained))
	return append(rows, memoryRow{"all ranks' rows of the embedding", a.gathered()})
}

// sharded is the state that a rank holds under ZeRO.
func (a *architecture) sharded() []memoryRow {
	m := a.shards.Memory()
	return []memoryRow{
		{"weights", m.Weights}, {mastersRow, m.Masters}, {"gradients", m.Gradients}, {momentsRow, m.Moments},
		{"buffers of gradients and weights", m.Buffers},
	}
}

// saved is the bytes of host memory for a copy of what a rank writes of a checkpoint,
// on the rank that writes most: three f32 of each element that is trained.
func (a *architecture) saved() (most int64) {
	if c := a.cfg.Checkpoint; !c.Async || c.Every == 0 {
		return 0
	}
	if a.shards == nil { // each kind of file is dealt out by itself
		var n int64
		for _, p := range a.params {
			if !p.Frozen {
				n += int64(p.Numel())
			}
		}
		ranks := int64(max(a.world, 1))
		return 4*((n+ranks-1)/ranks+(2*n+ranks-1)/ranks) + a.compression.state()
	}
	for r := range a.shards.Ranks {
		most = max(most, 3*4*trained(a.shards.Ranges(r)))
	}
	return most + a.compression.state()
}

// trained counts the elements of ranges that are trained.
func trained(ranges []zero.Range) (n int64) {
	for _, x := range ranges {
		if !x.Param.Frozen {
			n += int64(x.To - x.From)
		}
	}
	return n
}

// copyOnDevice is saved where the host's memory is the device's.
func (a *architecture) copyOnDevice() int64 {
	if a.on != device.CPU {
		return 0
	}
	return a.saved()
}

// gathered is the bytes of the gradient's rows and ids that all ranks send one
// another for an embedding that is also the head: see ddp.DDP.OfferRows.
func (a *architecture) gathered() int64 {
	p, c := a.cfg.Parallel, a.cfg
	n := a.world * c.Train.MicroBatch * c.Data.SeqLen
	if a.world < 2 || !a.shape.Tied || a.params[0].Frozen || !c.Comm.Overlap || p.FindUnusedParameters || 2*n > a.shape.Vocab {
		return 0
	}
	return int64(n) * int64(a.shape.Hidden*computeType(a.on).Size()+dtype.I32.Size())
}

// scratch is the bytes that a GPU's operations hold beside all that: the workspace of
// the matrix products and partial sums.
func (a *architecture) scratch() int64 {
	if a.on == device.CPU {
		return 0
	}
	return 256 << 20
}

// copySlots is the bytes that copy engines and kernels take where they may sum the
// gradients, or network cards between hosts; whether the GPUs, or the cards and they, reach
// each other shows only when they meet.
func (a *architecture) copySlots() int64 {
	switch {
	case a.on != device.CUDA || a.world < 2 || a.cfg.Comm.Engine == "nccl":
		return 0
	case a.world > a.ranks:
		return int64(comm.GPUDirectMemory())
	case a.world > dma.MaxRanks:
		return 0
	}
	return int64(dma.Memory(a.world))
}

// ask adds to the plan what only the operations themselves know: the scratch memory
// of the attention, which depends on the library that computes it. An attention that
// was asked for and cannot take the shape is an error.
func (a *architecture) ask(ops *gpu.Ops) error {
	s, c := a.shape, a.cfg
	n, err := ops.Workspace(c.Train.MicroBatch, c.Data.SeqLen, s.Heads, s.KVHeads, s.HeadDim, packs(c), true)
	if err != nil {
		return fmt.Errorf("model.attention %s: %w", c.Model.Attention, err)
	}
	a.attention = n
	return nil
}

// fits refuses a job that needs more memory than there is: of the machine's GPU,
// or of the host for all of its ranks. Nothing is allocated yet: where it were,
// the kernel would end one process or another without a word.
func (a *architecture) fits(m *machine, ranks int) error {
	if m.gpuOps != nil {
		if err := a.ask(m.gpuOps); err != nil {
			return err
		}
	}
	_, sum := a.bytes()
	have := hostMemory()
	if m.gpu != nil {
		if n := a.saved() + a.offloaded(); have > 0 && n > have/int64(ranks) {
			return fmt.Errorf("memory of the host: %d x %s for the ranks on this host, which has %s: %s of a rank for the optimizer's state (parallel.offload), %s for a copy of what it saves (checkpoint.async: set it to false)",
				ranks, byteCount(n), byteCount(have), byteCount(a.offloaded()), byteCount(a.saved()))
		}
		free, total, err := m.gpu.Memory()
		if err != nil || sum <= free {
			return err
		}
		return fmt.Errorf("memory: a rank needs %s, %s (%s) has %s free of %s; %s",
			byteCount(sum), m.gpu, m.gpu.Name(), byteCount(free), byteCount(total), a.advice())
	}
	if have == 0 || sum <= have/int64(ranks) {
		return nil
	}
	where := "the CPU"
	if a.why != "" {
		where += " (not on a GPU: " + a.why + ")"
	}
	return fmt.Errorf("memory on %s: %d x %s for the ranks on this host, which has %s; %s", where, ranks, byteCount(sum), byteCount(have), a.advice())
}

// advice names the largest parts of a rank's memory and what makes them smaller.
func (a *architecture) advice() string {
	rows, _ := a.bytes()
	slices.SortStableFunc(rows, func(x, y memoryRow) int { return cmp.Compare(y.bytes, x.bytes) })
	var largest []string
	for _, r := range rows[:min(3, len(rows))] {
		largest = append(largest, fmt.Sprintf("%s %s", r.name, byteCount(r.bytes)))
	}
	settings := "make train.micro_batch, data.seq_len or the model smaller"
	if recompute(a.cfg.Train) != models.RecomputeBlocks {
		settings += ", or set train.recompute to norms or block"
	}
	if a.on != device.CPU && !a.offloads() {
		settings += ", or set parallel.offload to optimizer"
	}
	if a.copyOnDevice() > 0 {
		settings += ", or set checkpoint.async to false"
	}
	return fmt.Sprintf("the largest parts of a rank are %s; %s", strings.Join(largest, ", "), settings)
}

// explain adds to a device's lack of memory what was planned.
func (a *architecture) explain(err error) error {
	if _, lacking := errors.AsType[*cuda.OutOfMemoryError](err); lacking {
		return fmt.Errorf("%w; %s", err, a.advice())
	}
	return err
}

// hostMemory is the memory that all processes here may use together, in bytes: the
// machine's, or what the control group allows. 0 where neither is known.
func hostMemory() (n int64) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		n = int64(info.Totalram) * int64(info.Unit)
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return n
	}
	for line := range bytes.Lines(groups) {
		dir, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "0::") // version 2's only hierarchy
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", dir, "memory.max"))
		if err != nil {
			continue // the root has none
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // else "max"
			n = min(n, limit)
		}
	}
	return n
}
