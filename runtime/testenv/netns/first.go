package netns

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

const (
	networkOnly   = syscall.CLONE_NEWNET
	allNamespaces = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID
)

// The scripts of first processes. They end as cat, which waits for the end of the
// test. That of a host is its process 1: ignoring the deaths of children lets the
// kernel bury those that nobody else waits for.
const (
	wireScript = `set -e
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null || true
echo ready
exec cat >/dev/null`

	hostScript = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o size=$SHM shm /dev/shm
mount --bind "$HOSTS" /etc/hosts
hostname "$NAME"
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad 2>/dev/null || true
ip link set lo up
echo ready
exec env --ignore-signal=CHLD cat >/dev/null`
)

// first is the process that a set of namespaces lives with.
type first struct {
	t   testing.TB
	cmd *exec.Cmd
}

// begin starts a first process and waits until its script is done. It ends with
// the test, or with this process: both close its standard input.
func begin(t testing.TB, namespaces uintptr, script string, env []string) *first {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setpgid: true}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		testenv.Skip(t, "netns", fmt.Sprintf("no new namespaces: %v", err))
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait() // returns once all processes of its namespace are gone
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "ready\n" {
		io.Copy(io.Discard, stdout)
		cmd.Wait()
		testenv.Skip(t, "netns", fmt.Sprintf("a host cannot be set up (%v): %s", cmd.ProcessState, strings.TrimSpace(complaints.String())))
	}
	return &first{t: t, cmd: cmd}
}

// pid is the process's number outside.
func (f *first) pid() int { return f.cmd.Process.Pid }
