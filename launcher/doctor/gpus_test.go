package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// gpuFaults are those of a machine with GPUs and RDMA.
var gpuFaults = map[string]fault{
	"little locked memory": {lockedMemory{}, func(f *fake) { f.limits(1<<20, 8<<20) },
		Error, Where{}, `^8 MiB of memory may be locked`},
	"no /dev/infiniband": {verbs{}, func(f *fake) { f.remove("dev/infiniband"); f.onlyRDMA("mlx5_1") },
		Error, Where{Device: "mlx5_1"}, `hardware is there, and /dev/infiniband is not`},
	"one verbs file missing": {verbs{}, func(f *fake) { f.remove("dev/infiniband/uverbs1") },
		Error, Where{Device: "mlx5_1"}, `the device's file is missing`},
	"no ib_uverbs": {verbs{}, func(f *fake) { f.remove("sys/class/infiniband_verbs/uverbs1") },
		Error, Where{Device: "mlx5_1"}, `no verbs interface`},
	"no libibverbs": {verbs{}, func(f *fake) { f.remove("usr/lib/x86_64-linux-gnu/libibverbs.so.1") },
		Warning, Where{Device: "mlx5_0"}, `no libibverbs to use it with`},
	"no driver": {verbs{}, func(f *fake) { f.remove("sys/class/infiniband/mlx5_0") },
		Warning, Where{Device: "0000:16:00.0"}, `can do RDMA, and the kernel has no RDMA device`},
	"port down": {verbs{}, func(f *fake) { f.file("sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN") },
		Note, Where{Device: "mlx5_2 port 1"}, `the port is not active`},
	"all ports down": {verbs{}, func(f *fake) {
		f.onlyRDMA("mlx5_2")
		f.file("sys/class/infiniband/mlx5_2/ports/1/state", "2: INIT")
	}, Warning, Where{Device: "mlx5_2 port 1"}, `the port is not active`},
	"RoCE without an address": {verbs{}, func(f *fake) {
		for slot := range 2 {
			f.file(fmt.Sprintf("sys/class/infiniband/mlx5_2/ports/1/gids/%d", slot), "fe80:0000:0000:0000:a288:c2ff:fe03:00d6")
		}
	}, Warning, Where{Device: "mlx5_2 port 1"}, `no address for RoCE v2 but link-local`},
	"RoCE v1 alone": {verbs{}, func(f *fake) { f.file("sys/class/infiniband/mlx5_2/ports/1/gid_attrs/types/1", "IB/RoCE v1") },
		Warning, Where{Device: "mlx5_2 port 1"}, `no address for RoCE v2`},
	"GID index of v1": {verbs{}, func(f *fake) { f.onlyRDMA("mlx5_2"); f.variable("NCCL_IB_GID_INDEX", "0") },
		Error, Where{Device: "mlx5_2 port 1"}, `NCCL_IB_GID_INDEX=0 is IB/RoCE v1 of 10\.0\.1\.1`},
	"GID index empty": {verbs{}, func(f *fake) { f.onlyRDMA("mlx5_2"); f.variable("NCCL_IB_GID_INDEX", "3") },
		Error, Where{Device: "mlx5_2 port 1"}, `NCCL_IB_GID_INDEX=3 is an empty entry`},
	"GPUDirect through peermem": {gdr{}, func(*fake) {},
		Note, Where{}, `there, through the module nvidia_peermem`},
	"GPUDirect through dma-buf": {gdr{}, func(f *fake) { f.remove("sys/module/nvidia_peermem") },
		Note, Where{}, `there, through dma-buf`},
	"GPUDirect with an old kernel": {gdr{}, func(f *fake) {
		f.remove("sys/module/nvidia_peermem")
		f.file("proc/sys/kernel/osrelease", "5.4.0-150-generic")
	}, Warning, Where{}, `not loaded; no dma-buf: Linux 5\.4\.0-150-generic, want 5\.12 or later$`},
	"GPUDirect with proprietary modules": {gdr{}, func(f *fake) {
		f.remove("sys/module/nvidia_peermem")
		f.file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May")
	}, Warning, Where{}, `not loaded; no dma-buf: .*proprietary ones; driver 470\.256\.02, want 515 or later$`},
	"no card near": {gdr{}, func(f *fake) { f.onlyRDMA("mlx5_2") },
		Warning, Where{Device: "GPU0, GPU1"}, `GPU0 and mlx5_2: the path is PHB, farther than PXB`},
	"ACS": {acs{}, func(f *fake) { f.acs("0000:22:00.0", 0x1d) },
		Warning, Where{Device: "0000:22:00.0"}, `with redirection: 0000:22:00\.0 \(control 0x001d\); without: `},
	"IOMMU": {iommu{}, func(f *fake) {
		f.file("sys/kernel/iommu_groups/7/type", "DMA-FQ")
		f.symlink("sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0/iommu_group", "sys/kernel/iommu_groups/7")
	}, Warning, Where{Device: "0000:13:00.0"}, `an IOMMU translates the addresses of 1 GPU or RDMA card`},
	"P2P that lies": {p2p{}, func(f *fake) { f.copies[1].Wrong = 7 },
		Error, Where{Device: "GPU1 to GPU0"}, `bring wrong data.*`},
	"P2P that fails": {p2p{}, func(f *fake) { f.copies[1].Error = "launch failure" },
		Error, Where{Device: "GPU1 to GPU0"}, `^launch failure$`},
	"P2P that kills": {p2p{}, func(f *fake) { f.copies[1].Done, f.copiesErr = false, errors.New("exit status 139") },
		Error, Where{Device: "GPU1 to GPU0"}, `^exit status 139$`},
	"P2P that hangs": {p2p{}, func(f *fake) { f.copies[1].Done = false },
		Error, Where{Device: "GPU1 to GPU0"}, `do not come to an end`},
	"no P2P": {p2p{}, func(f *fake) { f.copies[1].Refused = "not supported" },
		Note, Where{Device: "GPU1 to GPU0"}, `1 of 2 pairs of GPUs do not reach each other's memory`},
	"NCCL_IB_HCA there": {variables{}, func(f *fake) {
		f.variable("NCCL_IB_HCA", "mlx5_0,mlx5_10")
	}, Error, Where{}, `names mlx5_10, and no RDMA device`},
}

func (f *fake) remove(path string) {
	f.t.Helper()
	if err := os.RemoveAll(f.path(path)); err != nil {
		f.t.Fatal(err)
	}
}

// onlyRDMA takes all other RDMA devices away, and their cards.
func (f *fake) onlyRDMA(name string) {
	f.t.Helper()
	for i := range 3 {
		other := fmt.Sprint("mlx5_", i)
		if other == name {
			continue
		}
		card, err := os.Readlink(f.path("sys/class/infiniband", other))
		if err != nil {
			f.t.Fatal(err)
		}
		addr := strings.Split(card, "/infiniband/")[0]
		f.remove("sys/bus/pci/devices/" + addr[strings.LastIndexByte(addr, '/')+1:])
		f.remove("sys/class/infiniband/" + other)
	}
}

// All is well on a machine with GPUs, too, and each of its checks looks.
func TestHealthyGPUs(t *testing.T) {
	f := newGPUs(t)
	e := Examine(t.Context(), f.Machine)
	if r := NewReport([]string{f.Name}, e); r.Status() != 0 || len(e.Unseen) != 0 {
		t.Errorf("status %d, not looked at %+v:\n%s", r.Status(), e.Unseen, dump(e.Findings))
	}
}

// Without root, the kernel hides where ACS stands.
func TestACSHidden(t *testing.T) {
	f := newGPUs(t)
	f.file("sys/bus/pci/devices/0000:22:00.0/config", strings.Repeat("x", 63))
	if _, err := f.found(acs{}); err == nil || !strings.Contains(err.Error(), "run gorun doctor as root") {
		t.Error(err)
	}
}
