package config

import (
	"fmt"
	"testing"
)

// Each stage of ZeRO runs on GPUs, those that the file asks for and those that auto has
// come to, with all that can be done to shards there.
func TestShardsOnGPUs(t *testing.T) {
	for _, device := range []string{"auto", "cuda"} {
		for _, strategy := range []string{"zero1", "zero2", "zero3"} {
			for _, more := range []string{"", "offload: optimizer", "compress: bf16", "grad_dtype: bf16, reduce_dtype: fp32"} {
				src := "data: {format: synthetic}\ntrain: {max_steps: 1, device: " + device + "}\nlora: {r: 8}\nparallel: {strategy: " + strategy + ", " + more + "}\n"
				c, err := parse("job.yaml", []byte(src), nil, noEnv)
				if err == nil {
					err = c.CheckDevice("cuda", "")
				}
				if err != nil {
					t.Errorf("%s, %s, %q: %v", device, strategy, more, err)
				}
			}
		}
	}
}

// Shards change nothing about what GPUs lack.
func TestCompressionThatGPUsLack(t *testing.T) {
	for _, strategy := range []string{"ddp", "zero1", "zero2", "zero3"} {
		for _, scheme := range []string{"int8", "powersgd", "topk"} {
			c, err := parse("job.yaml", []byte(ok+"parallel: {strategy: "+strategy+", compress: "+scheme+"}\n"), nil, noEnv)
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("parallel.compress: %q is for the CPU, and this job runs on GPUs; leave the key out", scheme)
			if err := c.CheckDevice("cuda", ""); err == nil || err.Error() != want {
				t.Errorf("%s: got %v, want %s", strategy, err, want)
			}
			if err := c.CheckDevice("cpu", "there is none"); err != nil {
				t.Errorf("%s, %s on the CPU: %v", strategy, scheme, err)
			}
		}
	}
}

// The optimizer's state is in the host's memory already where the host computes.
func TestOffloadIsForGPUs(t *testing.T) {
	c, err := parse("job.yaml", []byte(ok+"parallel: {offload: optimizer}\n"), nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	const want = "parallel.offload: \"optimizer\" is for GPUs, and this job runs on the CPU: there is no GPU; leave the key out"
	if err := c.CheckDevice("cpu", "there is no GPU"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := c.CheckDevice("cuda", ""); err != nil {
		t.Errorf("on a GPU: %v", err)
	}
}

// NCCL takes the interface where nothing goes over tcp, and a topology is for NCCL and RDMA: on a CPU
// where RDMA may be taken.
func TestWhatNCCLAndRDMATake(t *testing.T) {
	for keys, refused := range map[string]bool{
		"transport: rdma, interface: eth0": true, "transport: auto, interface: eth0": false, "topo_file: host.xml": false, "transport: rdma, topo_file: host.xml": false,
		"transport: tcp, topo_file: host.xml": true, "transport: shm, topo_file: host.xml": true,
	} {
		c, err := parse("job.yaml", []byte(ok+"comm: {"+keys+"}\n"), nil, noEnv)
		if err != nil {
			t.Errorf("%s: %v", keys, err)
			continue
		}
		if err := c.CheckDevice("cuda", ""); err != nil {
			t.Errorf("%s on GPUs: %v", keys, err)
		}
		if err := c.CheckDevice("cpu", "there is no GPU"); (err != nil) != refused {
			t.Errorf("%s on the CPU: %v", keys, err)
		}
	}
}
