package doctor

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Inventory is what tells hosts apart.
type Inventory struct {
	Host      string            `json:"host"`
	Gorun     string            `json:"gorun"`
	Kernel    string            `json:"kernel"`
	Driver    string            `json:"driver,omitempty"` // NVIDIA's; "" without
	Libraries map[string]string `json:"libraries"`        // version by name, of those that are found
	Cards     []Interface       `json:"cards"`            // network cards in use
	RDMA      []RDMADevice      `json:"rdma"`
	Cores     int               `json:"cores"`
}

// libraries are those that all hosts must have alike, by their names before .so.
var libraries = []string{"libnccl", "libcudnn", "libcublasLt", "libnvrtc", "libibverbs"}

// libraryFolders are where they lie, as patterns below the root; the active Python
// environment and LD_LIBRARY_PATH come before.
var libraryFolders = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib", "lib/x86_64-linux-gnu",
	"usr/local/cuda/lib64", "usr/local/cuda-*/lib64",
}

// inventory takes that of this host. What cannot be read is left out, and said.
func (m *Machine) inventory(gorun string) (v Inventory, missing []error) {
	note := func(err error) {
		if err != nil {
			missing = append(missing, err)
		}
	}
	v = Inventory{Host: m.Name, Gorun: gorun, Libraries: map[string]string{}}
	var err error
	v.Kernel, err = m.text("proc/sys/kernel/osrelease")
	note(err)
	v.Driver, err = m.nvidiaDriver()
	note(err)
	list, err := m.interfaces()
	note(err)
	for _, i := range list {
		if i.Kind == hardware && i.usable() {
			v.Cards = append(v.Cards, i)
		}
	}
	v.RDMA, err = m.rdmaDevices()
	note(err)
	if allowed, err := m.status("Cpus_allowed_list"); err != nil {
		note(err)
	} else {
		v.Cores, err = countList(allowed)
		note(err)
	}
	for _, name := range libraries {
		if version := m.library(name); version != "" {
			v.Libraries[name] = version
		}
	}
	return v, missing
}

var versionPattern = regexp.MustCompile(`\d+\.\d+(\.\d+)*`)

// nvidiaDriver is the version of the kernel module; "" without one.
func (m *Machine) nvidiaDriver() (string, error) {
	if !m.exists("proc/driver/nvidia/version") {
		return "", nil
	}
	text, err := m.text("proc/driver/nvidia/version")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(text, "\n")
	v := versionPattern.FindString(first)
	if v == "" {
		return "", fmt.Errorf("/proc/driver/nvidia/version: no version in %q", first)
	}
	return v, nil
}

// library is the version that a library's file name ends in, of the first folder that
// has it: libnccl.so.2 is a link to libnccl.so.2.21.5.
func (m *Machine) library(name string) string {
	folders := filepath.SplitList(m.env("LD_LIBRARY_PATH"))
	for _, dir := range slices.Concat(m.wheels(), folders, libraryFolders) {
		files, err := filepath.Glob(m.path(dir, name+".so.*"))
		if err != nil {
			continue // a variable that is no pattern
		}
		longest := ""
		for _, f := range files {
			if real, err := filepath.EvalSymlinks(f); err == nil {
				f = real
			}
			if _, err := os.Stat(f); err != nil {
				continue
			}
			if _, v, _ := strings.Cut(filepath.Base(f), ".so."); len(v) > len(longest) {
				longest = v
			}
		}
		if longest != "" {
			return longest
		}
	}
	return ""
}

// wheels are the folders in which pip's packages keep NVIDIA's libraries, in the Python
// environment that is active.
func (m *Machine) wheels() (out []string) {
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if env := m.env(name); env != "" {
			out = append(out, filepath.Join(env, "lib/python3*/site-packages/nvidia/*/lib"))
		}
	}
	return out
}

// cardSet describes the network cards without their names and addresses, which may
// differ.
func (v Inventory) cardSet() string {
	var out []string
	for _, c := range v.Cards {
		s := c.Driver
		if c.Speed > 0 {
			s += " at " + speedText(c.Speed)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return orNone(out)
}

// rdmaSet is the same of the RDMA devices, with the names, which NCCL matches.
func (v Inventory) rdmaSet() string {
	var out []string
	for _, d := range v.RDMA {
		out = append(out, d.summary())
	}
	slices.SortFunc(out, cmp.Compare)
	return orNone(out)
}
