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

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/bench"
	"github.com/gorun-dev/gorun/launcher/cluster"
	"github.com/gorun-dev/gorun/launcher/console"
)

const benchUsage = `gorun bench measures a collective between workers, and verifies its results.
It prints the columns of nccl-tests: the time of a call, algbw = size / time, busbw = what
a link carries, and the number of wrong elements, out of place and in place. Its flags are
understood too.

Examples:
  gorun bench allreduce --nproc 2
  gorun bench allreduce --nproc 2 -b 25M -e 25M --buffers private
  gorun bench allgather --nproc 4 --transport tcp -d bf16
  gorun bench allreduce --nproc 2 --transport rdma     # InfiniBand or RoCE
  gorun bench alltoall --nproc 2 --json
  gorun bench allreduce --nproc 2 -z overlap           # beside a matrix product
  gorun bench allreduce -g 2 --engine all -e 1G        # GPUs: gorun's engine and NCCL side by side

  # two machines; the same arguments on both, but for --node-rank and --nproc, and the same
  # token, in GORUN_TOKEN or --token-file
  gorun bench allreduce --nnodes 2 --node-rank 0 --rdzv 10.0.0.1:29400 --nproc 8
  gorun bench allreduce --nnodes 2 --node-rank 1 --rdzv 10.0.0.1:29400 --nproc 8

  # or from one of them, by ssh
  gorun bench allreduce --hosts a:8,b:8
`

// newBench is `gorun bench`. The launcher's flags mean what they mean elsewhere.
func newBench(p *parent) *cobra.Command {
	l, f := &launch{parent: p}, &benchFlags{}
	measure := f.set()
	var groups []flagGroup
	for _, g := range l.flagGroups() {
		if g.title != "Training from a YAML file" {
			groups = append(groups, g)
		}
		for _, name := range []string{"redirects", "tee"} { // -r and -t are nccl-tests'
			if flag := g.flags.Lookup(name); flag != nil {
				flag.Shorthand = ""
			}
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
			o, err := f.options(cmd, args[0])
			if err != nil {
				return err
			}
			l.remember(cmd, args)
			return l.runBench(cmd, o)
		},
	}
	cmd.Flags().AddFlagSet(f.hidden(measure))
	return described(cmd, benchUsage, groups...)
}

// runBench starts this binary as the workers of a benchmark, as it would a program.
func (l *launch) runBench(cmd *cobra.Command, o bench.Options) error {
	spec, nproc, endpoint, err := l.prepare(cmd, nil)
	if err != nil {
		return err
	}
	if o.Transport == "rdma" && !l.dryRun {
		if err := needRDMA(); err != nil {
			return fmt.Errorf("bench: --transport rdma: %w", err)
		}
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

// needRDMA says why this host has no port that RDMA could go by: before anything is
// started, and once, not by every rank.
func needRDMA() error {
	const devices = "/sys/class/infiniband"
	list, err := os.ReadDir(devices)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("this host has no RDMA device (%s has none): take tcp", devices)
	}
	settings, err := rdma.Settings{}.FromEnvironment(os.Getenv)
	if err != nil {
		return err
	}
	_, err = rdma.Usable(nil, settings)
	return err
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
