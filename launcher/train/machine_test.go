package train

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

// A GPU that has no kernels for it is none: auto says why and takes the CPU, cuda
// fails with the same words.
func TestAGPUThatIsTooOldIsNotChosen(t *testing.T) {
	cudatest.FakeOf(t, cudatest.Machine{GPUs: 2, Compute: 75})
	auto, asked := config.Train{Device: "auto", Precision: "auto"}, config.Train{Device: "cuda", Precision: "auto"}
	const want = "cuda:1 has compute capability 7.5, and 8.0 is needed"
	if kind, why, err := chooseDevice(auto, 64, 2); kind != device.CPU || why != want || err != nil {
		t.Errorf("auto: %v, %q, %v", kind, why, err)
	}
	if _, _, err := chooseDevice(asked, 64, 2); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("cuda: %v", err)
	}
	if kind, why, err := chooseDevice(auto, 64, 1); kind != device.CUDA || err != nil { // the other one does
		t.Errorf("one rank: %v, %q, %v", kind, why, err)
	}
}

// What only a GPU heeds is refused where auto comes to the CPU, with the reason for it.
func TestAutoOnTheCPURefusesWhatIsForGPUs(t *testing.T) {
	cudatest.FakeOf(t, cudatest.Machine{GPUs: -1})
	for _, set := range []string{"train.precision=bf16", "parallel.grad_dtype=bf16", "model.attention=cudnn", "comm.engine=nccl", "comm.max_ctas=8"} {
		_, err := describe(parse(t, set), 1, chooseDevice)
		key, value, _ := strings.Cut(set, "=")
		for _, want := range []string{key + ": ", value, "this job runs on the CPU: ", "no CUDA-capable device"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %q", set, err, want)
			}
		}
	}
	if _, err := describe(parse(t), 1, chooseDevice); err != nil {
		t.Error(err)
	}
}

// What only the CPU heeds: threads may be meant for hosts without any GPU, and the ring
// is there for both.
func TestAutoOnAGPUTakesWhatTheCPUHeeds(t *testing.T) {
	cudatest.Fake(t)
	if a, err := describe(parse(t, "comm.engine=ring"), 1, chooseDevice); err != nil || a.on != device.CUDA {
		t.Errorf("ring: %v", err)
	}
	if a, err := describe(parse(t, "train.threads=1"), 1, chooseDevice); err != nil || a.on != device.CUDA {
		t.Errorf("threads: %v", err)
	}
}

// GPUs that nothing moves data between end the job with one sentence on every rank;
// one GPU, and the CPU, need no NCCL.
func TestGPUsWithoutNCCLAreRefused(t *testing.T) {
	cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	t.Setenv("GORUN_NCCL_LIB", "/nonexistent/libnccl.so.2")
	for _, c := range []struct {
		gpus, ranks int
		want        string
	}{
		{2, 2, `^2 ranks on GPUs need NCCL: rank 0 on \S+: NCCL: GORUN_NCCL_LIB names a file that does not open: /nonexistent/libnccl.so.2: `},
		{1, 1, `^<nil>$`},
		{0, 2, `^<nil>$`},
	} {
		options := make([]comm.Options, c.ranks)
		for i := range c.gpus {
			dev, err := cuda.Open(i)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { dev.Close() })
			options[i] = comm.Options{Device: dev, Engine: "auto"}
		}
		groups, err := comm.Local(c.ranks, options...)
		if err != nil {
			t.Fatal(err)
		}
		for r, g := range groups {
			t.Cleanup(func() { g.Close() })
			if got := fmt.Sprint((&job{group: g}).movesGPUMemory()); !regexp.MustCompile(c.want).MatchString(got) {
				t.Errorf("%d GPUs, rank %d: %s, want %s", c.gpus, r, got, c.want)
			}
		}
	}
}
