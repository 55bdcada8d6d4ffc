package comm_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// network is two hosts as network namespaces, 10.83.0.1 and 10.83.0.2, joined by a
// pair of veths. Both also have a bridge with one and the same address, as hosts
// with a container engine have.
type network [2]string

func newNetwork(t *testing.T) network {
	t.Helper()
	if os.Getuid() != 0 {
		testenv.Skip(t, "netns", "only root can make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		testenv.Skip(t, "netns", "no ip command: "+err.Error())
	}
	id := fmt.Sprint(os.Getpid() % 10000)
	n := network{"gorunA" + id, "gorunB" + id}
	for _, ns := range n {
		if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
			testenv.Skip(t, "netns", fmt.Sprintf("ip netns add: %v: %s", err, out))
		}
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
	}
	n.ip(t, "link", "add", "gvA"+id, "netns", n[0], "type", "veth", "peer", "name", "gvB"+id, "netns", n[1])
	for i, ns := range n {
		dev := "gv" + string(rune('A'+i)) + id
		n.ip(t, "-n", ns, "link", "set", "lo", "up")
		n.ip(t, "-n", ns, "addr", "add", fmt.Sprintf("10.83.0.%d/24", i+1), "dev", dev)
		n.ip(t, "-n", ns, "link", "set", dev, "up")
		n.ip(t, "-n", ns, "link", "add", "docker0", "type", "bridge")
		n.ip(t, "-n", ns, "addr", "add", "172.17.0.1/16", "dev", "docker0")
		n.ip(t, "-n", ns, "link", "set", "docker0", "up")
	}
	return n
}

func (network) ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		testenv.Skip(t, "netns", fmt.Sprintf("ip %s: %v: %s", strings.Join(args, " "), err, out))
	}
}

// on returns a command that runs this test's binary on host h, in the given role.
func (n network) on(h int, role string, env ...string) *exec.Cmd {
	c := exec.Command("ip", "netns", "exec", n[h], os.Args[0])
	c.Env = append(append(os.Environ(), "COMM_TEST_RANK="+role), env...)
	return c
}

// world starts a rank on each of the hosts, and the store on the first.
func (n network) world(t *testing.T, role string, hosts ...int) []string {
	t.Helper()
	srv := n.on(0, "store")
	stdin, err := srv.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := srv.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); srv.Wait() })
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	cmds, outs := make([]*exec.Cmd, len(hosts)), make([]bytes.Buffer, len(hosts))
	for r, h := range hosts {
		cmds[r] = n.on(h, role, fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", len(hosts)), "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
			fmt.Sprint("GROUP_RANK=", h), "GORUN_STORE="+strings.TrimSpace(addr), "GORUN_TOKEN=secret", "GORUN_JOB=test", "GORUN_ATTEMPT=0")
		cmds[r].Stdout, cmds[r].Stderr = &outs[r], &outs[r]
		if err := cmds[r].Start(); err != nil {
			t.Fatal(err)
		}
	}
	var printed []string
	for r, c := range cmds {
		err := c.Wait()
		printed = append(printed, fmt.Sprintf("%s[%v]", outs[r].String(), err))
	}
	return printed
}

// Two hosts with two and three ranks, in mixed order: shared memory within them,
// the veth between them, whatever other interfaces there are.
func TestTwoHosts(t *testing.T) {
	commtest.CheckLeaks(t)
	n := newNetwork(t)
	for r, out := range n.world(t, "work", 0, 1, 1, 0, 1) {
		if out != "max 5 shm tcp\n[<nil>]" {
			t.Errorf("rank %d says %q", r, out)
		}
	}
	for r, out := range n.world(t, "die", 0, 1, 0) { // rank 1 is alone on its host
		if r != 1 && !strings.Contains(out, "rank 1 on ") {
			t.Errorf("rank %d says %q", r, out)
		}
	}
}
