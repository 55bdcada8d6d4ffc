package comm

import (
	"testing"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/topology"
)

// OverCards gives groups RDMA devices of a test, or those of the system where api is nil,
// and another /sys to look for the module of peer memory in.
func (o *Options) OverCards(api *verbs.API, sys string) { o.verbs, o.sys = api, sys }

// DirectBy makes groups that are joined from now on have slots of so many bytes, and cut
// arrays for messages of as few, until the test ends.
func DirectBy(t testing.TB, slot, message int) {
	before, least := directSlot, leastMessage
	directSlot, leastMessage = slot, message
	t.Cleanup(func() { directSlot, leastMessage = before, least })
}

// WithLevel is NCCL_NET_GDR_LEVEL, and Apart how far the rank's card is from its GPU.
func (o *Options) WithLevel(level string) error {
	v, err := readVariables(func(name string) (string, bool) {
		if name != "NCCL_NET_GDR_LEVEL" {
			return "", false
		}
		return level, true
	})
	o.nccl = &v
	return err
}

func (o *Options) Apart(p topology.Path) {
	o.near = &rdma.Near{Ports: []string{"fake0:1"}, Path: p, Why: "the test says so"}
}
