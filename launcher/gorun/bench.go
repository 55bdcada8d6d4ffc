package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/bench"
	"github.com/gorun-dev/gorun/launcher/cluster"
	"github.com/gorun-dev/gorun/launcher/console"
)

const benchUsage = `gorun bench measures a collective between workers, and verifies its results.
It prints the columns of nccl-tests: the time of a call, algbw = size / time, busbw = what
a link carries, and the number of wrong elements, out of place and in place.

Examples:
  gorun bench allreduce --nproc 2
  gorun bench allreduce --nproc 2 -b 25M -e 25M --buffers private
  gorun bench allgather --nproc 4 --transport tcp -d bf16
  gorun bench alltoall --nproc 2 --json

  # two machines; the same arguments on both, but for --node-rank and --nproc
  gorun bench allreduce --nnodes 2 --node-rank 0 --rdzv 10.0.0.1:29400 --nproc 8
  gorun bench allreduce --nnodes 2 --node-rank 1 --rdzv 10.0.0.1:29400 --nproc 8
`

// newBench is `gorun bench`. The launcher's flags mean what they mean elsewhere.
func newBench(p *parent) *cobra.Command {
	l := &launch{parent: p}
	o := bench.Options{DType: "f32", Op: "sum"}
	var begin, end, chunk string
	measure := newFlagSet("bench")
	measure.StringVarP(&begin, "begin", "b", "1K", "smallest `size` in bytes, of the full array; K, M and G are 2^10, 2^20 and 2^30")
	measure.StringVarP(&end, "end", "e", "100M", "no `size` is larger")
	measure.IntVarP(&o.Factor, "factor", "f", 4, "from a size to the next, `N`")
	measure.StringVarP(&o.DType, "type", "d", "f32", "`element type`: f32, f64, f16, bf16, i32, i64 or u8")
	measure.StringVarP(&o.Op, "op", "o", "sum", "`operation`: sum, avg, min, max or prod")
	measure.IntVar(&o.Root, "root", 0, "`rank` that broadcasts")
	measure.IntVarP(&o.Iterations, "iters", "n", 20, "timed calls of a size, `N`; the median counts")
	measure.IntVarP(&o.Warmup, "warmup", "w", 5, "calls before them, `N`")
	measure.IntVarP(&o.Checks, "check", "c", 1, "verified calls after them, `N`; 0 verifies nothing")
	measure.BoolVarP(&o.Blocking, "blocking", "z", false, "await each call, and time it on the host; else many are enqueued, and timed on their stream")
	measure.StringVar(&o.Bind, "bind", "auto", "keep each worker on a core of its own, as mpirun does: --bind=`on|off|auto`; auto is on where there are as many cores as workers")
	measure.Lookup("bind").NoOptDefVal = "on"
	measure.StringVar(&o.Buffers, "buffers", bench.Arena, "`memory`: arena (the group's, as ddp uses it) or private")
	measure.StringVar(&o.Transport, "transport", "auto", "`how` bytes travel: auto, shm or tcp")
	measure.StringVar(&o.Algo, "algo", "auto", "`algorithm`, where the collective has it: auto chooses by size and ranks")
	measure.StringVar(&o.Interface, "interface", "", "network `interface` or address for tcp (default: what routes to the peer)")
	measure.StringVar(&o.Ports, "ports", "", "`range` of ports for tcp, as 40000-40100: one a rank for each group (default: any)")
	measure.StringVar(&chunk, "chunk", "0", "largest message, `size` in bytes; 0 leaves it to gorun")
	measure.IntVar(&o.Channels, "channels", 0, "tcp connections to a peer, `N`; 0 leaves it to gorun")
	measure.DurationVar(&o.Timeout, "timeout", time.Minute, "bound of each call, and of joining")
	measure.BoolVar(&o.JSON, "json", false, "an object a line instead of the table")
	var groups []flagGroup
	for _, g := range l.flagGroups() {
		if g.title != "Training from a YAML file" {
			groups = append(groups, g)
		}
	}
	groups = append([]flagGroup{{"What to measure", measure}}, groups...)

	cmd := &cobra.Command{
		Use:   "bench " + strings.Join(bench.Names(), "|"),
		Short: "measure a collective between workers",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if i := slices.IndexFunc(args, isBindMode); i >= 0 && cmd.Flags().Changed("bind") {
				return fmt.Errorf("bench: --bind %[1]s: write --bind=%[1]s", args[i])
			}
			if len(args) != 1 {
				return fmt.Errorf("bench: %d arguments, want the collective to measure: one of %s", len(args), strings.Join(bench.Names(), ", "))
			}
			o.Collective = args[0]
			if o.Begin, err = bench.ParseSize(begin); err != nil {
				return fmt.Errorf("-b: %w", err)
			}
			if o.End, err = bench.ParseSize(end); err != nil {
				return fmt.Errorf("-e: %w", err)
			}
			if o.Chunk, err = bench.ParseSize(chunk); err != nil {
				return fmt.Errorf("--chunk: %w", err)
			}
			if err := o.Validate(); err != nil {
				return err
			}
			l.remember(cmd, args)
			return l.runBench(cmd, o)
		},
	}
	return described(cmd, benchUsage, groups...)
}

// isBindMode knows what was meant for --bind, which takes its value behind a = alone.
func isBindMode(arg string) bool { return slices.Contains([]string{"on", "off", "auto"}, arg) }

// runBench starts this binary as the workers of a benchmark, as it would a program.
func (l *launch) runBench(cmd *cobra.Command, o bench.Options) error {
	spec, nproc, endpoint, err := l.prepare(cmd, nil)
	if err != nil {
		return err
	}
	arg, err := json.Marshal(o)
	if err != nil {
		return err
	}
	spec.Path = "/proc/self/exe" // this binary, even where its file is replaced meanwhile
	spec.Argv = []string{"gorun", benchWorker, string(arg)}
	if l.dryRun {
		return l.describe(cmd.OutOrStdout(), spec, nil, nproc, endpoint)
	}
	return l.startBench(spec, nproc, endpoint)
}

// startBench runs the workers of this node. The report comes from rank 0's stdout
// and is for other programs too, so it goes out without the rank before each line.
func (l *launch) startBench(spec *agent.Spec, nproc int, endpoint string) (err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("a pipe for the report: %w", err)
	}
	copied := make(chan error, 1)
	go copyReport(os.Stdout, r, copied)
	con := console.New(w, os.Stderr)
	defer func() {
		con.Close()
		w.Close()
		if lost := <-copied; lost != nil {
			err = lost // why the job has ended, where it has
		}
		err = quiet(err)
	}()
	node, err := l.join(spec, nil, nproc, endpoint, strings.ToLower(rand.Text()[:8]), con)
	if err != nil {
		return err
	}
	defer node.Close()
	temporary, err := l.prepareLogs(spec, nil, node.Layout().Job)
	if err != nil {
		return err
	}
	err = agent.Run(spec, node, con)
	if temporary && (err == nil || endedByUser(err)) {
		err = errors.Join(err, os.RemoveAll(spec.LogDir))
	}
	return err
}

// endedByUser is true where the user has ended the job, as by closing its output.
func endedByUser(err error) bool {
	e, ok := errors.AsType[*agent.ExitError](err)
	return ok && e.Failure.Kind == cluster.UserSignal
}

// quiet leaves unsaid what the user knows: that the report's reader, such as head, has
// had enough, or that they have pressed Ctrl-C. The exit status tells other programs.
func quiet(err error) error {
	if errors.Is(err, unix.EPIPE) {
		return told{&agent.ExitError{Code: 128 + int(unix.SIGPIPE)}}
	}
	if endedByUser(err) && agent.ExitCode(err) == 128+int(unix.SIGINT) {
		return told{err}
	}
	return err
}

// copyReport copies lines from r to out, without rank 0's prefix. startBench starts
// it and closes the other end of r, which ends it. Where out is gone it closes r,
// so that the console finds out and ends the job.
func copyReport(out io.Writer, r *os.File, done chan<- error) {
	defer r.Close()
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if _, werr := io.WriteString(out, strings.TrimPrefix(line, "[rank0] ")); werr != nil {
			done <- fmt.Errorf("report: %w", werr)
			return
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			done <- err
			return
		}
	}
}
