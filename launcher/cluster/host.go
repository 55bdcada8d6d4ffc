package cluster

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// BootID identifies this boot of this machine: two agents with the same one run
// on the same kernel. Empty where the kernel does not say.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// FreePort returns a TCP port that nobody used on addr a moment ago.
func FreePort(addr string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return 0, fmt.Errorf("a free port on %s: %w", addr, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
