package topology_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/testenv"
	"github.com/gorun-dev/gorun/runtime/topology"
)

// fakeNVML puts the library of testdata, without the functions that it lacks, in the
// place of the real one.
func fakeNVML(t *testing.T, lacks ...string) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		testenv.Skip(t, "gcc", err.Error())
	}
	script, lib := filepath.Join(t.TempDir(), "symbols"), filepath.Join(t.TempDir(), "libfakenvml.so")
	local := ""
	if len(lacks) > 0 {
		local = "local: " + strings.Join(lacks, "; ") + ";"
	}
	if err := os.WriteFile(script, []byte("{ global: nvml*; "+local+" };"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,--version-script="+script, "-o", lib, "testdata/fakenvml.c").CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	t.Setenv("GORUN_NVML_LIB", lib)
}

func TestNVML(t *testing.T) {
	fakeNVML(t)
	l, err := topology.OpenNVML()
	if err != nil {
		t.Fatal(err)
	}
	devices, err := l.Devices()
	want := []topology.Device{
		{BusID: "00000000:1A:00.0", Name: "NVIDIA H200", Compute: 90, NVLinks: []string{"00000000:3B:00.0", "00000000:3B:00.0", ""}, C2C: 2, C2CRate: 44712},
		{BusID: "00000000:3B:00.0", Name: "NVIDIA A100-SXM4-40GB", Compute: 80, NVLinks: []string{"00000000:1A:00.0", "00000000:1A:00.0"}},
	}
	if err != nil || !reflect.DeepEqual(devices, want) {
		t.Errorf("got %+v, %v\nwant %+v", devices, err, want)
	}
	for _, c := range []struct {
		a, b int
		want topology.P2P
	}{
		{0, 1, topology.P2P{Read: "ok", Write: "ok"}},
		{1, 0, topology.P2P{Read: "ok", Write: "a setting of the driver disables it"}},
	} {
		if got, err := l.P2P(c.a, c.b); err != nil || got != c.want {
			t.Errorf("%d to %d: %+v, %v", c.a, c.b, got, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Devices(); err == nil || err.Error() != "nvmlDeviceGetCount_v2: error number 1 (1)" {
		t.Errorf("after Close: %v", err)
	}
}

// A call that fails is named, and one about links alone leaves the rest of what is known.
func TestNVMLCallsThatFail(t *testing.T) {
	fakeNVML(t)
	for call, want := range map[string]struct {
		err  string
		gpus int
	}{
		"nvmlInit_v2":                         {"nvmlInit_v2: error number 9 (9)", -1},
		"nvmlDeviceGetName":                   {"GPU0: nvmlDeviceGetName: error number 9 (9)", 0},
		"nvmlDeviceGetPciInfo_v3":             {"GPU0: nvmlDeviceGetPciInfo_v3: error number 9 (9)", 0},
		"nvmlDeviceGetNvLinkState":            {"GPU1: NVLink 0: nvmlDeviceGetNvLinkState: error number 9 (9)\nNVLink 1: nvmlDeviceGetNvLinkState: error number 9 (9)", 2},
		"nvmlDeviceGetNvLinkRemotePciInfo_v2": {"GPU0: NVLink 0: nvmlDeviceGetNvLinkRemotePciInfo_v2: error number 9 (9)", 2},
		"nvmlDeviceGetFieldValues":            {"", 2}, // the older call knows the state too
	} {
		t.Setenv("GORUN_FAKE_NVML", call+"=9")
		l, err := topology.OpenNVML()
		var devices []topology.Device
		if err == nil {
			devices, err = l.Devices()
			t.Setenv("GORUN_FAKE_NVML", "")
			err = errors.Join(err, l.Close())
		}
		if want.gpus >= 0 && len(devices) != want.gpus || (err == nil) != (want.err == "") || err != nil && !strings.HasPrefix(err.Error(), want.err) {
			t.Errorf("%s fails: %d GPUs, %v\nwant %d, %s", call, len(devices), err, want.gpus, want.err)
		}
	}
}

// An old driver's library lacks what came later; without what is needed, it says so.
func TestOldNVML(t *testing.T) {
	fakeNVML(t, "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetFieldValues")
	l, err := topology.OpenNVML()
	if err != nil {
		t.Fatal(err)
	}
	devices, err := l.Devices()
	if len(devices) != 2 || err == nil || !strings.Contains(err.Error(), "the driver is too old to tell where it leads") {
		t.Errorf("got %+v, %v", devices, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	fakeNVML(t, "nvmlDeviceGetP2PStatus")
	if _, err := topology.OpenNVML(); err == nil || !strings.Contains(err.Error(), "nvmlDeviceGetP2PStatus") {
		t.Errorf("without nvmlDeviceGetP2PStatus: %v", err)
	}
}

// What the library says of GPUs arrives in the machine.
func TestLocalWithNVML(t *testing.T) {
	fakeNVML(t)
	s, err := topology.Local()
	if err != nil {
		t.Fatal(err)
	}
	a, b := s.GPUs[0], s.GPUs[1]
	if s.Path(a, b) != topology.NVL || s.NVLinks(a, b) != 2 || a.Name != "NVIDIA H200" || a.PCI.BusID != "0000:1a:00.0" {
		t.Errorf("GPU0 is %+v at %+v; %s to GPU1 by %d links", a, a.PCI, s.Path(a, b), s.NVLinks(a, b))
	}
	if p, known := s.P2P(b, a); !known || p.OK() {
		t.Errorf("GPU1 to GPU0: %+v, %v", p, known)
	}
	t.Setenv("GORUN_FAKE_NVML", "nvmlInit_v2=9")
	if s, err = topology.Local(); err != nil || !slices.Contains(s.Problems, "nvmlInit_v2: error number 9 (9)") {
		t.Errorf("NVML does not start: %v, problems %q", err, s.Problems)
	}
	t.Setenv("GORUN_NVML_LIB", "")
	t.Setenv("GORUN_FAKE_NVML", "")
	if _, err := topology.OpenNVML(); err != nil && !errors.Is(err, dl.ErrNotFound) {
		t.Errorf("without the library: %v", err)
	} else if err != nil && !strings.Contains(err.Error(), "NVIDIA_DRIVER_CAPABILITIES") {
		t.Errorf("the error does not tell what to install: %v", err)
	}
}
