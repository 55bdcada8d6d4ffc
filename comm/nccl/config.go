package nccl

import "math"

// config is ncclConfig_t of release 2.30. It has grown from 2.14 on; its first
// field says how much of it there is, and a library takes as much as it knows, for
// the rest its defaults.
type config struct {
	size                          uint64
	magic, version                uint32
	blocking, cgaSize             int32
	minCTAs, maxCTAs              int32 // from 2.17
	netName                       uintptr
	splitShare, trafficClass      int32
	commName                      uintptr // from 2.27; NCCL keeps the address
	collnet, ctaPolicy            int32
	shrinkShare, nvlsCTAs         int32
	channelsPerNetPeer, nvlinkCen int32
	graphUsage, rmaContexts       int32
	maxP2PPeers, graphOrdering    int32
}

const (
	configSize  = 96
	configMagic = 0xcafebeef
	undefined   = math.MinInt32
)

// newConfig is a config whose fields are all NCCL's to choose, but that it must not
// block.
func newConfig(v Version) *config {
	return &config{
		size: configSize, magic: configMagic, version: uint32(v.code()), blocking: 0,
		cgaSize: undefined, minCTAs: undefined, maxCTAs: undefined, splitShare: undefined, trafficClass: undefined,
		collnet: undefined, ctaPolicy: undefined, shrinkShare: undefined, nvlsCTAs: undefined,
		channelsPerNetPeer: undefined, nvlinkCen: undefined, graphUsage: undefined, rmaContexts: undefined,
		maxP2PPeers: undefined, graphOrdering: undefined,
	}
}
