package rdma

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// quick finds a dead peer in about half a second. Soft-RoCE takes 7 tries for endless
// ones, so these are 6.
var quick = Settings{Timeout: 14, Retries: 7}

// guest skips a test that breaks links outside the guest of .ci/rdma, whose devices
// rxa and rxb lie on the pair of veths va and vb.
func guest(t *testing.T) {
	t.Helper()
	if os.Getenv("GORUN_RDMA_GUEST") == "" {
		testenv.Skip(t, "rdma", "this test takes links down: .ci/rdma runs it in a guest")
	}
}

func ip(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// ready waits until both devices are up, as they are some time after their links.
func ready(t *testing.T) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); ; {
		names, err := Usable(nil, quick)
		if err == nil && len(names) == 2 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("the devices do not come back: %q, %v", names, err)
		}
	}
}

// worked has two ends exchange a message, so that their faults come later.
func worked(t *testing.T) []*end {
	t.Helper()
	ready(t)
	ends := join(t, 2, nil, quick)
	if sent, got := one(ends, time.Minute, 1000); sent != nil || got != nil {
		t.Fatal(sent, got)
	}
	return ends
}

// alone sends from rank 0 to 1, who does nothing, and returns what becomes of it.
func alone(ends []*end, size int) error {
	c := callAt(2, time.Minute)
	if err := errors.Join(ends[0].PostSend(c, 1, make([]byte, size)), ends[0].PostRecv(c, 1, nil)); err != nil {
		return err
	}
	return ends[0].WaitRecv(c, 1)
}

// A device that tries for ever is given up on all the same.
func TestFaultEndlessTries(t *testing.T) {
	guest(t)
	ready(t)
	ends := join(t, 2, nil, Settings{Timeout: 8})
	ends[1].Abort(errors.New("dead"))
	if err := ends[1].Close(); err != nil {
		t.Fatal(err)
	}
	says(t, alone(ends, 1000), "neither ended nor failed", "rank 1 on host1")
}

func TestFaultWrongKey(t *testing.T) {
	guest(t)
	ends := worked(t)
	ends[0].peers[1].rkey ^= 0xff
	says(t, alone(ends, 1000), "may not write", "status 10", "rxa port 1, GID ::ffff:192.168.82.1 (RoCE v2, index 1)", "rxb port 1, GID ::ffff:192.168.82.2")
}

func TestFaultDeadPeer(t *testing.T) {
	guest(t)
	ends := worked(t)
	ends[1].Abort(errors.New("dead"))
	if err := ends[1].Close(); err != nil { // its queue pairs are gone, as a dead process's are
		t.Fatal(err)
	}
	c := callAt(2, time.Minute)
	if err := ends[0].PostRecv(c, 1, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	says(t, ends[0].WaitRecv(c, 1), "does not answer", "rank 1 on host1")
}

// A rank that calls nothing is told all the same.
func TestFaultDeadPeerOfAnIdleRank(t *testing.T) {
	guest(t)
	ends := worked(t)
	ends[1].Abort(errors.New("dead"))
	if err := ends[1].Close(); err != nil {
		t.Fatal(err)
	}
	says(t, <-ends[0].lost, "does not answer", "rank 1 on host1")
}

func TestFaultLinkDown(t *testing.T) {
	guest(t)
	ends := worked(t)
	ip(t, "ip link set vb down")
	defer ready(t)
	defer ip(t, "ip link set vb up")
	sent, got := one(ends, time.Minute, 1000)
	for r, err := range []error{sent, got} {
		says(t, err, "rank", "port 1")
		if !strings.Contains(err.Error(), "link") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if late, ok := errors.AsType[*transport.TimeoutError](sent); ok {
		t.Errorf("only the call's deadline ended it: %v", late)
	}
}

// The links lose what is larger than 1500 bytes, and nobody says so.
func TestFaultHoleForLargePackets(t *testing.T) {
	guest(t)
	ends := worked(t)
	ip(t, "ip link set vb mtu 1500")
	defer ready(t)
	defer ip(t, "ip link set vb mtu 4500")
	says(t, alone(ends, 20000), "MTU", "rank 1 on host1")
}

// What is lost is sent again.
func TestFaultLoss(t *testing.T) {
	guest(t)
	ends := worked(t)
	ip(t, "tc qdisc add dev va root netem loss 1%")
	defer ip(t, "tc qdisc del dev va root")
	exchangeBothWays(t, ends)
}

// A rank whose receives are not posted, which this code never is.
func TestFaultNoReceive(t *testing.T) {
	guest(t)
	ready(t)
	real, err := verbs.Load()
	if err != nil {
		t.Fatal(err)
	}
	lazy := *real
	lazy.PostRecv = func(*verbs.QP, uint64) error { return nil }
	ends, errs := tryJoin(t, 2, func(rank int) Options {
		if rank == 1 {
			return Options{Settings: quick, API: &lazy}
		}
		return Options{Settings: quick}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	says(t, alone(ends, 1000), "rank 1 on host1", "rxb")
}
