package cuda

import "testing"

func TestPeakBF16(t *testing.T) {
	for name, want := range map[string]float64{
		"NVIDIA H200": 989.4e12, "NVIDIA H200 NVL": 835.5e12, "NVIDIA H100 80GB HBM3": 989.4e12, "NVIDIA H100 PCIe": 756e12,
		"NVIDIA A100-SXM4-40GB": 312e12, "NVIDIA L4": 121e12, "NVIDIA L40S": 362e12, "NVIDIA GeForce RTX 4090": 165.2e12,
		"NVIDIA H20": 148e12, "NVIDIA A10G": 70e12, "NVIDIA A10": 125e12, "NVIDIA GH200 480GB": 989.4e12,
	} {
		if got, ok := PeakBF16(name); !ok || got != want {
			t.Errorf("%s: %v, %t; want %v", name, got, ok, want)
		}
	}
	for _, name := range []string{"NVIDIA GeForce GTX 1080", "NVIDIA RTX A4000", "NVIDIA A1000", ""} {
		if got, ok := PeakBF16(name); ok {
			t.Errorf("%q, which is unknown, computes %v", name, got)
		}
	}
}
