package nccl

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Path is how the GPUs of a communicator reach each other, as NCCL has logged it.
type Path struct {
	Channels int      // rings side by side; 0: not logged
	Links    []string // of this rank, sorted: P2P/CUMEM, SHM/direct, NET/IB/GDRDMA, NET/Socket
	Topology string   // between the GPUs of a host: NVL, PIX, PXB, PHB, SYS; "" if not logged
	NVLS     bool     // the switch can sum
	Err      error    // why nothing is known
}

var (
	channels  = regexp.MustCompile(`(?m)NCCL INFO (\d+) coll channels`)
	link      = regexp.MustCompile(`(?m)NCCL INFO Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[\w+\] )?via (.+)$`)
	ring      = regexp.MustCompile(`(?m)NCCL INFO Pattern 4, .* type (\w+)/\w+`)
	multicast = regexp.MustCompile(`NVLS multicast support is available`)
	// device is the number of a network device within a link: NET/IB/0(3)/GDRDMA.
	device = regexp.MustCompile(`/\d+(\(\d+\))?`)
)

// readPath reads what NCCL logged while rank's communicator was made and first used.
func readPath(log string, rank int) Path {
	var p Path
	if m := channels.FindStringSubmatch(log); m != nil {
		p.Channels, _ = strconv.Atoi(m[1]) // digits
	}
	if m := ring.FindStringSubmatch(log); m != nil {
		p.Topology = m[1]
	}
	p.NVLS = multicast.MatchString(log)
	me := strconv.Itoa(rank)
	for _, m := range link.FindAllStringSubmatch(log, -1) {
		if m[1] != me && m[2] != me {
			continue // of another rank in this process
		}
		l := strings.TrimSuffix(m[3], "/read")
		if strings.HasPrefix(l, "NET/") {
			l = device.ReplaceAllString(l, "")
		}
		if !slices.Contains(p.Links, l) {
			p.Links = append(p.Links, l)
		}
	}
	slices.Sort(p.Links)
	return p
}

// String says it for people: NVLink (P2P/CUMEM), 24 channels.
func (p Path) String() string {
	if p.Err != nil {
		return fmt.Sprintf("by a path that is not known (%v)", p.Err)
	}
	var parts []string
	for _, l := range p.Links {
		what := ""
		switch kind, _, _ := strings.Cut(l, "/"); kind {
		case "P2P":
			switch p.Topology {
			case "NVL", "NVB":
				what = "NVLink"
			case "C2C":
				what = "C2C"
			case "":
				what = "GPU to GPU"
			default:
				what = "PCIe " + p.Topology
			}
		case "SHM":
			what = "host memory"
		case "NET":
			what = "network"
			if strings.HasPrefix(l, "NET/Socket") {
				what = "sockets"
			} else if strings.HasPrefix(l, "NET/IB") {
				what = "InfiniBand or RoCE"
			}
		}
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s (%s)", what, l)))
	}
	if len(parts) == 0 {
		parts = append(parts, "no links logged")
	}
	if p.NVLS {
		parts = append(parts, "NVLS")
	}
	if p.Channels > 0 {
		parts = append(parts, fmt.Sprintf("%d channels", p.Channels))
	}
	return strings.Join(parts, ", ")
}
