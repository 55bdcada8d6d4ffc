package train

import (
	"slices"

	"github.com/gorun-dev/gorun/runtime/device"
)

// The rows of the plan that parallel.offload takes off the GPU.
const (
	mastersRow = "master weights"
	momentsRow = "AdamW moments"
)

// offloads reports whether the optimizer's state lies in the host's memory. The
// optimizer's kernel works on it there, over the bus: the same operations in the same
// order, and so the same bits.
func (a *architecture) offloads() bool {
	return a.cfg.Parallel.Offload == "optimizer" && a.on != device.CPU
}

// offloaded is the bytes of a rank's state in the host's memory.
func (a *architecture) offloaded() (n int64) {
	if !a.offloads() {
		return 0
	}
	for _, r := range a.state() {
		if isOffloaded(r) {
			n += r.bytes
		}
	}
	return n
}

func isOffloaded(r memoryRow) bool { return r.name == mastersRow || r.name == momentsRow }

// state is what a rank holds of weights, gradients and the optimizer, wherever it lies.
func (a *architecture) state() []memoryRow {
	if a.shards != nil {
		return a.sharded()
	}
	return a.replicated()
}

// onDevice is state without what lies in the host's memory.
func (a *architecture) onDevice() []memoryRow {
	rows := a.state()
	if a.offloads() {
		rows = slices.DeleteFunc(rows, isOffloaded)
	}
	return rows
}

// states is the memory of masters and moments.
func (j *job) states() device.Allocator {
	if j.arch.offloads() {
		return j.gpu.Mapped()
	}
	return j.device
}
