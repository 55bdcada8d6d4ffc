package comm

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/comm/nccl"
)

// readVariables looks for NCCL's variables where the options leave something open. What
// an option says goes before a variable. Ranks of one process, and parts of a group, do
// not look.
func (o *Options) readVariables() error {
	if o.nccl != nil {
		return nil
	}
	o.nccl = &variables{}
	if o.hub != nil {
		return nil
	}
	v, err := readVariables(os.LookupEnv)
	if err != nil {
		return err
	}
	o.nccl = &v
	if o.Interface != "" {
		v.yield("NCCL_SOCKET_IFNAME", "interface "+o.Interface)
	}
	if o.Algo != Auto && o.Algo != "auto" {
		v.yield("NCCL_ALGO", "algo "+string(o.Algo))
	}
	if o.Conns > 0 {
		v.yield("NCCL_MIN_NCHANNELS", fmt.Sprintf("channels %d", o.Conns))
		v.yield("NCCL_MAX_NCHANNELS", fmt.Sprintf("channels %d", o.Conns))
	}
	if o.Chunk > 0 {
		v.yield("NCCL_BUFFSIZE", fmt.Sprintf("chunk %d", o.Chunk))
	} else if v.buffer > 0 {
		o.Chunk = v.chunk()
	}
	return nil
}

// yield takes the effect from a variable that is set, for an option that goes before it.
func (v *variables) yield(name, option string) {
	i := slices.Index(v.names, name)
	if i < 0 {
		return
	}
	v.names = slices.Delete(v.names, i, i+1)
	v.yielded = append(v.yielded, fmt.Sprintf("%s goes before %s", option, name))
	if name != "NCCL_SOCKET_IFNAME" { // see sameInterface
		v.yielded[len(v.yielded)-1] += ", but not for NCCL, which has no such option"
	}
	switch name {
	case "NCCL_SOCKET_IFNAME":
		v.socket = ""
	case "NCCL_ALGO":
		v.algo, v.families = "", nil
	case "NCCL_MIN_NCHANNELS":
		v.minChannels = 0
	case "NCCL_MAX_NCHANNELS":
		v.maxChannels = 0
	case "NCCL_BUFFSIZE":
		v.buffer = 0
	}
}

// sameInterface has NCCL go by Options.Interface too.
func (o *Options) sameInterface(lib *nccl.Library) error {
	if o.Interface == "" {
		return nil
	}
	name, err := interfaceOf(o.Interface)
	if err != nil {
		return err
	}
	return lib.SetInterface(name)
}

// sameTopology has NCCL go by Options.TopoFile.
func (o *Options) sameTopology(lib *nccl.Library) error {
	if o.TopoFile == "" {
		return nil
	}
	return lib.SetTopology(o.TopoFile)
}

// interfaceFor is the interface that NCCL_SOCKET_IFNAME leaves to tcp.
func (g *Group) interfaceFor(text string, near bool) (string, error) {
	rule, err := parseInterfaces(text)
	if err != nil {
		return "", err // readVariables would have found it
	}
	all, err := cards()
	if err != nil {
		return "", err
	}
	name, err := rule.choose(all, near)
	if err != nil {
		return "", fmt.Errorf("NCCL_SOCKET_IFNAME=%s: %w", text, err)
	}
	g.o.Logger.Debug("comm: interface by NCCL_SOCKET_IFNAME", "group", g.o.Name, "rank", g.o.Rank, "interface", name)
	return name, nil
}

// tellVariables says of NCCL's variables that are set, and do not do to the group's own
// engine what they do to NCCL, that it is so and why.
func (g *Group) tellVariables(ctx context.Context) {
	v := g.o.nccl
	tell := func(format string, args ...any) {
		g.o.Logger.InfoContext(ctx, "comm: "+fmt.Sprintf(format, args...), "group", g.o.Name)
	}
	for _, text := range v.yielded {
		tell("%s", text)
	}
	if v.debug == "VERSION" {
		tell("NCCL_DEBUG=VERSION is NCCL's: gorun's own engine has no other version than gorun")
	}
	g.tellGDR(tell)
	names := strings.Join(v.names, ", ")
	if names == "" || g.o.Size == 1 {
		return
	}
	if _, ok := g.engine.(*shared); ok {
		tell("%s: without effect on host memory, for ranks of one host go through shared memory, which has one algorithm, pieces of its own and no network", names)
	} else {
		g.tellAlgorithms(tell)
		g.tellLinks(tell)
	}
	if u := g.gpu; u != nil {
		switch u.engine.(type) {
		case *byPeers:
			tell("%s: on GPU memory NCCL alone goes by it; what the GPUs of a host move without NCCL has ways of its own, see comm.algo, and no network", names)
		case *staged, *gpuDirect:
			tell("%s: memory of GPUs goes as the links between the ranks do, by what is said of them", names)
		}
	}
}

// tellAlgorithms says where NCCL_ALGO leaves nothing to choose from.
func (g *Group) tellAlgorithms(tell func(format string, args ...any)) {
	v := g.o.nccl
	if v.algo == "" {
		return
	}
	for _, k := range measuredKinds {
		list := candidates(k)
		if _, ok := v.families.allow(k, list); !ok {
			tell("NCCL_ALGO=%s leaves none of the algorithms that %s of host memory has, which are %v: the cheapest is taken", v.algo, k, list)
		}
	}
}

// tellLinks says which variables are for links of another kind than the group has.
func (g *Group) tellLinks(tell func(format string, args ...any)) {
	for _, l := range []struct {
		wire, what string
		of         func(name string) bool
	}{
		{"tcp", "they choose interfaces and connections of tcp", func(name string) bool {
			return name == "NCCL_SOCKET_IFNAME" || strings.HasSuffix(name, "_NCHANNELS")
		}},
		{"rdma", "they choose devices of rdma, and how these send", func(name string) bool { return strings.HasPrefix(name, "NCCL_IB_") }},
	} {
		if slices.ContainsFunc(g.wires, func(w *wire) bool { return w.name == l.wire }) {
			continue
		}
		var idle []string
		for _, name := range g.o.nccl.names {
			if l.of(name) {
				idle = append(idle, name)
			}
		}
		if idle != nil {
			tell("%s: without effect on host memory, which goes over %s: %s", strings.Join(idle, ", "), g.linkTo(-1), l.what)
		}
	}
}
