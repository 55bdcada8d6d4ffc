package comm_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// The devices of the machine, as .ci/rdma's guest has them, with fake GPUs, whose memory is
// the host's, so that the devices can register it as cards do a GPU's.

// quickly gives a peer up that does not answer for half a second.
var quickly = rdma.Settings{Timeout: 14, Retries: 7}

func TestGPUDirectOverRDMA(t *testing.T) {
	needRDMA(t)
	for _, hosts := range []string{"a a", "a b b"} {
		t.Run(strings.ReplaceAll(hosts, " ", ""), func(t *testing.T) {
			comm.StageBy(t, 4096)
			comm.DirectBy(t, 1024, 256)
			m := fakeGPUs(t, len(strings.Fields(hosts)))
			tryDirect(t, m, m.cards(t, hosts, nil, comm.Options{}), 1, 700)
		})
	}
}

// Where GPUs do not see at once what is written, a device reads it over a queue pair that
// is joined to itself.
func TestGPUDirectFlushOverRDMA(t *testing.T) {
	needRDMA(t)
	m := fakeGPUs(t, 2)
	m.driver.DirectWrites(0, false)
	groups := m.cards(t, "a b", nil, comm.Options{})
	tryDirect(t, m, groups, 333)
	if want := "by a read of the card's over a queue pair to itself"; !strings.Contains(m.log.String(), want) {
		t.Errorf("%q is not in the log:\n%s", want, m.log)
	}
}

// sumLarge fills an array of a GPU with what depends on the rank, in pieces, sums it and looks
// at the sums.
func sumLarge(g *comm.Group, s device.Stream, x device.Buffer, piece []int32) error {
	n := x.Len() / 4
	for lo := 0; lo < n; lo += len(piece) {
		for i := range piece {
			piece[i] = int32((lo+i)%10007 + g.Rank())
		}
		s.Copy(x.Slice(4*lo, 4*(lo+len(piece))), device.Of(piece))
	}
	w := g.AllReduce(s, x, dtype.I32, comm.Sum)
	if err := w.Wait(ctx); err != nil {
		return err
	}
	if r := w.Result(); r.Algorithm != comm.GPUDirect {
		return fmt.Errorf("%s by %s", w, r.Algorithm)
	}
	ranks := int32(g.Size())
	for lo := 0; lo < n; lo += len(piece) {
		s.Copy(device.Of(piece), x.Slice(4*lo, 4*(lo+len(piece))))
		for i, v := range piece {
			if want := ranks*int32((lo+i)%10007) + ranks*(ranks-1)/2; v != want {
				return fmt.Errorf("element %d is %d, want %d", lo+i, v, want)
			}
		}
	}
	return nil
}

// 64 MB, in slots of the size that they have.
func TestLargeGPUDirectOverRDMA(t *testing.T) {
	needRDMA(t)
	m := fakeGPUs(t, 2)
	groups := m.cards(t, "a a", nil, comm.Options{}) // of one host, so that each takes a device
	start := time.Now()
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x, err := s.Device().Alloc(64 << 20)
		if err != nil {
			return err
		}
		return sumLarge(g, s, x, make([]int32, 1<<18))
	})
	t.Logf("64 MB after %s", time.Since(start))
}

// tc changes how the guest's links lose packets, and mends them when the test ends.
func tc(t *testing.T, loss string) {
	t.Helper()
	if os.Getenv("GORUN_RDMA_GUEST") == "" {
		testenv.Skip(t, "rdma", "this test drops packets: .ci/rdma runs it in a guest")
	}
	run := func(args ...string) {
		if out, err := exec.Command("tc", append([]string{"qdisc"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("tc qdisc %q: %v: %s", args, err, out)
		}
	}
	run("add", "dev", "va", "root", "netem", "loss", loss)
	t.Cleanup(func() { run("del", "dev", "va", "root") })
}

// What the network loses is sent again.
func TestGPUDirectWithLossOverRDMA(t *testing.T) {
	needRDMA(t)
	m := fakeGPUs(t, 2)
	groups := m.cards(t, "a a", nil, comm.Options{RDMA: rdma.Settings{Timeout: 14}}) // of one host, so that each takes a device
	tc(t, "1%")
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x, err := s.Device().Alloc(2 << 20)
		if err != nil {
			return err
		}
		return errors.Join(sumLarge(g, s, x, make([]int32, 1<<16)), sumLarge(g, s, x, make([]int32, 1<<16)))
	})
}

// A network that is gone is an error that names both ends, and the streams go on.
func TestGPUDirectWithoutNetworkOverRDMA(t *testing.T) {
	needRDMA(t)
	m := fakeGPUs(t, 2)
	groups := m.cards(t, "a a", nil, comm.Options{RDMA: quickly})
	tc(t, "100%")
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		return failsBehind(s, g.AllReduce(s, f32(s, 1<<18), dtype.F32, comm.Sum))
	})
	e := failed[*transport.PeerError](t, groups, errs)
	for _, want := range []string{"over RDMA, rank ", "rxa port 1", "rxb port 1", "does not answer"} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%q does not say %q", e, want)
		}
	}
	if strings.Contains(m.log.String(), "still be on the GPU") {
		t.Errorf("streams wait on:\n%s", m.log)
	}
}

// A process that dies in the midst of calls is named by the other one, in time.
func TestProcessWithGPUDirectCallsThatDiedOverRDMA(t *testing.T) {
	needRDMA(t)
	driver := cudatest.Fake(t)
	for name, value := range map[string]string{"GORUN_CUDA_LIB": driver.Path, "GORUN_FAKE_GPUS": "2", "COMM_TEST_ENGINE": "ring",
		"COMM_TEST_STREAMS": "emulated", "COMM_TEST_SYS": peermem(t), "NCCL_IB_TIMEOUT": fmt.Sprint(quickly.Timeout), "NCCL_IB_RETRY_CNT": fmt.Sprint(quickly.Retries - 1)} {
		t.Setenv(name, value)
	}
	start := time.Now()
	outs := world(t, 2, "gpu dies", "rdma")
	if !strings.Contains(outs[0], "gpudirect over rdma (") || !strings.HasSuffix(outs[1], "[exit status 3]") || !strings.Contains(outs[0], "rank 1 on ") || !strings.HasSuffix(outs[0], "[exit status 2]") {
		t.Errorf("the ranks say %q", outs)
	}
	t.Logf("after %s: %s", time.Since(start), outs[0])
	if took := time.Since(start); took > 60*time.Second {
		t.Errorf("it took %s", took)
	}
}
