package cuda

import "strings"

// peaks are the dense bf16 rates of data sheets, in TFLOP/s with f32 sums, by words of a
// GPU's name; the first that fits counts. Of cards that come in several forms, the
// form is part of the name.
var peaks = []struct {
	name   string
	tflops float64
}{
	{"GB300", 2500}, {"GB200", 2500}, {"B300", 2250}, {"B200", 2250},
	{"H200 NVL", 835.5}, {"H200", 989.4}, {"GH200", 989.4},
	{"H100 PCIe", 756}, {"H100 NVL", 835.5}, {"H100", 989.4}, {"H800", 989.4}, {"H20", 148},
	{"A100", 312}, {"A800", 312}, {"A40", 149.7}, {"A30", 165}, {"A10G", 70}, {"A10", 125},
	{"L40S", 362}, {"L40", 181}, {"L4", 121},
	{"RTX 5090", 209.5}, {"RTX 4090", 165.2}, {"RTX 4080", 97.5}, {"RTX 3090", 71},
	{"RTX 6000 Ada", 364.2}, {"RTX A6000", 154.8},
}

// PeakBF16 is the GPU's rate of dense bf16 matrix products by its data sheet, in
// operations a second; ok is false for one that is not known here.
func PeakBF16(name string) (flops float64, ok bool) {
	name = words(name)
	for _, p := range peaks {
		if strings.Contains(name, words(p.name)) {
			return p.tflops * 1e12, true
		}
	}
	return 0, false
}

// words are name's, with a space around each: an A40 is no A4000.
func words(name string) string {
	return " " + strings.Join(strings.FieldsFunc(name, func(r rune) bool { return r == ' ' || r == '-' }), " ") + " "
}
