package doctor

import (
	"context"
	"fmt"
	"strings"
)

// p2p looks for GPUs that say they reach each other's memory, and then hang or bring
// wrong data: it copies some, and verifies it.
type p2p struct{}

func (p2p) name() string { return "p2p" }

func (c p2p) look(ctx context.Context, m *Machine) ([]Finding, error) {
	s, err := m.system()
	if err != nil {
		return nil, err
	}
	if len(s.GPUs) < 2 {
		return nil, fmt.Errorf("%s here, and it takes two", plural(len(s.GPUs), "NVIDIA GPU"))
	}
	copies, err := m.PeerCopies(ctx)
	if last := len(copies) - 1; err != nil && last >= 0 && !copies[last].Done {
		copies[last].Done, copies[last].Error, err = true, err.Error(), nil // it has died of it
	}
	var out []Finding
	var refused []PeerCopy
	for _, p := range copies {
		switch {
		case p.Refused != "":
			refused = append(refused, p)
		case !p.Done || p.Error != "" || p.Wrong > 0:
			out = append(out, c.bad(p))
		}
	}
	if len(refused) > 0 {
		out = append(out, c.closed(refused, len(copies)))
	}
	return out, err
}

// bad reports a pair that must not be used.
func (p2p) bad(p PeerCopy) Finding {
	f := Finding{
		Severity: Error, Where: Where{Device: fmt.Sprintf("GPU%d to GPU%d", p.From, p.To)},
		Fix: "NCCL_P2P_DISABLE=1 until it is mended; turn ACS off, boot with iommu=pt, and update the driver",
	}
	switch {
	case !p.Done:
		f.What = "copies between the GPUs do not come to an end, though the driver says that they reach each other"
		f.Evidence = fmt.Sprintf("%s were sent, and had not arrived after %s", bytesText(peerBytes), peersBound)
	case p.Wrong > 0:
		f.What = "copies between the GPUs bring wrong data, though the driver says that they reach each other"
		f.Evidence = fmt.Sprintf("%d of %d words were wrong, of both directions", p.Wrong, 2*peerBytes/4)
	default:
		f.What = "copies between the GPUs fail, though the driver says that they reach each other"
		f.Evidence = p.Error
	}
	return f
}

// closed notes the pairs that the driver allows no direct access.
func (p2p) closed(list []PeerCopy, all int) Finding {
	var pairs []string
	for _, p := range list[:min(len(list), 8)] {
		pairs = append(pairs, fmt.Sprintf("GPU%d to GPU%d", p.From, p.To))
	}
	return Finding{
		Severity: Note, Where: Where{Device: strings.Join(pairs, ", ")},
		What:     fmt.Sprintf("%d of %d pairs of GPUs do not reach each other's memory: what they exchange goes through the host's", len(list), all),
		Evidence: list[0].Refused,
	}
}
