package comm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/runtime/topology"
)

// How far a GPU and a network card may be apart for the card to read and write the GPU's
// memory: NCCL_NET_GDR_LEVEL, in NCCL's words, or in the numbers that it had before.
var (
	gdrLevels  = []topology.Path{topology.LOC, topology.PIX, topology.PXB, topology.P2C, topology.PHB, topology.SYS}
	gdrNumbers = []topology.Path{topology.LOC, topology.PIX, topology.PXB, topology.PHB, topology.SYS, topology.SYS}
)

// gdrDefault is NCCL's: farther, data passes a CPU, where it is slow or stalls.
const gdrDefault = topology.P2C

func parseGDR(text string) (topology.Path, error) {
	text = strings.ToUpper(text)
	if p := topology.Path(text); slices.Contains(gdrLevels, p) {
		return p, nil
	}
	if len(text) == 1 && text[0] >= '0' && int(text[0]-'0') < len(gdrNumbers) {
		return gdrNumbers[text[0]-'0'], nil
	}
	return "", fmt.Errorf("want one of LOC (never), PIX, PXB, P2C, PHB and SYS (always), or a number from 0 to %d", len(gdrNumbers)-1)
}

// tooFar says why this rank's card is too far from its GPU, "" where it is not. A path that
// is not known, as that of a card made of software, is no obstacle by default, and where a
// level is asked for the farthest one.
func (v *variables) tooFar(g *Group) string {
	near := g.members[g.o.Rank].RDMA
	path, limit := near.Path, cmp.Or(v.gdrLevel, gdrDefault)
	of := "the GPU and its network card"
	if len(near.Ports) == 1 {
		of = "the GPU and " + near.Ports[0]
	}
	switch {
	case path == "" && v.gdr == "":
		return ""
	case limit == topology.LOC:
		return fmt.Sprintf("NCCL_NET_GDR_LEVEL=%s forbids it", v.gdr)
	case path == "":
		if limit == topology.SYS {
			return ""
		}
		return fmt.Sprintf("the path between %s is not known, which counts as SYS, and NCCL_NET_GDR_LEVEL=%s allows %s at most: SYS allows it", of, v.gdr, limit)
	case path.Within(limit):
		return ""
	case v.gdr == "":
		return fmt.Sprintf("the path between %s is %s, farther than PXB: NCCL_NET_GDR_LEVEL=%s allows it", of, path, path)
	}
	return fmt.Sprintf("the path between %s is %s, and NCCL_NET_GDR_LEVEL=%s allows %s at most", of, path, v.gdr, limit)
}

// tellGDR says what the level does not apply to.
func (g *Group) tellGDR(tell func(format string, args ...any)) {
	v := g.o.nccl
	if v.gdr == "" {
		return
	}
	if g.gpu != nil {
		switch g.gpu.engine.(type) {
		case *gpuDirect, *staged, *overNCCL: // go by it
			return
		}
	}
	tell("NCCL_NET_GDR_LEVEL=%s: without effect, for it is of memory of GPUs that goes between hosts", v.gdr)
}
