package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gorun-dev/gorun/launcher/bench"
)

// benchFlags are those of `gorun bench`: nccl-tests' where they mean something for
// gorun, and its own.
type benchFlags struct {
	o                        bench.Options
	begin, end, step, chunk  string
	root, timing, average    string
	tail, hostTime, register int
	gpus, threads, seconds   int
	refused                  *pflag.FlagSet
}

// ncclRefused are flags of nccl-tests that mean nothing here. 0, which leaves them off
// there, changes nothing.
var ncclRefused = []struct{ short, name, why string }{
	{"G", "cudagraph", "each call is checked and recorded on the host when it is made, which a graph would leave out"},
	{"p", "parallel-init", "ranks are processes, which always join at the same time"},
	{"y", "stream-null", "gorun makes its calls on streams of their own"},
	{"S", "report-timestamps", "rows have no time of day"},
	{"x", "cta-policy", "NCCL_CTA_POLICY tells it to NCCL"},
	{"D", "device-implementation", "the kernels of NCCL's device API are not gorun's"},
	{"V", "device-cta-count", "the kernels of NCCL's device API are not gorun's"},
	{"M", "memory-report", "memory is not reported"},
	{"F", "csv-file", "there is no CSV: -J writes an object a line"},
}

// ncclNames are nccl-tests' long names, beside those that are the same.
var ncclNames = map[string]string{
	"minbytes": "begin", "maxbytes": "end", "stepbytes": "step", "stepfactor": "factor", "warmup-iters": "warmup",
	"agg-iters": "aggregate", "run-cycles": "cycles", "datatype": "type", "report-cputime": "host-time",
	"local-register": "register", "output-file": "file",
}

// productOn is the side of the matrices that -z overlap multiplies.
var productOn = map[string]int{"cpu": 512, "gpu": 4096}

func (f *benchFlags) set() *pflag.FlagSet {
	s, o := newFlagSet("bench"), &f.o
	s.StringVarP(&f.begin, "begin", "b", "1K", "smallest `size` in bytes, of the full array; K, M and G are 2^10, 2^20 and 2^30")
	s.StringVarP(&f.end, "end", "e", "100M", "no `size` is larger")
	s.StringVarP(&f.step, "step", "i", "0", "from a size to the next, `size` in bytes; 0 goes by --factor")
	s.IntVarP(&o.Factor, "factor", "f", 4, "from a size to the next, `N`")
	s.StringVarP(&o.DType, "type", "d", "f32", "`element type`: f32, f64, f16, bf16, i32, i64 or u8, or all")
	s.StringVarP(&o.Op, "op", "o", "sum", "`operation`: sum, avg, min, max or prod, or all")
	s.StringVarP(&f.root, "root", "r", "0", "`rank` that broadcasts, or all, one after the other")
	s.IntVarP(&o.Iterations, "iters", "n", 20, "timed iterations of a size, `N`")
	s.IntVarP(&o.Warmup, "warmup", "w", 5, "iterations before them, `N`")
	s.IntVarP(&o.Aggregate, "aggregate", "m", 1, "calls of an iteration, `N`, without a barrier between them")
	s.IntVarP(&o.Cycles, "cycles", "N", 1, "measure everything `N` times; 0: until the job is ended")
	s.IntVarP(&o.Checks, "check", "c", 1, "verified calls after them, `N`; 0 verifies nothing")
	s.StringVarP(&f.timing, "timing", "z", "0", "`how`: 0 enqueues many calls and times them on their stream, 1 awaits each and times it on the host, overlap is --overlap 512, on GPUs 4096")
	s.BoolVar(&o.Blocking, "blocking", false, "-z 1")
	s.IntVar(&o.Overlap, "overlap", 0, "run products of `N` x N matrices beside the collective, and tell how much each slows the other")
	s.IntVarP(&f.hostTime, "host-time", "C", 0, "`1` times what the host does to make a call")
	s.StringVarP(&f.average, "average", "a", "max", "which rank's time counts: `max`, mean, min or rank0; or nccl-tests' 3, 1, 2 and 0")
	s.IntVarP(&f.tail, "tail", "I", 0, "`1`: the 99th percentile of the iterations counts, not the median")
	s.StringVar(&o.Device, "device", "cpu", "whose memory is moved: `cpu` or gpu, a GPU for each rank")
	s.StringVar(&o.Engine, "engine", "auto", "`engine`: auto, ring or nccl; on GPUs all measures ring and nccl side by side")
	s.IntVarP(&f.gpus, "ngpus", "g", 1, "--device gpu and --nproc `N`; with -t its product")
	s.IntVarP(&f.threads, "nthreads", "t", 1, "see -g; a rank is a process, `N` of them where nccl-tests has threads")
	s.StringVar(&o.Bind, "bind", "auto", "keep each worker on its share of the cores, as mpirun --bind-to core does: --bind=`on|off|auto`; auto is on for host memory where there are as many cores as workers")
	s.Lookup("bind").NoOptDefVal = "on"
	s.StringVar(&o.Buffers, "buffers", bench.Arena, "`memory`: arena (the group's, as ddp uses it) or private")
	s.IntVarP(&f.register, "register", "R", 1, "`1` is --buffers arena, which the engine has registered, 0 is private")
	s.IntVarP(&o.Unaligned, "unalign", "u", 0, "buffers begin `N` elements behind an aligned address")
	s.StringVar(&o.Transport, "transport", "auto", "`how` bytes travel: auto, shm, tcp or rdma, as comm.transport; NCCL_IB_HCA and the like choose the port of rdma")
	s.StringVar(&o.Algo, "algo", "auto", "`algorithm`, where the collective has it: auto chooses by size and ranks")
	s.StringVar(&o.Tune, "tune", "auto", "`auto` measures the links while joining, where there is a choice of algorithms, and keeps the figures; off chooses by typical ones")
	s.StringVar(&o.Interface, "interface", "", "network `interface` or address for tcp (default: what routes to the peer)")
	s.StringVar(&o.Ports, "ports", "", "`range` of ports for tcp, as 40000-40100: one a rank for each group (default: any)")
	s.StringVar(&f.chunk, "chunk", "0", "largest message, `size` in bytes; 0 leaves it to gorun")
	s.IntVar(&o.Channels, "channels", 0, "tcp connections to a peer, `N`; 0 leaves it to gorun")
	s.DurationVar(&o.Timeout, "timeout", time.Minute, "bound of each call, and of joining")
	s.IntVarP(&f.seconds, "timeout-seconds", "T", 0, "--timeout in `seconds`")
	s.BoolVar(&o.JSON, "json", false, "an object a line instead of the table")
	s.StringVarP(&o.File, "file", "J", "", "write the objects to a `file` too; rank 0 does")
	return s
}

// hidden are spellings of nccl-tests that the help does not list.
func (f *benchFlags) hidden(shown *pflag.FlagSet) *pflag.FlagSet {
	f.refused = newFlagSet("nccl-tests")
	for _, r := range ncclRefused {
		f.refused.StringP(r.name, r.short, "", "")
	}
	all := newFlagSet("nccl-tests")
	all.AddFlagSet(f.refused)
	for name, real := range ncclNames {
		all.AddFlag(&pflag.Flag{Name: name, Value: shown.Lookup(real).Value, DefValue: shown.Lookup(real).DefValue})
	}
	return all
}

// options is what the flags say.
func (f *benchFlags) options(cmd *cobra.Command, collective string) (o bench.Options, err error) {
	for _, r := range ncclRefused {
		if flag := f.refused.Lookup(r.name); flag.Changed && flag.Value.String() != "0" {
			return o, fmt.Errorf("bench: -%s %s (%s of nccl-tests): %s", r.short, flag.Value, strings.ReplaceAll(r.name, "-", "_"), r.why)
		}
	}
	o = f.o
	o.Collective = collective
	for _, size := range []struct {
		flag, text string
		to         *int64
	}{{"-b", f.begin, &o.Begin}, {"-e", f.end, &o.End}, {"-i", f.step, &o.Step}, {"--chunk", f.chunk, &o.Chunk}} {
		if *size.to, err = bench.ParseSize(size.text); err != nil {
			return o, fmt.Errorf("%s: %w", size.flag, err)
		}
	}
	changed := func(name string) bool { return given(cmd.Flags(), name) }
	if o.Step > 0 && changed("factor") {
		return o, fmt.Errorf("-i %s and -f %d: sizes grow by one of them", f.step, o.Factor)
	}
	if o.EveryRoot = f.root == "all"; !o.EveryRoot {
		if o.Root, err = strconv.Atoi(f.root); err != nil {
			return o, fmt.Errorf("--root %q: want a rank, or all", f.root)
		}
	}
	if n, err := strconv.Atoi(f.average); err == nil && n >= 0 && n < 4 {
		o.Average = []string{"rank0", "mean", "min", "max"}[n]
	} else {
		o.Average = f.average
	}
	for _, flag := range []struct {
		name string
		at   int
		to   *bool
	}{{"-C", f.hostTime, &o.HostTime}, {"-I", f.tail, &o.Tail}} {
		if flag.at != 0 && flag.at != 1 {
			return o, fmt.Errorf("%s %d: want 0 or 1", flag.name, flag.at)
		}
		*flag.to = flag.at == 1
	}
	if changed("register") {
		kinds := []string{bench.Private, bench.Arena}
		if f.register < 0 || f.register > 1 {
			return o, fmt.Errorf("-R %d: want 0 for private buffers or 1 for those of the engine; symmetric windows of NCCL's are not used", f.register)
		}
		if kind := kinds[f.register]; changed("buffers") && o.Buffers != kind {
			return o, fmt.Errorf("-R %d and --buffers %s: give one of them", f.register, o.Buffers)
		}
		o.Buffers = kinds[f.register]
	}
	if changed("timeout-seconds") {
		if changed("timeout") {
			return o, fmt.Errorf("-T %d and --timeout %s: give one of them", f.seconds, o.Timeout)
		}
		o.Timeout = time.Duration(f.seconds) * time.Second
	}
	if err := f.places(cmd, &o); err != nil {
		return o, err
	}
	switch f.timing {
	case "0":
	case "1":
		o.Blocking = true
	case "overlap":
		if !changed("overlap") {
			o.Overlap = productOn[o.Device]
		} else if o.Overlap == 0 {
			return o, fmt.Errorf("--overlap 0: it is for no product, and -z overlap asks for one: leave out either")
		}
	default:
		return o, fmt.Errorf("-z %q: want 0, 1 (each call awaited) or overlap (a matrix product beside)", f.timing)
	}
	return o, o.Validate()
}

// given says that a flag was, by its own name or by that of nccl-tests.
func given(flags *pflag.FlagSet, name string) bool {
	for theirs, ours := range ncclNames {
		if ours == name && flags.Changed(theirs) {
			return true
		}
	}
	return flags.Changed(name)
}

// places makes processes with a GPU each of nccl-tests' -g and -t.
func (f *benchFlags) places(cmd *cobra.Command, o *bench.Options) error {
	flags := cmd.Flags()
	if !flags.Changed("ngpus") && !flags.Changed("nthreads") {
		return nil
	}
	if f.gpus < 1 || f.threads < 1 {
		return fmt.Errorf("-g %d -t %d: want 1 or more", f.gpus, f.threads)
	}
	n := strconv.Itoa(f.gpus * f.threads)
	if given := flags.Lookup("nproc"); given.Changed && given.Value.String() != n {
		return fmt.Errorf("-g and -t ask for %s workers on this node, --nproc for %s: give one of them", n, given.Value)
	}
	if flags.Changed("device") && o.Device != "gpu" {
		return fmt.Errorf("-g and -t are for GPUs, and --device is %s: say --nproc", o.Device)
	}
	o.Device = "gpu"
	return flags.Set("nproc", n)
}

// isBindMode knows what was meant for --bind, which takes its value behind a = alone.
func isBindMode(arg string) bool { return slices.Contains([]string{"on", "off", "auto"}, arg) }
