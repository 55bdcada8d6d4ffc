package netns

import (
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Host is one of the hosts that New made. Its methods are for the goroutine of
// the test.
type Host struct {
	Name string     // "host0", …; the host's own name, which the others can look up
	Addr netip.Addr // of eth0

	index int
	net   *network
	first *first
}

// Command is a program to be run on the host, in the current folder. The process
// that it starts outside stands for the program, ends as it ends, and passes no
// signals on: send them to the program itself, whose number outside PID tells.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	enter := []string{"-t", fmt.Sprint(h.PID()), "-n", "-m", "-u", "-i", "-p", "--wd=.", "--", name}
	return exec.Command("nsenter", append(enter, args...)...)
}

// PID is the number, outside, of the host's first process: /proc/<PID>/ns holds
// its namespaces, /proc/<PID>/net its connections. To kill it is to cut the power.
func (h *Host) PID() int { return h.first.pid() }

// In runs f on a thread of this process that is on the host's network: sockets
// that f itself opens are the host's, and stay so. f must not call t.FailNow.
func (h *Host) In(f func() error) error {
	done := make(chan error)
	go func() { // ends with f; its thread is never given back
		runtime.LockOSThread()
		done <- h.enter(f)
	}()
	return <-done
}

func (h *Host) enter(f func() error) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", h.PID()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s's network: %w", h.Name, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering %s's network: %w", h.Name, err)
	}
	return f()
}

// Crash ends all that runs on the host at once, and its network.
func (h *Host) Crash() {
	h.net.t.Helper()
	if err := h.first.cmd.Process.Kill(); err != nil {
		h.net.t.Fatalf("%s: %v", h.Name, err)
	}
}

// Unplug pulls the host's cable out of the switch: eth0 keeps its address and
// routes, and has no carrier. Plug puts it back.
func (h *Host) Unplug() {
	h.net.t.Helper()
	h.net.wire.ip("link set " + port(h.index) + " down")
}

// Plug undoes Unplug.
func (h *Host) Plug() {
	h.net.t.Helper()
	h.net.wire.ip("link set " + port(h.index) + " up")
}

// SetMTU sets what eth0 takes as one packet, in bytes.
func (h *Host) SetMTU(bytes int) {
	h.net.t.Helper()
	h.ip(fmt.Sprint("link set eth0 mtu ", bytes))
}

func (h *Host) ip(lines ...string) {
	h.net.t.Helper()
	h.first.ip(lines...)
}
