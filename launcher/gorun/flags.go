package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// launch is one call of gorun: its flags, and which of the two forms it has.
type launch struct {
	trainer trainer
	config  string   // train.yaml, or
	program []string // a program and its arguments

	nnodes, nodeRank       int
	nproc                  string
	rdzv, masterAddr       string
	masterPort             int
	jobID, tokenFile       string
	maxRestarts            int
	joinTimeout            time.Duration
	logDir, redirects, tee string
	filter                 string
	verbose, dryRun        bool
	set                    []string
	resume                 bool
	trace                  int
	torchrun               torchrunFlags

	hostList    []string
	hosts       []host   // where this call starts the job, itself first; nil where not by ssh
	commonNProc string   // --nproc, for hosts without slots
	command     []string // the call without what differs between nodes, up to
	arguments   []string // the train.yaml or the program
	parent      *parent  // node 0, where that has started this by ssh
}

func (l *launch) flagGroups() []flagGroup {
	job := newFlagSet("job")
	job.StringVar(&l.nproc, "nproc", "1", "workers on this node: `N`, auto (GPUs, else cores), gpu or cpu. Without it a train.yaml takes every GPU that can run it")
	job.IntVar(&l.maxRestarts, "max-restarts", 0, "after a failure start all workers again, at most `N` times")
	job.StringVar(&l.jobID, "job-id", "", "`name` of the job, the same on every node (default: a random one)")
	job.BoolVar(&l.dryRun, "dry-run", false, "say what would be started, and start nothing")

	nodes := newFlagSet("nodes")
	l.nnodes = 1
	nodes.Var((*nodeCount)(&l.nnodes), "nnodes", "number of nodes, `N`; gorun is called once on each, but for --hosts")
	nodes.IntVar(&l.nodeRank, "node-rank", 0, "which of them this is, `0..N-1`; ranks follow this order (default: SLURM_NODEID, else 0)")
	nodes.StringSliceVarP(&l.hostList, "hosts", "H", nil, "start the job on these `hosts` by ssh: a,b or, with as many workers on each, a:8,b:4. The first is this one; the others need the same gorun and the same folder at the same paths. gorun is called once, and makes the token")
	nodes.StringVar(&l.rdzv, "rdzv", "", "`host:port` at which node 0 listens and the others meet it")
	nodes.StringVar(&l.masterAddr, "master-addr", "", "`host` of node 0 that the program sees as MASTER_ADDR; without --rdzv the nodes meet there, one port above --master-port")
	nodes.IntVar(&l.masterPort, "master-port", 0, "`port` that the program sees as MASTER_PORT; gorun leaves it free (default: a free one, or 29500 with --master-addr)")
	nodes.StringVar(&l.tokenFile, "token-file", "", "`file` with the job's token; GORUN_TOKEN does the same. Needed with several nodes")
	nodes.DurationVar(&l.joinTimeout, "join-timeout", 10*time.Minute, "wait so long for all nodes to come")

	output := newFlagSet("output")
	output.StringVar(&l.logDir, "log-dir", "", "`folder` for full logs: <job>_<random>/attempt_N/<local rank>/{stdout.log,stderr.log,error.json} (default: logs/ in the output folder; for a program a temporary one that is kept when it fails)")
	output.StringVarP(&l.redirects, "redirects", "r", "0", "`streams` that go to the logs only: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, 0:1,1:3")
	output.StringVarP(&l.tee, "tee", "t", "0", "`streams` that go to logs and console even where redirected; written like --redirects")
	output.StringVar(&l.filter, "local-ranks-filter", "", "show only these local `ranks` on the console, such as 0,2; logs have all")
	output.BoolVarP(&l.verbose, "verbose", "v", false, "say more about what the agent does")

	training := newFlagSet("training")
	training.StringArrayVar(&l.set, "set", nil, "change a key of the YAML file, `key=value`, such as train.lr=1e-4; may be repeated")
	training.BoolVar(&l.resume, "resume", false, "go on from the newest checkpoint (checkpoint.resume=auto)")
	training.IntVar(&l.trace, "trace", 0, "record `N` steps of every rank in trace.json, which Perfetto draws (log.trace)")
	return []flagGroup{{"Job", job}, {"Several nodes", nodes}, {"Output", output}, {"Training from a YAML file", training}}
}

// refuseTrainingFlags names the flags that a program cannot be given.
func (l *launch) refuseTrainingFlags() error {
	switch {
	case len(l.set) > 0:
		return fmt.Errorf("--set %s: it changes a train.yaml, and a program is given", l.set[0])
	case l.resume:
		return fmt.Errorf("--resume: it belongs to a train.yaml, and a program is given")
	case l.trace != 0:
		return fmt.Errorf("--trace %d: it belongs to a train.yaml, and a program is given", l.trace)
	}
	return nil
}

var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// validate checks what can be checked without looking at files or other nodes,
// and fills the node's rank from Slurm where the flag is not given.
func (l *launch) validate(cmd *cobra.Command) error {
	switch {
	case l.nnodes < 1:
		return fmt.Errorf("--nnodes %d: want at least 1", l.nnodes)
	case l.maxRestarts < 0:
		return fmt.Errorf("--max-restarts %d: want 0 or more", l.maxRestarts)
	case l.masterPort < 0 || l.masterPort > 65535:
		return fmt.Errorf("--master-port %d: no such port", l.masterPort)
	case l.joinTimeout <= 0:
		return fmt.Errorf("--join-timeout %s: want more than 0", l.joinTimeout)
	case l.jobID != "" && !jobName.MatchString(l.jobID):
		return fmt.Errorf("--job-id %q: it names folders; use letters, digits, dot, dash and underscore, beginning with a letter or digit", l.jobID)
	}
	if l.nnodes > 1 && !cmd.Flags().Changed("node-rank") {
		rank, err := slurmNodeRank(os.Getenv)
		if err != nil {
			return err
		}
		l.nodeRank = rank
	}
	if l.nodeRank < 0 || l.nodeRank >= l.nnodes {
		return fmt.Errorf("--node-rank %d: with --nnodes %d it is 0 to %d", l.nodeRank, l.nnodes, l.nnodes-1)
	}
	return l.torchrun.check(cmd, l)
}

// spec is what the flags say to the agent; program and logs are added later.
func (l *launch) spec(nproc int) (*agent.Spec, error) {
	s := &agent.Spec{MaxRestarts: l.maxRestarts, Verbose: l.verbose}
	if l.torchrun.role != "" {
		s.Env = append(s.Env, "ROLE_NAME="+l.torchrun.role)
	}
	var err error
	if s.Redirects, err = agent.ParseStdMap(l.redirects); err != nil {
		return nil, fmt.Errorf("--redirects: %w", err)
	}
	if s.Tee, err = agent.ParseStdMap(l.tee); err != nil {
		return nil, fmt.Errorf("--tee: %w", err)
	}
	if s.Filter, err = agent.ParseRanks(l.filter); err != nil {
		return nil, fmt.Errorf("--local-ranks-filter: %w", err)
	}
	for r := range s.Filter {
		if r >= nproc {
			return nil, fmt.Errorf("--local-ranks-filter %s: there is no local rank %d with --nproc %d", l.filter, r, nproc)
		}
	}
	return s, nil
}

// token reads the job's token: --token-file, else GORUN_TOKEN; empty where there
// is neither.
func (l *launch) token() (string, error) {
	if l.tokenFile == "" {
		return os.Getenv("GORUN_TOKEN"), nil
	}
	b, err := os.ReadFile(l.tokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("--token-file %s is empty", l.tokenFile)
	}
	return token, nil
}

// newFlagSet is a section of the help, in the order in which flags are added.
func newFlagSet(name string) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SortFlags = false
	return f
}
