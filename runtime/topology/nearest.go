package topology

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// NearestNICs are the network cards that n, a *GPU or *CPU, should use, in the order
// of its channels. They are those with the fastest path to it, and among these the
// nearest; where several GPUs are equally near to them, each GPU gets its share, by
// NCCL's rule. A CPU gets all.
//
// Cards with an active RDMA port are considered alone, unless there is none: then
// those with an interface that is up, and then those of which a file tells the address
// alone. The list is empty where there is no such card.
func (s *System) NearestNICs(n Node) []*NIC {
	near := s.local(n)
	x, isGPU := n.(*GPU)
	if !isGPU || len(near) == 0 {
		return near
	}
	sharing := len(s.localGPUs(near[0]))
	share := (len(near) + sharing - 1) / sharing
	first := x.Index % sharing
	if count := len(near); count&(count-1) == 0 {
		first = mirror(first, count)
	}
	var mine []*NIC
	for i := range share {
		mine = append(mine, near[(first+i)%len(near)])
	}
	return mine
}

// Nearest are those of the given cards that n, a *GPU or *CPU, is nearest to, in their
// order, and the path to them: by the path's class, and of one class the fastest. It is
// for programs that use one card for each GPU, where NCCL, and so NearestNICs, uses
// several and puts speed first. The list is empty, and the path DIS, where no path leads
// to any.
func (s *System) Nearest(n Node, cards []*NIC) (near []*NIC, path Path) {
	path = DIS
	rate := 0.0
	for _, c := range cards {
		p, r := s.Path(n, c), s.Rate(n, c)
		if p.rank() < path.rank() || p == path && r > rate {
			near, path, rate = nil, p, r
		}
		if p == path && r == rate && p != DIS && p != NET {
			near = append(near, c)
		}
	}
	if len(near) == 0 {
		path = DIS
	}
	return near, path
}

// NodeOf is the NUMA node that has all of these cores, nil where none has.
func (s *System) NodeOf(cores []int) *CPU {
	for _, c := range s.CPUs {
		if len(cores) > 0 && !slices.ContainsFunc(cores, func(core int) bool { return !c.has(core) }) {
			return c
		}
	}
	return nil
}

// has says whether a core is in the list of c's.
func (c *CPU) has(core int) bool {
	for r := range strings.SplitSeq(c.Cores, ",") {
		first, last, isRange := strings.Cut(r, "-")
		if !isRange {
			last = first
		}
		lo, err := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		if err == nil && err2 == nil && lo <= core && core <= hi {
			return true
		}
	}
	return false
}

// usable are the cards that data between machines can take.
func (s *System) usable() []*NIC {
	for _, has := range []func(*NIC) bool{(*NIC).active, (*NIC).Active, (*NIC).unknown} {
		var list []*NIC
		for _, n := range s.NICs {
			if has(n) {
				list = append(list, n)
			}
		}
		if len(list) > 0 {
			return list
		}
	}
	return nil
}

// local are the cards to which n has the fastest path, and of these the nearest.
func (s *System) local(n Node) []*NIC {
	return best(s, n, s.usable())
}

func (s *System) localGPUs(n *NIC) []*GPU {
	return best(s, n, s.GPUs)
}

func best[D Node](s *System, from Node, candidates []D) []D {
	var found []D
	top := route{class: dis}
	for _, d := range candidates {
		r := s.graph.routes[s.graph.of[from]][s.graph.of[d]]
		r.hops = 0
		if r.gbps > top.gbps || r.gbps == top.gbps && r.class < top.class {
			top, found = r, nil
		}
		if r == top && r.class < dis {
			found = append(found, d)
		}
	}
	return found
}

// mirror reverses the order of v's bits, of which there are as many as below count, a
// power of two: neighbours get cards that are far apart.
func mirror(v, count int) int {
	if count == 1 {
		return 0
	}
	n := bits.Len(uint(count - 1))
	return int(bits.Reverse(uint(v)%uint(count)) >> (bits.UintSize - n))
}

// GPUDirect says whether n can move memory of g without a copy through the host's:
// the card has to speak RDMA and may not be farther than PXB, or P2C. Farther, data
// passes a CPU, where it is slow or stalls. why is the reason against it, and "" if
// ok. Whether the kernel can register memory of GPUs is another question, see
// PeerMemory.
func (s *System) GPUDirect(g *GPU, n *NIC) (ok bool, why string) {
	p := s.Path(g, n)
	switch {
	case n.Virtual:
		return false, n.Name + " is made of software"
	case n.unknown():
		return false, "what the card is the file does not tell"
	case len(n.RDMA) == 0:
		return false, n.Name + " has no RDMA device"
	case !n.active():
		return false, n.Name + " has no active port"
	case !p.Within(P2C):
		return false, fmt.Sprintf("the path is %s, farther than PXB", p)
	}
	return true, ""
}

// NVLinks is the number of NVLinks that join two GPUs side by side, directly or by
// switches.
func (s *System) NVLinks(a, b *GPU) int {
	count := func(x, to *GPU) (n int) {
		for _, l := range x.NVLinks {
			if s.GPU(l.Target) == to || l.isSwitch() {
				n += l.Count
			}
		}
		return n
	}
	return min(count(a, b), count(b, a))
}
