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
	DType      string
	Op         string // of the collectives that reduce
	Root       int    // of broadcast
	Iterations int    // timed ones of each size
	Warmup     int    // untimed ones before them
	Checks     int    // verified ones after them; 0 verifies nothing
	Blocking   bool   // time each call from the host, see Run
	Bind       string // auto, on or off: keep each worker on a core of its own, see Bind
	Buffers    string // arena (memory from Group.Alloc) or private
	Transport  string
	Algo       string
	Interface  string
	Ports      string        // for tcp, as 40000-40100; "" takes any
	Chunk      int64         // bytes of the largest message; 0 is comm's choice
	Channels   int           // tcp connections to a peer; 0 is comm's choice
	Timeout    time.Duration // of each call, and of joining
	JSON       bool

	// How this worker really runs, which need not be the same on every node.
	Bound   bool `json:"-"` // to a core
	Crowded bool `json:"-"` // on one Go processor, for there are fewer cores than ranks
}

// Kinds of memory that the buffers lie in.
const (
	Arena   = "arena"
	Private = "private"
)

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
	case o.Factor < 2:
		return fmt.Errorf("-f %d: want 2 or more", o.Factor)
	case o.Iterations < 1:
		return fmt.Errorf("-n %d: want at least 1 timed iteration", o.Iterations)
	case o.Warmup < 0:
		return fmt.Errorf("-w %d: want 0 or more", o.Warmup)
	case o.Checks < 0:
		return fmt.Errorf("-c %d: want 0 (no verification) or more", o.Checks)
	case o.Buffers != Arena && o.Buffers != Private:
		return fmt.Errorf("--buffers %q: want %s or %s", o.Buffers, Arena, Private)
	case !slices.Contains([]string{"auto", "shm", "tcp"}, o.Transport):
		return fmt.Errorf("--transport %q: want auto, shm or tcp", o.Transport)
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
	return nil
}

// parsed is the options that have types of their own.
type parsed struct {
	kind *collective
	dt   dtype.DType
	op   comm.Op
	algo comm.Algorithm
}

func (o *Options) parse() (p parsed, err error) {
	if p.kind, err = find(o.Collective); err != nil {
		return p, err
	}
	if p.dt, err = dtype.Parse(o.DType); err != nil {
		return p, fmt.Errorf("-d: %w", err)
	}
	if p.op, err = parseOp(o.Op); err != nil {
		return p, fmt.Errorf("-o: %w", err)
	}
	if p.algo, err = comm.ParseAlgorithm(o.Algo); err != nil {
		return p, fmt.Errorf("--algo: %w", err)
	}
	if !p.kind.reduces && p.op != comm.Sum {
		return p, fmt.Errorf("-o %s: %s moves data and reduces nothing", o.Op, o.Collective)
	}
	if !p.kind.rooted && o.Root != 0 {
		return p, fmt.Errorf("--root %d: %s has no root", o.Root, o.Collective)
	}
	return p, nil
}

func parseOp(s string) (comm.Op, error) {
	all := []comm.Op{comm.Sum, comm.Avg, comm.Min, comm.Max, comm.Prod}
	for _, op := range all {
		if op.String() == s {
			return op, nil
		}
	}
	return 0, fmt.Errorf("unknown operation %q: want one of %v", s, all)
}

// size is one row of the report.
type size struct {
	bytes int // of the full array: what Begin and End count, rounded down
	count int // elements, as the count column has them: of a part, where the call has parts
}

// sizes are Begin, Begin*Factor, ... up to End, for a group of the given size. The
// full array is what each rank holds before AllReduce, ReduceScatter, AllToAll and
// Broadcast, and after AllGather.
func (o *Options) sizes(p parsed, ranks int) ([]size, error) {
	unit := int64(p.dt.Size())
	if p.kind.parts() {
		unit *= int64(ranks)
	}
	if o.Begin < unit {
		return nil, fmt.Errorf("-b %d: %s over %d ranks needs at least %d bytes, an element of %s for each", o.Begin, o.Collective, ranks, unit, p.dt)
	}
	var all []size
	for b := o.Begin; ; b *= int64(o.Factor) {
		count := b / unit
		all = append(all, size{bytes: int(count * unit), count: int(count)})
		if b > o.End/int64(o.Factor) {
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
