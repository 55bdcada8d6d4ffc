package topology

import (
	"fmt"
	"slices"
	"strings"
)

// explainNVLink names the groups of GPUs that NVLink joins, each with each, and what
// there is between groups.
func (s *System) explainNVLink() []string {
	groups, alone := s.nvlinkGroups()
	var say, across []string
	for _, group := range groups {
		if len(group) > 1 {
			say = append(say, s.explainGroup(group))
		}
	}
	around := 0
	for i, a := range groups {
		for _, b := range groups[i+1:] {
			for _, x := range a {
				for _, y := range b {
					switch s.Path(x, y) {
					case NVL:
						across = append(across, fmt.Sprintf("GPU%d and GPU%d (%s)", x.Index, y.Index, plural(s.NVLinks(x, y), "link")))
					case NVB:
						around++
					}
				}
			}
		}
	}
	if len(across) > 0 {
		say = append(say, "NVLink joins "+strings.Join(across, ", ")+" too.")
	}
	if around > 0 {
		say = append(say, fmt.Sprintf("NVLink joins %s by way of one other GPU (NVB).", plural(around, "more pair")))
	}
	switch {
	case len(groups) > 0 && len(alone) > 0:
		say = append(say, fmt.Sprintf("%s: no NVLink to a GPU.", gpuList(alone)))
	case len(groups) > 0:
	case s.fromFile():
		say = append(say, "The file names no NVLink between GPUs; NCCL finds those that there are by itself.")
	case s.GPUs[0].bare():
		say = append(say, "NVLinks are not known, and nor is whether GPUs may reach each other's memory: the driver was not asked.")
	default:
		say = append(say, "No two GPUs are joined by NVLink: they talk over PCIe.")
	}
	return say
}

// nvlinkGroups parts the GPUs into groups in which each has NVLink to each, and those
// without NVLink to any.
func (s *System) nvlinkGroups() (groups [][]*GPU, alone []*GPU) {
	left := slices.Clone(s.GPUs)
	for len(left) > 0 {
		group := left[:1:1]
		for _, g := range left[1:] {
			if !slices.ContainsFunc(group, func(x *GPU) bool { return s.Path(x, g) != NVL }) {
				group = append(group, g)
			}
		}
		left = slices.DeleteFunc(slices.Clone(left), func(g *GPU) bool { return slices.Contains(group, g) })
		if slices.ContainsFunc(s.GPUs, func(g *GPU) bool { return s.Path(group[0], g) == NVL }) {
			groups = append(groups, group)
		} else {
			alone = append(alone, group[0])
		}
	}
	return groups, alone
}

func (s *System) explainGroup(group []*GPU) string {
	most, least := 0, 1<<30
	for _, a := range group {
		for _, b := range group {
			if a != b {
				most, least = max(most, s.NVLinks(a, b)), min(least, s.NVLinks(a, b))
			}
		}
	}
	links := fmt.Sprint(least)
	if most != least {
		links += " to " + fmt.Sprint(most)
	}
	return fmt.Sprintf("%s reach each other over NVLink, %s links each pair (about %.0f GB/s in each direction).",
		gpuList(group), links, s.Rate(group[0], group[1]))
}

// explainPCIe is about the pairs that NVLink does not join.
func (s *System) explainPCIe() []string {
	if s.GPUs[0].bare() {
		return nil
	}
	var across, through, refused int
	var why string
	pairs := 0
	for i, a := range s.GPUs {
		for _, b := range s.GPUs[i+1:] {
			p := s.Path(a, b)
			if p.Within(NVB) {
				continue
			}
			pairs++
			if p == SYS {
				across++
			}
			if !p.Within(PXB) {
				through++
			}
			if state, known := s.P2P(a, b); known && !state.OK() {
				refused++
				if why = state.Read; why == "ok" {
					why = state.Write
				}
			}
		}
	}
	var say []string
	if across > 0 {
		say = append(say, fmt.Sprintf("%s through the link between NUMA nodes (SYS): %s.",
			plural(across, "pair of GPUs talks", "pairs of GPUs talk"), s.nodesOfGPUs()))
	}
	if refused > 0 {
		say = append(say, fmt.Sprintf("In %s the driver does not let GPUs reach each other's memory (%s): data between them is copied through the host's.",
			ofAll(refused, pairs), why))
	} else if through > 0 {
		say = append(say, fmt.Sprintf("In %s the path is farther than PXB, where NCCL by itself copies through the host's memory (NCCL_P2P_LEVEL changes that).", ofAll(through, pairs)))
	}
	return say
}
