package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// torchrunFlags are torchrun's that gorun has no use for, or another way. They let a
// command line that was written for torchrun pass; the help does not list them.
type torchrunFlags struct {
	set        *pflag.FlagSet
	standalone bool
	backend    string
	role       string
}

// idle are the torchrun flags whose value changes nothing, and why.
var idle = []struct{ name, why string }{
	{"rdzv-conf", "the nodes meet without a rendezvous backend; --join-timeout bounds the wait"},
	{"start-method", "every worker is a program of its own"},
	{"monitor-interval", "the end of a worker is noticed at once"},
	{"local-addr", "a node is reached by the address of its route to node 0; --rdzv and --master-addr choose that"},
}

// flags returns the set; every call has the same.
func (t *torchrunFlags) flags() *pflag.FlagSet {
	if t.set != nil {
		return t.set
	}
	t.set = newFlagSet("torchrun")
	t.set.BoolVar(&t.standalone, "standalone", false, "one node")
	t.set.StringVar(&t.backend, "rdzv-backend", "", "how nodes meet")
	t.set.StringVar(&t.role, "role", "", "ROLE_NAME of the workers")
	t.set.Bool("no-python", false, "the program is started as it is")
	for _, f := range idle {
		t.set.String(f.name, "", "not used")
	}
	t.set.VarP(new(pythonModule), "module", "m", "a module of Python's")
	t.set.VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	return t.set
}

// check refuses what gorun cannot do as torchrun would.
func (t *torchrunFlags) check(cmd *cobra.Command, l *launch) error {
	switch t.backend {
	case "", "c10d", "static":
	default:
		return fmt.Errorf("--rdzv-backend %s: gorun's nodes meet at node 0, without a service of others; leave it out, and give --rdzv host:port with several nodes", t.backend)
	}
	if t.standalone && l.nnodes > 1 {
		return fmt.Errorf("--standalone: it means one node, and --nnodes is %d", l.nnodes)
	}
	if cmd.Flags().Changed("role") && (t.role == "" || strings.ContainsAny(t.role, "\n\x00")) {
		return fmt.Errorf("--role %q: want a name", t.role)
	}
	return nil
}

// ignored lists the flags that were given for nothing, a sentence each.
func (t *torchrunFlags) ignored() []string {
	var lines []string
	for _, f := range idle {
		if t.set != nil && t.set.Changed(f.name) {
			lines = append(lines, fmt.Sprintf("--%s is ignored: %s", f.name, f.why))
		}
	}
	return lines
}

// pythonModule is torchrun's -m, whose argument gorun would not know how to start.
type pythonModule struct{}

// errPythonModule is what the user is to write instead.
type errPythonModule string

func (e errPythonModule) Error() string {
	return fmt.Sprintf("-m %[1]s: a program is given with its interpreter: write -- python3 -m %[1]s", string(e))
}

func (*pythonModule) String() string     { return "" }
func (*pythonModule) Type() string       { return "module" }
func (*pythonModule) Set(v string) error { return errPythonModule(v) }

// nodeCount is --nnodes: N, or torchrun's N:N.
type nodeCount int

func (n *nodeCount) String() string { return strconv.Itoa(int(*n)) }
func (*nodeCount) Type() string     { return "int" }

func (n *nodeCount) Set(v string) error {
	low, high, isRange := strings.Cut(v, ":")
	count, err := strconv.Atoi(low)
	if err != nil {
		return errors.New("want a number of nodes")
	}
	if most, err := strconv.Atoi(high); isRange && err != nil {
		return errors.New("want a number of nodes")
	} else if isRange && most != count {
		return errors.New("elastic sizes are not there; give one number")
	}
	*n = nodeCount(count)
	return nil
}
