package rdma

import (
	"strings"
	"testing"
)

// A wrong variable is refused where a setting goes before it too, and all are named.
func TestWrongVariablesBesideSettings(t *testing.T) {
	env := map[string]string{"NCCL_IB_HCA": "^", "NCCL_IB_TC": "0x100", "NCCL_IB_TIMEOUT": " 0x12 "}
	own := Settings{HCA: "fake0", TrafficClass: 8}
	s, err := own.FromEnvironment(func(name string) string { return env[name] })
	if err == nil || err.Error() != `NCCL_IB_HCA=^: "^" names no device: want such as mlx5_0, =mlx5_0:1 or ^mlx5_1`+"\n"+"NCCL_IB_TC=0x100: want a number from 0 to 255" {
		t.Errorf("%v", err)
	}
	if want := (Settings{HCA: "fake0", TrafficClass: 8, Timeout: 18}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// A list of devices that is given names some.
func TestListsWithoutDevices(t *testing.T) {
	for _, list := range []string{"^", "=", "^=", ",", " "} {
		if err := (Settings{HCA: list}).Check(); err == nil || !strings.HasPrefix(err.Error(), "comm.ib_hca: ") {
			t.Errorf("%q: %v", list, err)
		}
	}
	if err := (Settings{}).Check(); err != nil {
		t.Error(err)
	}
}
