package doctor

// hasRDMA says whether there is an RDMA device.
func (m *Machine) hasRDMA() (bool, error) {
	devices, err := m.list("sys/class/infiniband")
	return len(devices) > 0, err
}
