package rdma

import (
	"testing"

	"github.com/gorun-dev/gorun/comm/transport/rdma/rdmatest"
)

func newFabric(t *testing.T) *rdmatest.Fabric { return rdmatest.New(t) }
