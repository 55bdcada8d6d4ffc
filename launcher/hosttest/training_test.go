package hosttest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// tiny is the arguments that train the smallest preset so many steps into a
// folder, with further settings.
func tiny(t *testing.T, output string, steps int, set ...string) []string {
	t.Helper()
	config, err := filepath.Abs("../../configs/tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := append([]string{"output=" + output, fmt.Sprint("train.max_steps=", steps), "train.threads=1",
		"eval.every=0", "checkpoint.every=0", "sample.every=0"}, set...)
	args := []string{config}
	for _, s := range all {
		args = append(args, "--set", s)
	}
	return args
}

// endless trains until something happens.
func endless(t *testing.T, set ...string) []string {
	return tiny(t, t.TempDir(), 1_000_000, set...)
}

// losses reads metrics.jsonl.
func losses(t *testing.T, output string) []float64 {
	t.Helper()
	f, err := os.Open(filepath.Join(output, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []float64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var line struct {
			Step  int
			Loss  *float64
			Event string
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		if line.Event != "" || line.Loss == nil {
			continue
		}
		out = append(out, *line.Loss)
		if line.Step != len(out) {
			t.Fatalf("line %d is of step %d", len(out), line.Step)
		}
	}
	return out
}

// same compares the losses of two runs. The same sums in another order differ in
// the last bits of fp32, and the steps carry that on.
func same(t *testing.T, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d steps, want %d", len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= 1e-4*want[i]) {
			t.Errorf("step %d: loss %v, want %v", i+1, got[i], want[i])
		}
	}
	if !t.Failed() && want[len(want)-1] > 0.9*want[0] {
		t.Errorf("nothing was learnt: %v", want)
	}
}

const steps = 12

// train runs a job to its end and returns its losses.
func train(t *testing.T, l launch, set ...string) []float64 {
	t.Helper()
	output := t.TempDir()
	l.args = tiny(t, output, steps, set...)
	start(t, l).succeeds(patience)
	return losses(t, output)
}

// Any arrangement of four ranks trains the same as four on one host.
func TestTraining(t *testing.T) {
	t.Parallel()
	want := train(t, launch{hosts: netns.New(t, netns.Options{Hosts: 1}), nproc: []int{4}})
	for _, c := range []struct {
		name  string
		net   netns.Options
		nproc []int
		fault func(hosts []*netns.Host)
		set   []string
	}{
		{name: "2+2"},
		{name: "1+3", nproc: []int{1, 3}},
		{name: "2+1+1", net: netns.Options{Hosts: 3}, nproc: []int{2, 1, 1}},
		{name: "IPv6", net: netns.Options{IPv6: true}},
		{name: "tcp within hosts too", set: []string{"comm.transport=tcp"}},
		{name: "decoys", net: netns.Options{Decoys: true}},
		{name: "decoys, IPv6", net: netns.Options{Decoys: true, IPv6: true}},
		{name: "decoys, interface given", net: netns.Options{Decoys: true}, set: []string{"comm.interface=eth0"}},
		{name: "MTU 9000 and 1500", net: netns.Options{MTU: 9000}, fault: func(hosts []*netns.Host) { hosts[1].SetMTU(1500) }},
		{name: "1 percent loss", fault: func(hosts []*netns.Host) { hosts[1].Lose(netns.Sent, netns.Percent(1)) }},
		{name: "64 KiB of shared memory", net: netns.Options{Shm: 64 << 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			hosts := netns.New(t, c.net)
			if c.fault != nil {
				c.fault(hosts)
			}
			same(t, train(t, launch{hosts: hosts, nproc: c.nproc}, c.set...), want)
		})
	}
}
