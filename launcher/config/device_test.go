package config

import (
	"strings"
	"testing"
)

// Where auto has come to GPUs, a strategy that they cannot run is refused in one line.
func TestShardsOnGPUsAreRefused(t *testing.T) {
	c, err := parse("job.yaml", []byte(ok+"parallel: {strategy: zero2}\n"), nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	const want = "parallel.strategy zero2 on GPUs is not available in this build yet; what works: ddp"
	if err := c.CheckDevice("cuda", ""); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := c.CheckDevice("cpu", "there is none"); err != nil {
		t.Errorf("on the CPU: %v", err)
	}
	c.Parallel.Strategy = "ddp"
	if err := c.CheckDevice("cuda", ""); err != nil && strings.Contains(err.Error(), "strategy") {
		t.Errorf("ddp: %v", err)
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
