package cudnn

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// These tests need cuDNN itself and no GPU.

// cudnnPath is the path of cuDNN. The test is skipped without it; the feature's name is
// "cudnn".
func cudnnPath(t testing.TB) string {
	t.Helper()
	file, err := dl.Open(wanted)
	if err != nil {
		testenv.Skip(t, "cudnn", err.Error())
	}
	return file.Path
}

// Every number of this package is the one that the library's header gives its name.
func TestNumbersStandInTheHeader(t *testing.T) {
	header := ""
	for _, path := range []string{
		filepath.Join(filepath.Dir(cudnnPath(t)), "..", "include", "cudnn_graph.h"), // in a wheel
		"/usr/include/cudnn_graph.h",
		fmt.Sprintf("/usr/include/%s-linux-gnu/cudnn_graph_v9.h", map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]),
	} {
		if text, err := os.ReadFile(path); err == nil {
			header = string(text)
			break
		}
	}
	if header == "" {
		testenv.Skip(t, "cudnn", "cudnn_graph.h is not installed")
	}
	want := enumerators(header)
	checked := 0
	for _, file := range []string{"numbers.go", "graph.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct{ pattern, prefix string }{
			{`(?:kind|attribute|element)\{(?P<number>\d+),.*"(?P<name>CUDNN_\w+)"\}`, ""},
			{`= (?P<number>\d+) // (?P<name>CUDNN_\w+)`, ""},
			{`dataType\{(?P<number>\d+), "(?P<name>\w+)"\}`, "CUDNN_DATA_"},
			{`name: "(?P<name>\w+)", class: classPointwise, number: (?P<number>\d+)`, "CUDNN_POINTWISE_"},
			{`name: "(?P<name>\w+)", class: classReduction, number: (?P<number>\d+)`, "CUDNN_REDUCE_TENSOR_"},
		} {
			re := regexp.MustCompile(p.pattern)
			for _, m := range re.FindAllStringSubmatch(string(source), -1) {
				name, number := p.prefix+m[re.SubexpIndex("name")], m[re.SubexpIndex("number")]
				checked++
				if n, ok := want[name]; !ok || fmt.Sprint(n) != number {
					t.Errorf("%s is %s here, %d (%v) in the header", name, number, n, ok)
				}
			}
		}
	}
	t.Logf("%d numbers compared", checked)
	if checked < 80 {
		t.Errorf("only %d numbers were found in the source", checked)
	}
}

// enumerators reads the enumerations of a C header.
func enumerators(text string) map[string]int {
	text = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`).ReplaceAllString(text, "")
	all := map[string]int{}
	for _, body := range regexp.MustCompile(`(?s)enum\s*\w*\s*\{(.*?)\}`).FindAllStringSubmatch(text, -1) {
		next := 0
		for item := range strings.SplitSeq(body[1], ",") {
			name, value, given := strings.Cut(item, "=")
			words := strings.Fields(name) // the name, and perhaps that it is deprecated
			if len(words) == 0 {
				continue
			}
			if given {
				value = strings.TrimSpace(value)
				if n, err := strconv.ParseInt(value, 0, 64); err == nil {
					next = int(n)
				} else {
					next = all[value]
				}
			}
			all[words[0]] = next
			next++
		}
	}
	return all
}

// The library takes both graphs for attention, finds an engine and compiles it, in
// the memory that Workspace foresees, and restores the plan from its text. It does
// so without a GPU, for one that is described to it. All happens in a process of
// its own, with a driver that has no device.
func TestPlansWithoutAGPU(t *testing.T) {
	const inChild = "GORUN_TEST_CUDNN_PLANS"
	if os.Getenv(inChild) != "" {
		planWithoutGPU(t)
		return
	}
	cudnnPath(t)
	driver := filepath.Dir(compiled(t, "fakedriver.c", "libcuda.so.1"))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPlansWithoutAGPU$", "-test.v")
	child.Env = append(os.Environ(), inChild+"=1", "LD_LIBRARY_PATH="+driver+":"+os.Getenv("LD_LIBRARY_PATH"))
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("--- SKIP")) {
		testenv.Skip(t, "cudnn", string(out))
	}
	t.Logf("%s", out)
}

// hopper describes an H200, as cudnnBackendGetAttribute would. Versions know
// different members, and pass over those that they do not know.
const hopper = `{"driverVer":13000,"deviceVer":900,"cudaDeviceId":0,"deviceName":"NVIDIA H200",` +
	`"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,` +
	`"smCountOrigin":0,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,` +
	`"oversizedSharedMemoryPerBlock":0,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,` +
	`"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,` +
	`"smClockRateKHz":1980000,"memClockRateKHz":3201000,"memoryBusWidth":6144,"l2CacheSize":62914560,"totalGlobalMem":150000000000}`

// What makes plans for a described GPU.
var (
	kindProperties      = kind{38, "CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR"}
	attrPropertiesJSON  = attribute{2702, chars, "CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION"}
	attrHeuristicDevice = attribute{204, descriptors, "CUDNN_ATTR_ENGINEHEUR_DEVICEPROP"}
	attrPlanDevice      = attribute{407, descriptors, "CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP"}
)

func planWithoutGPU(t *testing.T) {
	lib, err := load()
	if err == nil {
		err = lib.prepare()
	}
	if err != nil {
		testenv.Skip(t, "cudnn", err.Error())
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := &session{lib: lib, aim: func(desc) error { return nil }}
	b := &builder{s: s}
	properties, err := b.create(kindProperties)
	if err != nil {
		t.Fatal(err)
	}
	s.in = []byte(hopper)
	if err := s.write(properties, attrPropertiesJSON, len(hopper)); err != nil {
		t.Fatal(err)
	}
	if err := s.finalize(properties); err != nil {
		t.Fatal(err)
	}
	s.aim = func(d desc) error {
		switch d.kind {
		case kindHeuristic:
			return s.set(d, attrHeuristicDevice, int64(properties.addr))
		case kindPlan:
			return s.set(d, attrPlanDevice, int64(properties.addr))
		}
		return nil
	}
	slice := func(sh shape, sequences, keys int64) shape {
		sh.B, sh.K, sh.H = sequences, keys, sh.H/sh.K*keys
		return sh
	}
	for _, sh := range []shape{
		whole(1, 2, 14, 2, 64), whole(2, 64, 14, 2, 64), whole(2, 77, 12, 12, 64), whole(2, 128, 12, 2, 128),
		whole(3, 513, 12, 12, 64), whole(2, 1000, 12, 2, 128), whole(8, 2048, 14, 2, 64), whole(2, 4096, 28, 4, 128),
		slice(whole(8, 2048, 28, 4, 128), 4, 4), slice(whole(1, 8192, 28, 4, 128), 1, 1), slice(whole(1, 4096, 12, 12, 64), 1, 3),
	} {
		for _, c := range []struct {
			g         *graph
			most      int64
			recognise string
		}{{forward(sh), forwardWorkspace(), "SDPA_FWD"}, {backward(sh), sh.backwardWorkspace(), "SDPA_BWD"}} {
			start := time.Now()
			p, err := s.build(c.g, c.most)
			if err != nil {
				t.Errorf("%+v: %v", sh, err)
				continue
			}
			t.Logf("cuDNN %s: %s of %+v: %s, workspace %d of %d foreseen, %v, refused %q",
				versionText(lib.version), c.g.name, sh, p.from, p.workspace, c.most, time.Since(start).Round(time.Millisecond), p.refused)
			if p.workspace < c.most-slack {
				t.Errorf("%+v: %s takes %d bytes, far less than the %d foreseen", sh, c.g.name, p.workspace, c.most)
			}
			text, err := s.text(p)
			if err != nil {
				t.Errorf("%+v: %s: %v", sh, c.g.name, err)
				continue
			}
			if !bytes.Contains(text, []byte(c.recognise)) {
				t.Errorf("%+v: %s is not taken for %s: %.300s", sh, c.g.name, c.recognise, text)
			}
			again, err := s.restore(c.g, text, c.most)
			if err != nil {
				t.Errorf("%+v: %s: restore: %v", sh, c.g.name, err)
				continue
			}
			if again.workspace != p.workspace {
				t.Errorf("%+v: %s: restored it takes %d bytes, made it took %d", sh, c.g.name, again.workspace, p.workspace)
			}
			for _, bad := range [][]byte{text[:len(text)/2], []byte("{}"), []byte("no JSON")} {
				if _, err := s.restore(c.g, bad, c.most); err == nil {
					t.Errorf("%+v: %s: a plan is restored from %.20q", sh, c.g.name, bad)
				}
			}
			for _, p := range []*plan{p, again} {
				if err := s.destroy(p.desc); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if err := b.free(); err != nil {
		t.Error(err)
	}
}
