package comm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// gpuProcess is rankProcess with a GPU, the one of its local rank:
//
//	gpu       sums for a while
//	gpu dies  rank 1 ends in the midst of that
//	gpu idle  rank 1 ends, and the others, which make no calls, wait to hear of it
func gpuProcess(ctx context.Context, what string) int {
	sum, err := sumOnGPU(ctx, what)
	if err != nil {
		fmt.Println(err)
		return 2
	}
	fmt.Println(sum)
	return 0
}

func sumOnGPU(ctx context.Context, what string) (string, error) {
	local, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err != nil {
		return "", err
	}
	dev, err := cuda.Open(local)
	if err != nil {
		return "", err
	}
	if os.Getenv("COMM_TEST_STREAMS") == "emulated" {
		if err := comm.EmulateStreamsHere(); err != nil {
			return "", err
		}
	}
	o := comm.Options{Device: dev, Engine: os.Getenv("COMM_TEST_ENGINE"), Transport: os.Getenv("COMM_TEST_TRANSPORT"),
		MaxCTAs: 8, Timeout: 25 * time.Second}
	o.OverCards(nil, os.Getenv("COMM_TEST_SYS"))
	g, err := comm.Join(ctx, o)
	if err != nil {
		return "", err
	}
	if what == "gpu idle" {
		if g.Rank() == 1 {
			os.Exit(3)
		}
		<-g.Done()
		return "", g.Err()
	}
	s, err := dev.NewStream("rank")
	if err != nil {
		return "", err
	}
	buf, err := g.Alloc(4 << 20)
	if err != nil {
		return "", err
	}
	x := make([]int32, 1<<20)
	for i := range x {
		x[i] = int32(g.Rank() + 1)
	}
	s.Copy(buf, device.Of(x))
	for i := range 50 {
		w := g.AllReduce(s, buf, dtype.I32, comm.Max)
		if what == "gpu dies" && i == 10 && g.Rank() == 1 {
			if err := w.Wait(ctx); err != nil {
				return "", err
			}
			os.Exit(3)
		}
	}
	if err := g.AllReduce(s, buf, dtype.I32, comm.Sum).Wait(ctx); err != nil { // fake streams copy at once
		return "", err
	}
	s.Copy(device.Of(x), buf)
	if err := s.Synchronize(ctx); err != nil {
		return "", err
	}
	for i := range x {
		if x[i] != x[0] {
			return "", fmt.Errorf("element %d is %d, element 0 is %d", i, x[i], x[0])
		}
	}
	return fmt.Sprintf("sum %d by %s", x[0], g.GPUEngine()), errors.Join(s.Close(), g.Close(), dev.Close())
}

// The options of Join reach NCCL.
func TestJoinWithAGPU(t *testing.T) {
	driver := cudatest.Fake(t)
	nccltest.Fake(t, driver) // both by the environment, which processes inherit
	t.Setenv("GORUN_CUDA_LIB", driver.Path)
	t.Setenv("GORUN_FAKE_NCCL_DRIVER", driver.Path)
	t.Setenv("COMM_TEST_ENGINE", "nccl")
	const want = "sum 1 by nccl 2.28.3: 1 rank, NVLink (P2P/CUMEM), 24 channels, up to 8 CTAs\n[<nil>]"
	if out := world(t, 1, "gpu", "auto"); !strings.HasSuffix(out[0], want) {
		t.Errorf("got %q, want %q", out[0], want)
	}
}

// A process with a GPU that ends is named by the others at once, also while no host
// memory is moved: their GPUs would wait for it.
func TestTheOthersNameAProcessWithAGPUThatDied(t *testing.T) {
	driver := cudatest.Fake(t)
	t.Setenv("GORUN_CUDA_LIB", driver.Path)
	t.Setenv("GORUN_FAKE_GPUS", "3")
	t.Setenv("COMM_TEST_ENGINE", "ring") // the fake NCCL joins goroutines alone
	start := time.Now()
	named(t, world(t, 3, "gpu idle", "auto"))
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// named checks that every rank but 1, which has died, says so of it.
func named(t *testing.T, outs []string) {
	t.Helper()
	for r, out := range outs {
		switch {
		case r == 1 && !strings.HasSuffix(out, "[exit status 3]"):
			t.Errorf("rank 1 says %q", out)
		case r != 1 && (!strings.Contains(out, "rank 1 on ") || !strings.Contains(out, "has ended, and had not closed the group") || !strings.HasSuffix(out, "[exit status 2]")):
			t.Errorf("rank %d says %q", r, out)
		}
	}
}

// Real GPUs, a process each, as a job has them.
func TestNCCLBetweenProcesses(t *testing.T) {
	needGPUs(t, 2)
	t.Setenv("COMM_TEST_ENGINE", "nccl")
	for r, out := range world(t, 2, "gpu", "auto") {
		t.Logf("rank %d: %s", r, out)
		if !strings.Contains(out, "sum 4 by nccl ") || !strings.HasSuffix(out, "[<nil>]") {
			t.Errorf("rank %d says %q", r, out)
		}
	}
	start := time.Now()
	outs := world(t, 2, "gpu dies", "auto")
	t.Logf("a rank that died was noticed after %s: %s", time.Since(start), outs[0])
	named(t, outs)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
