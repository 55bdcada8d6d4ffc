package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/comm/store"
	"github.com/gorun-dev/gorun/launcher/config"
)

// agentsJob is the name under which agents meet in the store. No job of a user's
// can have it: theirs hold no blank.
const agentsJob = "gorun agents"

// Options say who joins which job.
type Options struct {
	Job         string // "" takes node 0's, which makes one up
	RandomJob   string // what node 0 makes up
	Token       string
	NNodes      int
	NodeRank    int
	NProc       int
	Endpoint    string // host:port; node 0 listens there
	MasterAddr  string // "" is node 0's address as the others reach it
	MasterPort  int    // 0 takes a free one
	MaxRestarts int
	Version     string           // of the program, the same on every node
	Settings    []config.Setting // of the training, the same on every node; nil for a program
	Timeout     time.Duration
	Say         func(format string, args ...any) // tells the user what is waited for
}

// entry is what an agent registers.
type entry struct {
	Node
	NNodes      int              `json:"nnodes"`
	Job         string           `json:"job"`
	MaxRestarts int              `json:"max_restarts"`
	Version     string           `json:"version"`
	Settings    []config.Setting `json:"settings"`
	Node0       string           `json:"node0"` // node 0's IP address as this node reaches it
}

// answer is what node 0 publishes once everybody is there, or somebody is wrong.
type answer struct {
	Refused string  `json:"refused,omitempty"`
	Layout  *Layout `json:"layout,omitempty"`
}

// Join meets the other nodes' agents at the endpoint and returns when all have
// come. Node 0 serves the store there. A node that does not fit (another number
// of nodes, job, version or configuration; a rank that is taken) ends the join on
// all of them with an error that names it, as does Timeout, and the end of ctx with
// its cause.
func Join(ctx context.Context, o Options) (*Member, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	m := newMember(o)
	if err := m.join(ctx); err != nil {
		m.abandon()
		return nil, fmt.Errorf("node %d of %d cannot join: %w", o.NodeRank, o.NNodes, err)
	}
	m.begin()
	return m, nil
}

func (m *Member) join(ctx context.Context) error {
	host, port, err := net.SplitHostPort(m.o.Endpoint)
	if err != nil {
		return fmt.Errorf("the meeting point is not host:port: %w", err)
	}
	dial := m.o.Endpoint
	if m.o.NodeRank == 0 {
		if dial, err = m.serve(host, port); err != nil {
			return err
		}
		m.o.Say("waiting for %s at %s", awaited(m.o.NNodes), m.o.Endpoint)
	} else if err := m.reach(ctx); err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("this host's name: %w", err)
	}
	m.client, err = store.Dial(ctx, dial, store.Options{Token: m.o.Token, Job: agentsJob, Host: name, Timeout: m.o.Timeout})
	if err != nil {
		return plain(err)
	}
	local, remote, err := route(ctx, dial)
	if err != nil {
		return err
	}
	e := entry{
		Node:   Node{Index: m.o.NodeRank, Host: name, BootID: BootID(), NProc: m.o.NProc, Addr: local},
		NNodes: m.o.NNodes, Job: m.o.Job, MaxRestarts: m.o.MaxRestarts,
		Version: m.o.Version, Settings: m.o.Settings, Node0: remote,
	}
	value, err := json.Marshal(e)
	if err != nil {
		return err
	}
	current, mine, err := m.client.CompareAndSet(ctx, "node/"+strconv.Itoa(e.Index), nil, value)
	if err != nil {
		return plain(err)
	}
	if !mine {
		var other entry
		if err := json.Unmarshal(current, &other); err != nil {
			return fmt.Errorf("rank %d is taken", e.Index)
		}
		return fmt.Errorf("rank %d is taken by host %s: give every node its own --node-rank", e.Index, other.Host)
	}
	if e.Index == 0 {
		if err := m.gather(ctx, e, port); err != nil {
			return err
		}
	}
	return m.await(ctx)
}

// serve starts the store on node 0 and returns the address at which it reaches
// the store itself. It listens on every address, for the name of a host often
// means loopback on that host; on loopback alone where the endpoint says so.
func (m *Member) serve(host, port string) (string, error) {
	bind, dial := "", "127.0.0.1"
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		bind, dial = host, host
	}
	if err := reachesItself(dial); err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(bind, port))
	if err != nil {
		return "", fmt.Errorf("node 0 cannot listen on port %s: %w; another job may use it: choose another port", port, err)
	}
	m.visitors = &visitors{Listener: l, say: m.o.Say, told: map[string]bool{}}
	m.server = store.Serve(m.visitors, store.ServerOptions{Token: m.o.Token})
	return net.JoinHostPort(dial, port), nil
}

// reachesItself says why this host's workers would try in vain to meet at a loopback
// address: to listen there takes no interface, to dial does.
func reachesItself(loopback string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return fmt.Errorf("a port on %s: %w", loopback, err)
	}
	defer l.Close()
	c, err := net.DialTimeout("tcp", l.Addr().String(), callTimeout)
	if err != nil {
		return fmt.Errorf("this host does not reach its own address %s, at which its workers meet: %w; is the loopback interface up? (ip link set lo up)", loopback, err)
	}
	return c.Close()
}

// route returns the addresses of this host and of the peer on the way to addr.
func route(ctx context.Context, addr string) (local, remote string, err error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", addr) // sends nothing
	if err != nil {
		return "", "", fmt.Errorf("the route to %s: %w", addr, err)
	}
	defer c.Close()
	ip := func(a net.Addr) string { return a.(*net.UDPAddr).AddrPort().Addr().Unmap().String() }
	return ip(c.LocalAddr()), ip(c.RemoteAddr()), nil
}

// gather runs on node 0: it waits for every node and publishes the layout, or
// why there is none.
func (m *Member) gather(ctx context.Context, own entry, port string) error {
	entries := make([]*entry, m.o.NNodes)
	entries[0] = &own
	came, refusal := m.collect(ctx, own, entries)
	m.visitors.met.Store(true)
	if refusal == "" {
		return m.publish(ctx, answer{Layout: m.arrange(entries, port)})
	}
	// The deadline may be why: the refusal has its own.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := m.publish(ctx, answer{Refused: refusal}); err != nil {
		return err
	}
	for _, node := range came {
		if _, err := m.client.Wait(ctx, byeKey(node)); err != nil {
			break // it has had its time to read; the refusal says what counts
		}
	}
	return nil
}

// collect fills entries and returns who came, and "" or what is wrong.
func (m *Member) collect(ctx context.Context, own entry, entries []*entry) (came []int, refusal string) {
	w, err := m.client.Watch(ctx, "node/")
	if err != nil {
		return nil, m.whyMissing(ctx, entries, err)
	}
	defer w.Close()
	for missing := len(entries) - 1; missing > 0; {
		c, err := w.Next(ctx)
		if err != nil {
			return came, m.whyMissing(ctx, entries, err)
		}
		var e entry
		if err := json.Unmarshal(c.Value, &e); err != nil {
			return came, fmt.Sprintf("what registered as %s is no agent of this version: %v", c.Key, err)
		}
		if e.Index == 0 {
			continue
		}
		came = append(came, e.Index)
		if wrong := own.compare(&e); wrong != "" {
			return came, fmt.Sprintf("node %d (host %s): %s", e.Index, e.Host, wrong)
		}
		entries[e.Index] = &e
		missing--
	}
	return came, ""
}

// compare says what keeps e out of own's job.
func (own *entry) compare(e *entry) string {
	switch {
	case e.Version != own.Version:
		return fmt.Sprintf("it runs gorun %s, node 0 runs %s", e.Version, own.Version)
	case e.NNodes != own.NNodes:
		return fmt.Sprintf("it was started with --nnodes %d, node 0 with %d", e.NNodes, own.NNodes)
	case e.Job != "" && e.Job != own.Job:
		return fmt.Sprintf("it was started with --job-id %s, node 0's job is %s", e.Job, own.Job)
	case e.MaxRestarts != own.MaxRestarts:
		return fmt.Sprintf("it was started with --max-restarts %d, node 0 with %d", e.MaxRestarts, own.MaxRestarts)
	case (e.Settings == nil) != (own.Settings == nil):
		what := map[bool]string{true: "a program", false: "a train.yaml"}
		return fmt.Sprintf("it was started with %s, node 0 with %s", what[e.Settings == nil], what[own.Settings == nil])
	}
	return differences(e.Settings, own.Settings)
}

// differences names the first settings that are not node 0's; "" where all are. Both
// come from the same version of gorun, and so have the same keys.
func differences(theirs, own []config.Setting) string {
	const named = 3
	var differ []string
	for i, s := range own {
		if i < len(theirs) && theirs[i] != s {
			differ = append(differ, fmt.Sprintf("%s is %s there, and %s on node 0", s.Key, theirs[i].Value, s.Value))
		}
	}
	if len(differ) == 0 {
		return ""
	}
	more := ""
	if n := len(differ) - named; n > 0 {
		differ, more = differ[:named], fmt.Sprintf("; %d more", n)
	}
	return "its train.yaml, with --set, differs from node 0's: " + strings.Join(differ, "; ") + more
}

func (m *Member) whyMissing(ctx context.Context, entries []*entry, err error) string {
	switch {
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Sprintf("node 0 (host %s) has given up: %v", entries[0].Host, context.Cause(ctx))
	case !errors.Is(err, context.DeadlineExceeded):
		return plain(err).Error()
	}
	var missing []string
	for i, e := range entries {
		if e == nil {
			missing = append(missing, strconv.Itoa(i))
		}
	}
	s := fmt.Sprintf("within %s these node ranks have not come: %s", m.o.Timeout, strings.Join(missing, ", "))
	if host, _, _ := net.SplitHostPort(m.o.Endpoint); !IsLocal(host) {
		s += fmt.Sprintf("; %s is no address of node 0's host, which listens on all of its own", host)
	}
	return s
}

// arrange makes the layout from the entries of all nodes.
func (m *Member) arrange(entries []*entry, port string) *Layout {
	l := &Layout{Job: entries[0].Job, MasterAddr: m.o.MasterAddr, MasterPort: m.o.MasterPort}
	seen := entries[0].Node0
	if len(entries) > 1 {
		seen = entries[1].Node0
	}
	if l.MasterAddr == "" {
		l.MasterAddr = seen
	}
	l.StoreAddr = net.JoinHostPort(seen, port)
	for _, e := range entries {
		l.Nodes = append(l.Nodes, e.Node)
	}
	l.Nodes[0].Addr = seen
	return l
}

func (m *Member) publish(ctx context.Context, a answer) error {
	if a.Layout != nil && a.Layout.MasterPort == 0 {
		port, err := FreePort("")
		if err != nil {
			return err
		}
		a.Layout.MasterPort = port
	}
	value, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return m.client.Set(ctx, "layout", value)
}

// await waits for node 0's answer.
func (m *Member) await(ctx context.Context) error {
	if m.o.NodeRank == 0 {
		ctx = context.WithoutCancel(ctx) // its answer is published already
	}
	value, err := m.client.Wait(ctx, "layout")
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("within %s the other nodes have not all come", m.o.Timeout)
	}
	if err != nil {
		return plain(err)
	}
	var a answer
	if err := json.Unmarshal(value, &a); err != nil {
		return fmt.Errorf("node 0's answer: %w", err)
	}
	if a.Refused != "" {
		if m.server == nil {
			// Node 0 waits for this; where it is gone already, nothing is lost.
			m.client.Set(context.WithoutCancel(ctx), byeKey(m.o.NodeRank), []byte{1})
		}
		return errors.New(a.Refused)
	}
	m.layout = a.Layout
	m.layout.Self = m.o.NodeRank
	return nil
}

// IsLocal says whether a name or address means this host.
func IsLocal(host string) bool {
	if name, err := os.Hostname(); err == nil && host == name {
		return true
	}
	ips, err := net.LookupIP(host)
	if err != nil {
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, ip := range ips {
		if ip.IsLoopback() { // all of 127.0.0.0/8, of which the interface names one
			return true
		}
		for _, a := range own {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return true
			}
		}
	}
	return false
}
