package config

import "github.com/gorun-dev/gorun/comm/transport/rdma"

// RDMA is what the file says about the use of RDMA.
func (c Comm) RDMA() rdma.Settings {
	return rdma.Settings{HCA: c.IBHCA, GID: c.GIDIndex + 1, TrafficClass: c.TrafficClass, Timeout: c.IBTimeout, Retries: c.IBRetries + 1, PKey: c.PKey, QPs: c.QueuePairs}
}
