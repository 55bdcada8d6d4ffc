package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/topology"
)

// Machine is the host that is looked at: its files, and what only calls tell.
type Machine struct {
	Root     string   // the folder that stands for /
	Hostname string   // as the host calls itself
	Name     string   // as findings call it: the same, unless another host is called so too
	Environ  []string // NAME=value
	Hosts    int      // of the job
	Workers  int      // of the job on this host
	World    int      // workers on all hosts

	Interface string // that the job is told to use (comm.interface): a name or an address; or ""

	Addrs  func() (map[string][]netip.Prefix, error) // addresses of each network interface; it has a key for those without, too
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	// Listen is over TCP.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	Space  func(path string) (Space, error) // of the file system that holds path, an absolute one
	// PeerCopies copies data between the GPUs; it is called where there are two or more.
	PeerCopies func(ctx context.Context) ([]PeerCopy, error)

	sys *topology.System // once it has been asked for
}

// Space is the room of a file system, in bytes.
type Space struct{ Total, Free uint64 }

// Here is the machine that this process runs on, for a job of that size. copies is the
// command for SpawnPeerCopies.
func Here(hosts, workers, world int, copies func() *exec.Cmd) (*Machine, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("this host's name: %w", err)
	}
	return &Machine{
		Root: "/", Hostname: name, Name: name, Environ: os.Environ(), Hosts: hosts, Workers: workers, World: world,
		Addrs: addresses, Listen: listen, Lookup: lookup, Space: space,
		PeerCopies: func(ctx context.Context) ([]PeerCopy, error) { return SpawnPeerCopies(ctx, copies()) },
	}, nil
}

// several says whether the job has more than one host.
func (m *Machine) several() bool { return m.Hosts > 1 }

// sterner is Warning where several hosts make something matter, else Note.
func (m *Machine) sterner() Severity {
	if m.several() {
		return Warning
	}
	return Note
}

// env returns a variable of the job's environment, "" where it is not set.
func (m *Machine) env(name string) string {
	value := ""
	for _, v := range m.Environ {
		if n, is, _ := strings.Cut(v, "="); n == name {
			value = is
		}
	}
	return value
}

func (m *Machine) path(elem ...string) string {
	return filepath.Join(append([]string{m.Root}, elem...)...)
}

// text reads a file, without the white space around what it says.
func (m *Machine) text(elem ...string) (string, error) {
	b, err := os.ReadFile(m.path(elem...))
	return strings.TrimSpace(string(b)), err
}

// number reads a file that holds an integer, in any of Go's notations.
func (m *Machine) number(elem ...string) (int64, error) {
	s, err := m.text(elem...)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number", filepath.Join(elem...), s)
	}
	return n, nil
}

// exists says whether a path is there.
func (m *Machine) exists(elem ...string) bool {
	_, err := os.Stat(m.path(elem...))
	return err == nil
}

// list names the entries of a folder; one that is not there has none.
func (m *Machine) list(elem ...string) ([]string, error) {
	entries, err := os.ReadDir(m.path(elem...))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// link is the last element of what a symbolic link points to; "" without one.
func (m *Machine) link(elem ...string) string {
	target, err := os.Readlink(m.path(elem...))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// addresses asks the kernel for those of all interfaces.
func addresses() (map[string][]netip.Prefix, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the network interfaces: %w", err)
	}
	all := map[string][]netip.Prefix{}
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface has just gone
		}
		all[i.Name] = nil
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				all[i.Name] = append(all[i.Name], p)
			}
		}
	}
	return all, nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

func lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, err
}

func space(path string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Space{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return Space{s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize)}, nil
}
