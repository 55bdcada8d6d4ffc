package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Options are a benchmark as the command line describes it. They travel to the
// workers as JSON, and must be the same on every node.
type Options struct {
	Collective string // a name of Names
	Begin, End int64  // sizes of the full array in bytes; see Sizes
	Factor     int    // from a size to the next
	Step       int64  // from a size to the next in bytes; 0: by Factor
	DType      string // or all
	Op         string // of the collectives that reduce; or all
	Root       int    // of broadcast
	EveryRoot  bool   // measure each rank as root
	Iterations int    // timed ones of each size
	Warmup     int    // untimed ones before them
	Aggregate  int    // calls of an iteration, which counts as long as one of them
	Cycles     int    // how often everything is measured; 0: until the job is ended
	Checks     int    // verified ones after them; 0 verifies nothing
	Blocking   bool   // time each call from the host, see Run
	HostTime   bool   // time what the host does to make a call
	Average    string // which rank's time counts: max, mean, min or rank0
	Tail       bool   // the 99th percentile of the iterations counts, not the median
	Overlap    int    // N of a product of N x N matrices beside the collective; 0: none
	Device     string // cpu or gpu: whose memory is moved
	Engine     string // auto, ring, nccl, or all: side by side
	Bind       string // auto, on or off: keep each worker on its share of the cores, see Bind
	Buffers    string // arena (memory from Group.Alloc) or private
	Unaligned  int    // elements by which buffers lie behind an aligned address
	Transport  string // auto, shm, tcp or rdma, as comm.Options has it
	Algo       string
	Tune       string // auto or off, see comm.Options
	Interface  string
	Ports      string        // for tcp, as 40000-40100; "" takes any
	Chunk      int64         // bytes of the largest message; 0 is comm's choice
	Channels   int           // tcp connections to a peer; 0 is comm's choice
	Timeout    time.Duration // of each call, and of joining
	JSON       bool
	File       string // where rank 0 writes what JSON prints; "" nowhere

	// How this worker really runs, which need not be the same on every node.
	Bound   bool `json:"-"` // to its share of the cores
	Crowded bool `json:"-"` // on one Go processor, for there are fewer cores than ranks
}

// Kinds of memory that the buffers lie in.
const (
	Arena   = "arena"
	Private = "private"
)

// mostSizes bounds the rows of a report.
const mostSizes = 1 << 16

// Validate says what is wrong with the options before any worker is started.
func (o *Options) Validate() error {
	if _, err := o.parse(); err != nil {
		return err
	}
	switch {
	case o.Begin < 1:
		return fmt.Errorf("-b %d: want at least 1 byte", o.Begin)
	case o.End < o.Begin:
		return fmt.Errorf("-e %s is less than -b %s", FormatSize(o.End), FormatSize(o.Begin))
	case o.Step < 0:
		return fmt.Errorf("-i %d: want a number of bytes", o.Step)
	case o.Step == 0 && o.Factor < 2:
		return fmt.Errorf("-f %d: want 2 or more", o.Factor)
	case o.Step > 0 && (o.End-o.Begin)/o.Step >= mostSizes:
		return fmt.Errorf("-i %s: that is %d sizes from %s to %s, want at most %d", FormatSize(o.Step), (o.End-o.Begin)/o.Step+1, FormatSize(o.Begin), FormatSize(o.End), mostSizes)
	case o.Iterations < 1:
		return fmt.Errorf("-n %d: want at least 1 timed iteration", o.Iterations)
	case o.Warmup < 0:
		return fmt.Errorf("-w %d: want 0 or more", o.Warmup)
	case o.Aggregate < 1:
		return fmt.Errorf("-m %d: want at least 1 call an iteration", o.Aggregate)
	case o.Cycles < 0:
		return fmt.Errorf("-N %d: want 1 or more, or 0 to go on until the job is ended", o.Cycles)
	case o.Blocking && o.Aggregate > 1:
		return fmt.Errorf("-m %d: an iteration of several calls is not awaited call by call: leave out -z 1", o.Aggregate)
	case o.Blocking && o.HostTime:
		return fmt.Errorf("-C 1: the host's time to make a call, or (-z 1) until its end: leave out one")
	case !slices.Contains(averages, o.Average):
		return fmt.Errorf("--average %q: want %s", o.Average, strings.Join(averages, ", "))
	case o.Overlap < 0 || o.Overlap > 1<<16:
		return fmt.Errorf("--overlap %d: want the side of a square matrix, at most 65536, or 0 for no product", o.Overlap)
	case o.Overlap > 0 && (o.Blocking || o.HostTime || o.Aggregate > 1):
		return fmt.Errorf("--overlap %d: what runs beside a product is timed on its stream: leave out -z 1, -C and -m", o.Overlap)
	case o.Unaligned < 0 || o.Unaligned > 1024:
		return fmt.Errorf("-u %d: want 0 to 1024 elements", o.Unaligned)
	case !slices.Contains([]string{"cpu", "gpu"}, o.Device):
		return fmt.Errorf("--device %q: want cpu or gpu", o.Device)
	case !slices.Contains([]string{"auto", "ring", "nccl", AllEngines}, o.Engine):
		return fmt.Errorf("--engine %q: want auto, ring, nccl, or all for gorun's own and NCCL side by side", o.Engine)
	case o.Device == "cpu" && (o.Engine == "nccl" || o.Engine == AllEngines):
		return fmt.Errorf("--engine %s: host memory has one engine, ring; add --device gpu", o.Engine)
	case o.Checks < 0:
		return fmt.Errorf("-c %d: want 0 (no verification) or more", o.Checks)
	case o.Buffers != Arena && o.Buffers != Private:
		return fmt.Errorf("--buffers %q: want %s or %s", o.Buffers, Arena, Private)
	case !slices.Contains([]string{"auto", "shm", "tcp", "rdma"}, o.Transport):
		return fmt.Errorf("--transport %q: want auto, shm, tcp or rdma", o.Transport)
	case !slices.Contains([]string{"auto", "off"}, o.Tune):
		return fmt.Errorf("--tune %q: want auto or off", o.Tune)
	case !slices.Contains([]string{"auto", "on", "off"}, o.Bind):
		return fmt.Errorf("--bind %q: want auto, on or off", o.Bind)
	case o.Chunk != 0 && (o.Chunk < 64 || o.Chunk > math.MaxInt32):
		return fmt.Errorf("--chunk %s: want from 64 bytes to 2G", FormatSize(o.Chunk))
	case o.Channels < 0 || o.Channels > 64:
		return fmt.Errorf("--channels %d: want 1 to 64, or 0 for the default", o.Channels)
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout %s: want more than 0", o.Timeout)
	}
	if _, _, err := comm.ParsePorts(o.Ports); err != nil {
		return fmt.Errorf("--ports: %w", err)
	}
	return o.idle()
}

// idle refuses a flag that the transport asked for has no use for. auto may take any.
func (o *Options) idle() error {
	if o.Transport == "auto" || o.Transport == "tcp" {
		return nil
	}
	switch nccl := o.Device == "gpu" && o.Engine != "ring"; {
	case o.Interface != "" && !nccl: // NCCL goes by it too
		return fmt.Errorf("--interface %s: it is for tcp: --transport %s goes by none", o.Interface, o.Transport)
	case o.Ports != "":
		return fmt.Errorf("--ports %s: tcp listens there: --transport %s does not listen", o.Ports, o.Transport)
	case o.Channels != 0:
		return fmt.Errorf("--channels %d: these are tcp's connections to a peer: --transport %s has none", o.Channels, o.Transport)
	case o.Chunk != 0 && o.Transport == "shm":
		return fmt.Errorf("--chunk %s: it bounds messages of tcp and rdma: shared memory has pieces of its own", FormatSize(o.Chunk))
	}
	return nil
}

// AllEngines is the Engine that measures GPUs by gorun's own engine and by NCCL.
const AllEngines = "all"

// averages are the ways to make one time of all ranks'.
var averages = []string{"max", "mean", "min", "rank0"}

// parsed is the options that have types of their own.
type parsed struct {
	kind  *collective
	types []dtype.DType
	ops   []comm.Op
	algo  comm.Algorithm
}

// spec is what is measured at every size: one line of the report for each.
type spec struct {
	dt   dtype.DType
	op   comm.Op
	root int
}

func (o *Options) parse() (p parsed, err error) {
	if p.kind, err = find(o.Collective); err != nil {
		return p, err
	}
	if p.types = dtype.All; o.DType != "all" {
		dt, err := dtype.Parse(o.DType)
		if err != nil {
			return p, fmt.Errorf("-d: %w", err)
		}
		p.types = []dtype.DType{dt}
	}
	if p.ops = operations; o.Op != "all" {
		op, err := parseOp(o.Op)
		if err != nil {
			return p, fmt.Errorf("-o: %w", err)
		}
		p.ops = []comm.Op{op}
	}
	if p.algo, err = comm.ParseAlgorithm(o.Algo); err != nil {
		return p, fmt.Errorf("--algo: %w", err)
	}
	if !p.kind.reduces && o.Op != comm.Sum.String() {
		return p, fmt.Errorf("-o %s: %s moves data and reduces nothing", o.Op, o.Collective)
	}
	if !p.kind.rooted && (o.Root != 0 || o.EveryRoot) {
		return p, fmt.Errorf("--root %d: %s has no root", o.Root, o.Collective)
	}
	return p, nil
}

// specs are all combinations that the options ask for.
func (o *Options) specs(p parsed, ranks int) (all []spec) {
	roots := []int{o.Root}
	if o.EveryRoot {
		roots = roots[:0]
		for r := range ranks {
			roots = append(roots, r)
		}
	}
	for _, dt := range p.types {
		for _, op := range p.ops {
			for _, root := range roots {
				all = append(all, spec{dt, op, root})
			}
		}
	}
	return all
}

var operations = []comm.Op{comm.Sum, comm.Avg, comm.Min, comm.Max, comm.Prod}

func parseOp(s string) (comm.Op, error) {
	for _, op := range operations {
		if op.String() == s {
			return op, nil
		}
	}
	return 0, fmt.Errorf("unknown operation %q: want all or one of %v", s, operations)
}

// size is one row of the report.
type size struct {
	bytes int // of the full array: what Begin and End count, rounded down
	count int // elements, as the count column has them: of a part, where the call has parts
}

// sizes are Begin, Begin*Factor, ..., or Begin, Begin+Step, ..., up to End, for a group
// of the given size. The full array is what each rank holds before AllReduce,
// ReduceScatter, AllToAll and Broadcast, and after AllGather.
func (o *Options) sizes(kind *collective, dt dtype.DType, ranks int) ([]size, error) {
	unit := int64(dt.Size())
	if kind.parts() {
		unit *= int64(ranks)
	}
	if o.Begin < unit {
		return nil, fmt.Errorf("-b %d: %s over %d ranks needs at least %d bytes, an element of %s for each", o.Begin, o.Collective, ranks, unit, dt)
	}
	var all []size
	for b := o.Begin; ; {
		count := b / unit
		all = append(all, size{bytes: int(count * unit), count: int(count)})
		switch {
		case o.Step > 0 && b <= o.End-o.Step:
			b += o.Step
		case o.Step == 0 && b <= o.End/int64(o.Factor):
			b *= int64(o.Factor)
		default:
			return all, nil
		}
	}
}

var units = []struct {
	suffix string
	shift  uint
}{{"G", 30}, {"M", 20}, {"K", 10}, {"", 0}}

// ParseSize reads a number of bytes: 4096, 64K, 100M, 1G; K, M and G are 2^10,
// 2^20 and 2^30.
func ParseSize(s string) (int64, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(strings.ToUpper(s), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil {
			break
		}
		if n > math.MaxInt64>>u.shift {
			return 0, fmt.Errorf("size %q is too large", s)
		}
		return int64(n) << u.shift, nil
	}
	return 0, fmt.Errorf("size %q: want bytes such as 4096, 64K, 100M or 1G", s)
}

// FormatSize writes n as ParseSize reads it, in the largest unit that divides it.
func FormatSize(n int64) string {
	for _, u := range units {
		if n != 0 && n&(1<<u.shift-1) == 0 {
			return fmt.Sprintf("%d%s", n>>u.shift, u.suffix)
		}
	}
	return strconv.FormatInt(n, 10)
}
