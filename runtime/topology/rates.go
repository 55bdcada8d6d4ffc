package topology

import (
	"strconv"
	"strings"
)

// The figures below are those that NCCL plans with: what is left of a link when
// headers and protocols have taken their part. GB/s, one direction.

// nvlinkRate is that of one NVLink.
func nvlinkRate(compute int) float64 {
	switch {
	case compute >= 100:
		return 40.1
	case compute >= 90:
		return 20.6
	case compute == 86:
		return 12
	case compute >= 60 && compute < 70:
		return 18
	}
	return 20
}

// rate is that of the link above p. Unknown ones count as third generation, and as
// 16 lanes wide.
func (p *PCI) rate() float64 {
	lane := map[string]float64{"2.5": 0.1875, "5": 0.375, "8": 0.75, "16": 1.5, "32": 3, "64": 6}
	speed, _, _ := strings.Cut(p.LinkSpeed, " ")
	perLane, ok := lane[strings.TrimSuffix(speed, ".0")]
	if !ok {
		perLane = lane["8"]
	}
	width := p.LinkWidth
	if width == 0 {
		width = 16
	}
	return perLane * float64(width)
}

// interRate is that of the links between CPUs.
func (c *CPU) interRate() float64 {
	switch {
	case c.Arch == "arm64":
		return 6
	case c.Arch == "ppc64":
		return 32
	case c.Vendor == "AuthenticAMD":
		return 16
	case c.Vendor != "GenuineIntel":
		return localRate
	case c.Family == 6 && c.Model >= 0xcf: // Emerald Rapids
		return 40
	case c.Family == 6 && c.Model >= 0x8f: // Sapphire Rapids
		return 22
	case c.Family == 6 && c.Model >= 0x55: // Skylake
		return 10
	}
	return 6
}

// rate is that of the network; unknown ones count as 10 Gbit/s.
func (n *NIC) rate() float64 {
	mbps := n.Mbps()
	if mbps <= 0 {
		mbps = 10000
	}
	return float64(mbps) / 8000
}

// gigatransfers is the number of a speed such as "16.0 GT/s PCIe"; 0 if it is none.
func gigatransfers(speed string) float64 {
	number, _, _ := strings.Cut(speed, " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return v
}
