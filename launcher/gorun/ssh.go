package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/cluster"
	"github.com/gorun-dev/gorun/launcher/console"
)

// lingering is how long a node started by ssh may take to end after the job.
const lingering = 5 * time.Second

// order is what a node started by ssh reads first on its stdin, as a line. The
// stdin stays open as long as node 0 lives.
type order struct {
	Dir   string   `json:"dir"`
	Env   []string `json:"env"`
	Token string   `json:"token"`
	Args  []string `json:"args"`
}

// remotes are the nodes that node 0 has started by ssh.
type remotes struct {
	all    []*remote
	alarms chan cluster.Failure // one that ended early; read by the agent, never closed
	failed func(error)          // tells the join of the same
}

// remote is one of them.
type remote struct {
	index    int
	host     host
	cmd      *exec.Cmd
	kill     context.CancelFunc
	stdin    io.WriteCloser
	out, err *forward
	over     chan struct{} // closed when ssh has ended
}

// startRemotes starts the agents of all hosts but the first. failed is called for
// each that ends before the job does, until joined is called; then it is an alarm.
func (l *launch) startRemotes(token, endpoint string, con *console.Console, failed func(error)) (*remotes, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("--hosts: the path of gorun: %w", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("--hosts: the working folder: %w", err)
	}
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		return nil, errors.New("--hosts: there is no ssh here (PATH): install an OpenSSH client, or start gorun on each host with --node-rank and --rdzv")
	}
	r := &remotes{alarms: make(chan cluster.Failure, len(l.hosts)), failed: failed}
	for i, h := range l.hosts[1:] {
		n := &remote{index: i + 1, host: h, over: make(chan struct{})}
		n.out, n.err = &forward{lines: con.Lines(false, "")}, &forward{lines: con.Lines(true, ""), holds: true}
		var life context.Context
		life, n.kill = context.WithCancel(context.Background())
		n.cmd = exec.CommandContext(life, ssh, "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20",
			"-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", h.login, remoteCommand(self))
		n.cmd.Stdout, n.cmd.Stderr = n.out, n.err
		n.cmd.WaitDelay = time.Second // for what ssh itself leaves behind
		// The user's Ctrl-C is node 0's to pass on; where it dies, so does ssh.
		n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
		if n.stdin, err = n.cmd.StdinPipe(); err != nil {
			r.close()
			return nil, fmt.Errorf("host %s: %w", h.login, err)
		}
		line, err := json.Marshal(order{Dir: dir, Env: portableEnviron(), Token: token, Args: l.argumentsFor(n.index, endpoint)})
		if err != nil {
			r.close()
			return nil, err
		}
		r.all = append(r.all, n)
		go r.routineSSH(n, append(line, '\n'))
	}
	return r, nil
}

// remoteCommand is what the login shell there is given, whichever that is.
func remoteCommand(self string) string {
	quoted := "'" + strings.ReplaceAll(self, "'", `'\''`) + "'"
	script := fmt.Sprintf(`test -x %[1]s || { echo %[1]s is not there: every host needs the same gorun at the same path >&2; exit 127; }; exec %[1]s %[2]s`, quoted, hostAgent)
	return "exec /bin/sh -c '" + strings.ReplaceAll(script, "'", `'\''`) + "'"
}

// routineSSH runs one ssh, whose thread it keeps, for the kernel ends it with that.
// One a host, started by startRemotes; it ends with ssh, which close sees to.
func (r *remotes) routineSSH(n *remote, order []byte) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(n.over)
	defer n.kill()
	err := n.cmd.Start()
	if err == nil {
		n.stdin.Write(order) // where it fails ssh has ended, and says more
		err = n.cmd.Wait()
	}
	n.out.flush()
	said := n.err.flush()
	if err == nil {
		err = errors.New("it ended with exit status 0")
	}
	why := fmt.Sprintf("host %s, started by ssh: %v", n.host.login, err)
	if said != "" {
		why += ": " + said
	}
	r.failed(errors.New(why))
	name := n.host.name
	r.alarms <- cluster.Failure{
		Kind: cluster.NodeLost, Node: n.index, Host: name, Rank: -1, Code: 1, Started: true,
		Cause: fmt.Sprintf("node %d (host %s) is lost: the ssh that holds it has ended: %v", n.index, name, err),
	}
}

// joined lets what the hosts say through.
func (r *remotes) joined() {
	for _, n := range r.all {
		n.err.release()
	}
}

// close waits until all have ended, as they do after the job, and then makes them.
func (r *remotes) close() {
	ctx, cancel := context.WithTimeout(context.Background(), lingering)
	defer cancel()
	for _, n := range r.all {
		select {
		case <-n.over:
		case <-ctx.Done():
		}
	}
	r.end()
}

// end takes the stdin of all away, upon which they end, and soon the ssh too.
func (r *remotes) end() {
	for _, n := range r.all {
		n.stdin.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), lingering)
	defer cancel()
	for _, n := range r.all {
		select {
		case <-n.over:
		case <-ctx.Done():
			n.kill()
			<-n.over
		}
	}
}

// hostedNode is node 0's membership with the nodes it has started.
type hostedNode struct {
	node
	remotes *remotes
}

// Close leaves the job first: the others end when they have read its end.
func (n *hostedNode) Close() error {
	err := n.node.Close()
	n.remotes.close()
	return err
}

// forward passes whole lines of another host to the console, so that lines of
// several hosts never mix. While it holds, it only remembers them.
type forward struct {
	mu    sync.Mutex // guards what follows
	lines *console.Lines
	rest  []byte
	holds bool
}

func (f *forward) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rest = append(f.rest, b...)
	if end := bytes.LastIndexByte(f.rest, '\n'); !f.holds && end >= 0 {
		f.lines.Write(f.rest[:end+1])
		f.rest = append(f.rest[:0], f.rest[end+1:]...)
	}
	return len(b), nil
}

// release passes on what was held, and the rest as it comes.
func (f *forward) release() {
	f.mu.Lock()
	f.holds = false
	f.mu.Unlock()
	f.Write(nil)
}

// flush passes on what is left at the end; what is held it returns instead.
func (f *forward) flush() (held string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holds {
		return strings.TrimSpace(string(f.rest))
	}
	f.lines.Write(f.rest)
	f.rest = nil
	return ""
}
