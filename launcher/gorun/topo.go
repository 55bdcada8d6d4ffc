package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorun-dev/gorun/runtime/topology"
)

const topoUsage = `gorun topo shows what this machine is made of as far as data travels through it: how GPUs,
network cards and CPUs reach each other, which network card each GPU should use, and where
GPUDirect RDMA is possible. It needs no GPU.

Examples:
  gorun topo                           the matrix, and what it means
  gorun topo --json
  gorun topo --xml >this-machine.xml   in NCCL's format, for NCCL_TOPO_FILE and comm.topo_file
  gorun topo --topo-file machine.xml   the same of a machine that a file describes

Where NCCL is given a file by NCCL_TOPO_FILE, in the environment or in a file of its settings,
or by /var/run/nvidia-topologyd/virtualTopology.xml, this machine is shown as NCCL sees it:
devices are where the file says.
`

func newTopo() *cobra.Command {
	flags := newFlagSet("topo")
	asJSON := flags.Bool("json", false, "write everything as one JSON object")
	asXML := flags.Bool("xml", false, "write the machine in NCCL's XML format")
	file := flags.String("topo-file", "", "show the machine that a `file` in NCCL's XML format describes")
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "show how GPUs, network cards and CPUs are connected",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if *asJSON && *asXML {
				return errors.New("topo: --json and --xml are both given, want one")
			}
			s, err := readTopology(*file)
			if err != nil {
				return fmt.Errorf("topo: %w", err)
			}
			out := cmd.OutOrStdout()
			switch {
			case *asXML:
				_, err = io.WriteString(out, s.XML())
			case *asJSON:
				enc := json.NewEncoder(out)
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false)
				err = enc.Encode(topoReport(s))
			default:
				_, err = fmt.Fprintf(out, "%s\n%s\n", s.Matrix(), strings.Join(s.Explain(), "\n"))
			}
			return err
		},
	}
	return described(cmd, topoUsage, flagGroup{"Flags", flags})
}

// readTopology reads a file, or this machine.
func readTopology(file string) (*topology.System, error) {
	if file != "" {
		return topology.ReadFile(file)
	}
	file, from := ncclTopoFile()
	s, err := topology.LocalWith(file)
	if err != nil && file != "" {
		return nil, fmt.Errorf("%s names a file for NCCL: %w", from, err)
	}
	return s, err
}

// ncclTopoFile is the file that NCCL goes by on this machine, and who says so: its
// variable, the files of its settings, or the place where virtual machines have one.
func ncclTopoFile() (path, from string) {
	const variable = "NCCL_TOPO_FILE"
	if path := os.Getenv(variable); path != "" {
		return path, variable
	}
	settings := []string{"/etc/nccl.conf"}
	if own := os.Getenv("NCCL_CONF_FILE"); own != "" {
		settings = []string{own, "/etc/nccl.conf"}
	} else if home, err := os.UserHomeDir(); err == nil {
		settings = []string{filepath.Join(home, ".nccl.conf"), "/etc/nccl.conf"}
	}
	for _, name := range settings {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // most machines have none
		}
		for line := range strings.Lines(string(text)) {
			if path, ok := strings.CutPrefix(strings.TrimSpace(line), variable+"="); ok {
				return path, name
			}
		}
	}
	const virtual = "/var/run/nvidia-topologyd/virtualTopology.xml"
	if _, err := os.Stat(virtual); err == nil {
		return virtual, "NVIDIA's topology daemon"
	}
	return "", ""
}

// topoJSON is what --json writes. Devices refer to each other by these names: GPU0,
// CPU0, and a network card by its own.
type topoJSON struct {
	CPUs       []topoCPU         `json:"cpus"`
	GPUs       []topoGPU         `json:"gpus"`
	NICs       []topoNIC         `json:"nics"`
	Virtual    []topology.Netdev `json:"virtual"`
	Paths      []topoPath        `json:"paths"`
	GPUDirect  []topoDirect      `json:"gpudirect"`
	PeerMemory string            `json:"peer_memory"` // the module, or ""
	Meaning    []string          `json:"meaning"`
	Problems   []string          `json:"problems"`
}

type topoCPU struct {
	Name   string `json:"name"`
	Node   int    `json:"numa_node"` // -1: not known
	Cores  string `json:"cores"`
	Arch   string `json:"arch"`
	Vendor string `json:"vendor,omitempty"`
}

type topoGPU struct {
	Name    string       `json:"name"`
	Index   int          `json:"index"`
	Model   string       `json:"model"`
	BusID   string       `json:"bus_id"`
	Compute int          `json:"compute_capability"` // 90 for 9.0
	Node    int          `json:"numa_node"`
	NVLinks []topoNVLink `json:"nvlinks"`
	Nearest []string     `json:"nearest_nics"`
}

type topoNVLink struct {
	Target string `json:"target"`
	Class  string `json:"class"`
	Count  int    `json:"count"`
}

type topoNIC struct {
	Name    string            `json:"name"`
	BusID   string            `json:"bus_id,omitempty"`
	Node    int               `json:"numa_node"`
	Virtual bool              `json:"virtual"`
	Active  bool              `json:"active"`
	Mbps    int               `json:"mbps"`
	Netdevs []topology.Netdev `json:"netdevs"`
	RDMA    []topology.RDMA   `json:"rdma"`
}

type topoPath struct {
	A       string        `json:"a"`
	B       string        `json:"b"`
	Path    topology.Path `json:"path"`
	GBps    float64       `json:"gbps"` // 10^9 bytes a second
	NVLinks int           `json:"nvlinks,omitempty"`
	P2P     *topoP2P      `json:"p2p,omitempty"` // of two GPUs, where the driver was asked
}

type topoP2P struct {
	Read  string `json:"read"`
	Write string `json:"write"`
}

type topoDirect struct {
	GPU      string `json:"gpu"`
	NIC      string `json:"nic"`
	Possible bool   `json:"possible"`
	Why      string `json:"why,omitempty"`
}

func topoReport(s *topology.System) topoJSON {
	r := topoJSON{
		CPUs: []topoCPU{}, GPUs: []topoGPU{}, NICs: []topoNIC{}, Paths: []topoPath{}, GPUDirect: []topoDirect{},
		Virtual: append([]topology.Netdev{}, s.Virtual...), Problems: append([]string{}, s.Problems...),
		PeerMemory: s.PeerMemory, Meaning: s.Explain(),
	}
	var nodes []topology.Node
	var names []string
	for _, g := range s.GPUs {
		name := fmt.Sprintf("GPU%d", g.Index)
		nodes, names = append(nodes, g), append(names, name)
		v := topoGPU{Name: name, Index: g.Index, Model: g.Name, BusID: g.PCI.BusID, Compute: g.Compute, Node: g.PCI.CPU.Node, NVLinks: []topoNVLink{}, Nearest: []string{}}
		for _, l := range g.NVLinks {
			v.NVLinks = append(v.NVLinks, topoNVLink(l))
		}
		for _, n := range s.NearestNICs(g) {
			v.Nearest = append(v.Nearest, n.Name)
		}
		r.GPUs = append(r.GPUs, v)
		for _, n := range s.NICs {
			ok, why := s.GPUDirect(g, n)
			r.GPUDirect = append(r.GPUDirect, topoDirect{name, n.Name, ok, why})
		}
	}
	for _, n := range s.NICs {
		nodes, names = append(nodes, n), append(names, n.Name)
		r.NICs = append(r.NICs, topoNIC{
			Name: n.Name, BusID: n.BusID(), Node: n.CPU.Node, Virtual: n.Virtual, Active: n.Active(), Mbps: n.Mbps(),
			Netdevs: append([]topology.Netdev{}, n.Netdevs...), RDMA: append([]topology.RDMA{}, n.RDMA...),
		})
	}
	for _, c := range s.CPUs {
		name := fmt.Sprintf("CPU%d", c.Node)
		nodes, names = append(nodes, c), append(names, name)
		r.CPUs = append(r.CPUs, topoCPU{name, c.Node, c.Cores, c.Arch, c.Vendor})
	}
	for i, a := range nodes {
		for j := i + 1; j < len(nodes); j++ {
			r.Paths = append(r.Paths, pathBetween(s, names[i], names[j], a, nodes[j]))
		}
	}
	return r
}

func pathBetween(s *topology.System, nameA, nameB string, a, b topology.Node) topoPath {
	p := topoPath{A: nameA, B: nameB, Path: s.Path(a, b), GBps: s.Rate(a, b)}
	x, ok := a.(*topology.GPU)
	y, both := b.(*topology.GPU)
	if !ok || !both {
		return p
	}
	if p.Path == topology.NVL {
		p.NVLinks = s.NVLinks(x, y)
	}
	if state, known := s.P2P(x, y); known {
		p.P2P = &topoP2P{state.Read, state.Write}
	}
	return p
}
