package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Explain says in sentences what the paths mean: who reaches whom by what, which
// network card each GPU should use, and where GPUDirect RDMA is possible.
func (s *System) Explain() []string {
	var say []string
	add := func(lines ...string) {
		for _, l := range lines {
			if l != "" {
				say = append(say, l)
			}
		}
	}
	add(s.explainGPUs(), s.explainNUMA())
	if len(s.GPUs) > 1 {
		add(s.explainNVLink()...)
		add(s.explainPCIe()...)
	}
	add(s.explainNearest()...)
	add(s.explainGPUDirect()...)
	add(s.explainVirtual())
	for _, p := range s.Problems {
		add("Not known: " + p + ".")
	}
	return say
}

func (s *System) explainGPUs() string {
	if len(s.GPUs) == 0 && s.fromFile() {
		return "The file names no GPU."
	} else if len(s.GPUs) == 0 {
		return "There is no NVIDIA GPU: training runs on the CPU, and ranks talk through shared memory and the network."
	}
	var parts []string
	for _, c := range s.CPUs {
		var on []*GPU
		for _, g := range s.GPUs {
			if g.PCI.CPU == c {
				on = append(on, g)
			}
		}
		if len(on) > 0 && c.Node >= 0 {
			parts = append(parts, fmt.Sprintf("%s on NUMA node %d", gpuList(on), c.Node))
		}
	}
	text := plural(len(s.GPUs), "GPU")
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text + "."
}

func (s *System) explainNUMA() string {
	if c := s.CPUs[len(s.CPUs)-1]; c.Node < 0 {
		return "The system does not tell which NUMA node devices marked ? belong to. Paths through them are counted as through the link between nodes, and ranks cannot be bound to the nearest cores."
	}
	return ""
}

// nodesOfGPUs is GPU0-3 | GPU4-7.
func (s *System) nodesOfGPUs() string {
	var parts []string
	for _, c := range s.CPUs {
		var on []*GPU
		for _, g := range s.GPUs {
			if g.PCI.CPU == c {
				on = append(on, g)
			}
		}
		if len(on) > 0 {
			parts = append(parts, gpuList(on))
		}
	}
	return strings.Join(parts, " | ")
}

func (s *System) explainNearest() []string {
	if len(s.usable()) == 0 {
		return []string{"No network card is up: a job cannot span machines from here."}
	}
	var say []string
	for _, g := range s.GPUs {
		var cards []string
		for _, n := range s.NearestNICs(g) {
			cards = append(cards, fmt.Sprintf("%s (%s, %s)", n.Name, s.Path(g, n), speed(n.Mbps())))
		}
		say = append(say, fmt.Sprintf("GPU%d should use %s.", g.Index, strings.Join(cards, ", ")))
	}
	return say
}

func (s *System) explainGPUDirect() []string {
	if len(s.GPUs) == 0 || len(s.NICs) == 0 {
		return nil
	}
	if !slices.ContainsFunc(s.NICs, func(n *NIC) bool { return !n.unknown() }) {
		return []string{"Where GPUDirect RDMA is possible is not known: the file tells of network cards no more than where they are."}
	}
	var can []string
	var reasons []string
	against := map[string]int{}
	for _, g := range s.GPUs {
		var cards []string
		for _, n := range s.NICs {
			if ok, why := s.GPUDirect(g, n); ok {
				cards = append(cards, n.Name)
			} else {
				if against[why] == 0 {
					reasons = append(reasons, why)
				}
				against[why]++
			}
		}
		if len(cards) > 0 {
			can = append(can, fmt.Sprintf("GPU%d with %s", g.Index, strings.Join(cards, ", ")))
		}
	}
	for i, why := range reasons {
		reasons[i] = fmt.Sprintf("%s (%s)", why, plural(against[why], "pair"))
	}
	because := strings.Join(reasons, "; ")
	if len(can) == 0 {
		return []string{"GPUDirect RDMA is possible for no pair of GPU and network card: " + because + "."}
	}
	say := []string{"GPUDirect RDMA is possible for " + strings.Join(can, "; ") + "."}
	if because != "" {
		say = append(say, "It is not possible for other pairs: "+because+".")
	}
	switch {
	case s.fromFile(): // it does not tell what is loaded
	case s.PeerMemory != "":
		say = append(say, s.PeerMemory+" is loaded, by which network cards reach memory of GPUs.")
	default:
		say = append(say, "No peer memory module is loaded (modprobe nvidia_peermem), so that takes the kernel's dma-buf: the open driver, Linux 5.12 or later, and a network card's driver that has it.")
	}
	return say
}

func (s *System) explainVirtual() string {
	var list []string
	for _, d := range s.Virtual {
		list = append(list, fmt.Sprintf("%s (%s, %s)", d.Name, d.Kind, d.State))
	}
	if len(list) == 0 {
		return ""
	}
	return "Virtual interfaces, which are in no matrix: " + strings.Join(list, ", ") + "."
}

// gpuList is GPU0-3,6.
func gpuList(list []*GPU) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1].Index == list[j].Index+1 {
			j++
		}
		switch {
		case j == i:
			parts = append(parts, fmt.Sprint(list[i].Index))
		case j == i+1:
			parts = append(parts, fmt.Sprint(list[i].Index), fmt.Sprint(list[j].Index))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", list[i].Index, list[j].Index))
		}
		i = j + 1
	}
	return "GPU" + strings.Join(parts, ",")
}

// plural counts things: 1 pair, 2 pairs.
func plural(n int, one string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + one
	case len(many) > 0:
		return fmt.Sprintf("%d %s", n, many[0])
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func ofAll(n, all int) string {
	switch {
	case all == 1:
		return "the one pair without NVLink"
	case n == all:
		return fmt.Sprintf("all %d pairs without NVLink", n)
	}
	return fmt.Sprintf("%d of the %d pairs without NVLink", n, all)
}
