package doctor

import (
	"context"
	"fmt"
	"strings"
)

// iommu looks for GPUs and RDMA cards whose addresses an IOMMU translates.
type iommu struct{}

func (iommu) name() string { return "iommu" }

func (iommu) look(_ context.Context, m *Machine) ([]Finding, error) {
	peers, err := m.directPeers()
	if err != nil {
		return nil, err
	}
	var translated []string
	for _, d := range peers {
		group := []string{"sys/bus/pci/devices", d.BusID, "iommu_group/type"}
		if !m.exists(group...) {
			continue // no IOMMU, or one that is off
		}
		kind, err := m.text(group...)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(kind, "DMA") { // DMA or DMA-FQ; identity passes through
			translated = append(translated, d.BusID+" "+kind)
		}
	}
	if len(translated) == 0 {
		return nil, nil
	}
	first, _, _ := strings.Cut(translated[0], " ")
	return []Finding{{
		Severity: Warning, Where: Where{Device: first},
		What:     fmt.Sprintf("an IOMMU translates the addresses of %s: transfers between them go through it, are slow, and on some machines hang", plural(len(translated), "GPU or RDMA card")),
		Evidence: "iommu_group/type: " + strings.Join(translated, ", "),
		Fix:      "boot with iommu=pt (and intel_iommu=on or amd_iommu=on where virtual machines need it), or turn the IOMMU off in the firmware's settings",
	}}, nil
}
