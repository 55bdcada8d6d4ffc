package cuda

import (
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
)

func TestNVLinked(t *testing.T) {
	for _, pcie := range []bool{false, true} {
		f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2, PCIe: pcie})
		d := open(t, f)
		p, err := Open(1)
		if err != nil {
			t.Fatal(err)
		}
		for uuid, want := range map[string]bool{p.UUID(): !pcie, "GPU-of-another-host": false} {
			if linked, err := d.NVLinked(uuid); err != nil || linked != want {
				t.Errorf("over PCIe %v, to %s: %v, %v; want %v", pcie, uuid, linked, err, want)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
