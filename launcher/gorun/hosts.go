package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/cluster"
)

// host is an entry of --hosts: [user@]name[:slots].
type host struct {
	login string // what ssh is given
	name  string // the same without the user: how others reach it
	slots string // "" is --nproc
}

// parseHosts reads a list of hosts. An IPv6 address with slots stands in brackets.
func parseHosts(list []string) ([]host, error) {
	var hosts []host
	for _, entry := range list {
		h := host{login: strings.TrimSpace(entry)}
		user, rest, found := strings.Cut(h.login, "@")
		if !found {
			user, rest = "", h.login
		}
		h.name = rest
		switch end := strings.LastIndexByte(rest, ']'); {
		case strings.HasPrefix(rest, "[") && end > 0:
			h.name = rest[1:end]
			if tail := rest[end+1:]; tail != "" {
				h.slots = strings.TrimPrefix(tail, ":")
				if h.slots == tail {
					return nil, fmt.Errorf("host %q: %q follows the address; want :slots", entry, tail)
				}
			}
		case strings.Count(rest, ":") == 1:
			h.name, h.slots, _ = strings.Cut(rest, ":")
		}
		h.login = h.name
		if found {
			h.login = user + "@" + h.name
		}
		if n, err := strconv.Atoi(h.slots); h.slots != "" && (err != nil || n < 1) {
			return nil, fmt.Errorf("host %q: %q is no number of workers", entry, h.slots)
		}
		if h.name == "" || strings.HasPrefix(h.login, "-") || strings.ContainsAny(h.login, " \t'\"") {
			return nil, fmt.Errorf("host %q: want a name or an address, with :slots where it is to start another number of workers than --nproc", entry)
		}
		if slices.ContainsFunc(hosts, func(o host) bool { return o.name == h.name }) {
			return nil, fmt.Errorf("host %s stands there twice", h.name)
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// takeHosts works out the hosts that this call starts the job on: --hosts, else
// launch.hosts of the training's file; none on a host that was itself started so.
// With hosts it sets the flags that tell nodes apart as they are for node 0.
func (l *launch) takeHosts(cmd *cobra.Command, t *training) error {
	if l.parent != nil {
		return nil
	}
	list, from := l.hostList, "--hosts"
	given := func(name string) bool { return cmd.Flags().Changed(name) }
	if t != nil && !given("hosts") {
		list, from = t.cfg.Launch.Hosts, "launch.hosts"
		if given("node-rank") || given("rdzv") {
			list = nil // started by hand on each node
		}
	}
	hosts, err := parseHosts(list)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if len(hosts) == 0 {
		if given("hosts") {
			return errors.New("--hosts: no host is given; want a list such as a,b or a:8,b:4")
		}
		return nil
	}
	if given("nnodes") && l.nnodes != len(hosts) {
		return fmt.Errorf("--nnodes %d, but %s names %d hosts; leave --nnodes out", l.nnodes, from, len(hosts))
	}
	if given("node-rank") {
		return fmt.Errorf("--node-rank: with %s gorun is started once, on the first host, and starts the others", from)
	}
	if first := hosts[0].name; !cluster.IsLocal(first) {
		return fmt.Errorf("%s: the first host, %s, is not this one: start gorun there, or put this host first", from, first)
	}
	if err := reachable(hosts); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if hosts[0].slots != "" {
		l.nproc = hosts[0].slots
	}
	l.hosts, l.nnodes = hosts, len(hosts)
	if l.nnodes > 1 && l.rdzv == "" && l.masterAddr == "" {
		// A port that is free now: who takes it in between is told from the nodes by
		// the job's token.
		port, err := cluster.FreePort("")
		if err != nil {
			return err
		}
		l.rdzv = net.JoinHostPort(hosts[0].name, strconv.Itoa(port))
	}
	return nil
}

// reachable refuses a first host whose name means something else on the others.
func reachable(hosts []host) error {
	first := hosts[0].name
	if ip := net.ParseIP(first); first != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil
	}
	for _, h := range hosts[1:] {
		if !cluster.IsLocal(h.name) {
			return fmt.Errorf("%s means this host on this host alone, and %s cannot reach it: give a name or address that all hosts know", first, h.name)
		}
	}
	return nil
}

// ownFlags are those that a node started by ssh gets from node 0's view, or not at
// all.
var ownFlags = []string{"hosts", "nnodes", "node-rank", "nproc", "rdzv", "master-addr", "master-port", "token-file"}

// argumentsFor is the command line of gorun on host i.
func (l *launch) argumentsFor(i int, endpoint string) []string {
	nproc := l.hosts[i].slots
	if nproc == "" {
		nproc = l.commonNProc
	}
	args := slices.Clone(l.command)
	args = append(args, "--nnodes="+strconv.Itoa(l.nnodes), "--node-rank="+strconv.Itoa(i), "--rdzv="+endpoint, "--nproc="+nproc)
	return append(args, l.arguments...)
}

// remember keeps what this call was given, for argumentsFor.
func (l *launch) remember(cmd *cobra.Command, args []string) {
	l.commonNProc = l.nproc
	if cmd.HasParent() {
		l.command = []string{cmd.Name()}
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains(ownFlags, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if many, ok := f.Value.(pflag.SliceValue); ok {
			values = many.GetSlice()
		}
		for _, v := range values {
			l.command = append(l.command, "--"+f.Name+"="+v)
		}
	})
	if cmd.ArgsLenAtDash() >= 0 {
		l.arguments = []string{"--"}
	}
	l.arguments = append(l.arguments, args...)
}

// worldSize is the number of ranks, as far as this node can tell.
func (l *launch) worldSize(nproc int) (int, error) {
	if len(l.hosts) == 0 {
		return l.nnodes * nproc, nil
	}
	n := nproc
	for _, h := range l.hosts[1:] {
		slots := h.slots
		if slots == "" {
			slots = l.commonNProc
		}
		m, err := agent.ParseNProc(slots)
		if err != nil {
			return 0, err
		}
		n += m
	}
	return n, nil
}

// hereOnly are variables that belong to a host or a login there, and are not taken
// to another one.
var hereOnly = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "MAIL", "TERM", "TMPDIR", "DISPLAY", "_",
	"MASTER_ADDR", "MASTER_PORT", "GORUN_TOKEN",
}

// portableEnviron is this process's environment as another host gets it.
func portableEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(hereOnly, name) || strings.HasPrefix(name, "SSH_") || strings.HasPrefix(name, "XDG_") ||
			strings.HasPrefix(name, "SLURM_") || strings.HasPrefix(name, "DBUS_")
	})
}
