package bench

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "4096": 4096, "1K": 1024, "64k": 65536, "25M": 25 << 20, "1g": 1 << 30, "0": 0,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "K", "-1K", "1.5M", "1KB", "1T", "9999999999G", "1 K"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", text, n)
		}
	}
	for n, want := range map[int64]string{0: "0", 1: "1", 1000: "1000", 1024: "1K", 1536: "1536", 25 << 20: "25M", 3 << 30: "3G"} {
		if got := FormatSize(n); got != want {
			t.Errorf("FormatSize(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		name       string
		begin, end int64
		factor     int
		ranks      int
		want       string // bytes:count
	}{
		{"allreduce", 1024, 100 << 20, 4, 2, "1024:256 4096:1024 16384:4096 65536:16384 262144:65536 1048576:262144 4194304:1048576 16777216:4194304 67108864:16777216"},
		{"allreduce", 10, 10, 2, 3, "8:2"},
		{"allgather", 1024, 2048, 2, 3, "1020:85 2040:170"},
		{"alltoall", 64, 100, 2, 4, "64:4"},
		{"broadcast", 7, 1 << 62, 1 << 40, 2, "4:1 7696581394432:1924145348608"},
	} {
		o := small(c.name)
		o.Begin, o.End, o.Factor = c.begin, c.end, c.factor
		p, err := o.parse()
		if err != nil {
			t.Fatal(err)
		}
		sizes, err := o.sizes(p.kind, p.types[0], c.ranks)
		var got []string
		for _, s := range sizes {
			got = append(got, fmt.Sprintf("%d:%d", s.bytes, s.count))
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
	o := small("allreduce")
	o.Begin, o.End, o.Step = 10, 26, 8
	p, err := o.parse()
	if err != nil {
		t.Fatal(err)
	}
	if sizes, err := o.sizes(p.kind, p.types[0], 2); err != nil || fmt.Sprint(sizes) != "[{8 2} {16 4} {24 6}]" {
		t.Errorf("from 10 to 26 bytes by 8: %v, %v", sizes, err)
	}
	o = small("reducescatter")
	o.Begin = 15
	if p, err = o.parse(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.sizes(p.kind, p.types[0], 4); err == nil || !strings.Contains(err.Error(), "at least 16 bytes") {
		t.Errorf("15 bytes over 4 ranks: %v, want an error that asks for 16", err)
	}
}

func TestValidateNamesTheFlag(t *testing.T) {
	for want, change := range map[string]func(*Options){
		`unknown collective "reduce"`: func(o *Options) { o.Collective = "reduce" },
		"-b 0":                        func(o *Options) { o.Begin = 0 },
		"-e 512 is less than -b 1K":   func(o *Options) { o.End = 512 },
		"-f 1":                        func(o *Options) { o.Factor = 1 },
		`-d: unknown element type`:    func(o *Options) { o.DType = "f8" },
		`-o: unknown operation "xor"`: func(o *Options) { o.Op = "xor" },
		"-n 0":                        func(o *Options) { o.Iterations = 0 },
		"-i 1: that is 65537 sizes":   func(o *Options) { o.Step, o.End = 1, o.Begin+1<<16 },
		"-i -1":                       func(o *Options) { o.Step = -1 },
		"-m 0":                        func(o *Options) { o.Aggregate = 0 },
		"-N -1":                       func(o *Options) { o.Cycles = -1 },
		"-m 2: an iteration":          func(o *Options) { o.Aggregate, o.Blocking = 2, true },
		"-C 1: ":                      func(o *Options) { o.HostTime, o.Blocking = true, true },
		`--average "most"`:            func(o *Options) { o.Average = "most" },
		"--overlap -1":                func(o *Options) { o.Overlap = -1 },
		"--overlap 8: ":               func(o *Options) { o.Overlap, o.Blocking = 8, true },
		"-u -1":                       func(o *Options) { o.Unaligned = -1 },
		`--device "tpu"`:              func(o *Options) { o.Device = "tpu" },
		`--engine "mpi"`:              func(o *Options) { o.Engine = "mpi" },
		"--engine all: host memory":   func(o *Options) { o.Engine = "all" },
		`--tune "later"`:              func(o *Options) { o.Tune = "later" },
		"-w -1":                       func(o *Options) { o.Warmup = -1 },
		"-c -1":                       func(o *Options) { o.Checks = -1 },
		`--buffers "heap"`:            func(o *Options) { o.Buffers = "heap" },
		`--transport "pigeon"`:        func(o *Options) { o.Transport = "pigeon" },
		"--algo: unknown":             func(o *Options) { o.Algo = "magic" },
		`--bind "core"`:               func(o *Options) { o.Bind = "core" },
		"--chunk 8":                   func(o *Options) { o.Chunk = 8 },
		"--channels 65":               func(o *Options) { o.Channels = 65 },
		"--ports: ":                   func(o *Options) { o.Ports = "40100-40000" },
		"--timeout 0s":                func(o *Options) { o.Timeout = 0 },
		"--root 1":                    func(o *Options) { o.Root = 1 },
		"--interface lo: it is for tcp: --transport shm goes":     func(o *Options) { o.Transport, o.Interface = "shm", "lo" },
		"--interface lo: it is for tcp: --transport rdma":         func(o *Options) { o.Transport, o.Interface, o.Device, o.Engine = "rdma", "lo", "gpu", "ring" },
		"--ports 40000-40001: tcp listens there: --transport shm": func(o *Options) { o.Transport, o.Ports = "shm", "40000-40001" },
		"--channels 2: these are tcp's connections":               func(o *Options) { o.Transport, o.Channels = "rdma", 2 },
		"--chunk 64K: it bounds messages of tcp and rdma: shared": func(o *Options) { o.Transport, o.Chunk = "shm", 64<<10 },
		"allgather moves data":                                    func(o *Options) { o.Collective, o.Op = "allgather", "max" },
	} {
		o := small("allreduce")
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Transport = "shm" },
		func(o *Options) { o.Step, o.End = 1, o.Begin+1<<16-1 },
		func(o *Options) { o.Transport, o.Chunk = "rdma", 64<<10 },
		func(o *Options) { o.Transport, o.Interface, o.Device = "shm", "lo", "gpu" }, // for NCCL
		func(o *Options) {
			o.Transport, o.Interface, o.Ports, o.Channels, o.Chunk = "tcp", "lo", "40000", 2, 64<<10
		},
		func(o *Options) { o.Interface, o.Ports, o.Channels, o.Chunk = "lo", "40000", 2, 64<<10 },
	} {
		o := small("allreduce")
		change(&o)
		if err := o.Validate(); err != nil {
			t.Error(err)
		}
	}
}
