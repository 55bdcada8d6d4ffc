package comm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/topology"
)

// variables are those of NCCL's by which a group's own engine goes too. NCCL reads its
// own for itself. What those of RDMA say is in Options.RDMA. The zero value is none set.
type variables struct {
	socket      string // NCCL_SOCKET_IFNAME
	algo        string // NCCL_ALGO
	families    familyRules
	minChannels int // NCCL_MIN_NCHANNELS, 0: not set
	maxChannels int // NCCL_MAX_NCHANNELS, 0: not set
	buffer      int // NCCL_BUFFSIZE, 0: not set
	debug       string
	gdr         string // NCCL_NET_GDR_LEVEL
	gdrLevel    topology.Path
	names       []string // of those that are in effect on host memory, but for NCCL_DEBUG
	yielded     []string // which options go before which variables
}

// CheckVariables refuses values of NCCL's variables that mean nothing, as New does before
// ranks meet. lookup is os.LookupEnv, or looks into another environment. The error has a
// line for each of them, which begins with its name.
func CheckVariables(lookup func(name string) (string, bool)) error {
	_, err := readVariables(lookup)
	return err
}

// readVariables reads them. The error is CheckVariables'.
func readVariables(get func(name string) (string, bool)) (v variables, err error) {
	var errs []error
	read := func(name string, parse func(string) error) {
		text, ok := get(name)
		if text = strings.TrimSpace(text); !ok || text == "" {
			return
		}
		if err := parse(text); err != nil {
			errs = append(errs, fmt.Errorf("%s=%s: %w", name, text, err))
		} else if name != "NCCL_DEBUG" && name != "NCCL_NET_GDR_LEVEL" {
			v.names = append(v.names, name)
		}
	}
	number := func(at *int, least, most int, what string) func(string) error {
		return func(text string) error {
			n, err := strconv.ParseInt(text, 0, 63)
			if err != nil || n < int64(least) || n > int64(most) {
				return fmt.Errorf("want %s, from %d to %d", what, least, most)
			}
			*at = int(n)
			return nil
		}
	}
	read("NCCL_SOCKET_IFNAME", func(text string) error {
		v.socket = text
		_, err := parseInterfaces(text)
		return err
	})
	read("NCCL_ALGO", func(text string) (err error) {
		v.algo = text
		v.families, err = parseFamilies(text)
		return err
	})
	read("NCCL_MIN_NCHANNELS", number(&v.minChannels, 1, mostChannels, "a number of channels"))
	read("NCCL_MAX_NCHANNELS", number(&v.maxChannels, 1, mostChannels, "a number of channels"))
	read("NCCL_BUFFSIZE", number(&v.buffer, window*leastChunk, 1<<40, "a number of bytes"))
	read("NCCL_NET_GDR_LEVEL", func(text string) (err error) {
		v.gdr = text
		v.gdrLevel, err = parseGDR(text)
		return err
	})
	read("NCCL_DEBUG", func(text string) error {
		v.debug = strings.ToUpper(text)
		known := []string{"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"}
		if !slices.Contains(known, v.debug) {
			return fmt.Errorf("want one of %s", strings.Join(known, ", "))
		}
		return nil
	})
	if v.maxChannels > 0 && v.minChannels > v.maxChannels {
		errs = append(errs, fmt.Errorf("NCCL_MIN_NCHANNELS=%d is more than NCCL_MAX_NCHANNELS=%d", v.minChannels, v.maxChannels))
	}
	if _, err := (rdma.Settings{}).FromEnvironment(func(name string) string {
		text, ok := get(name)
		if text = strings.TrimSpace(text); !ok || text == "" {
			return ""
		}
		v.names = append(v.names, name)
		return text
	}); err != nil {
		errs = append(errs, err)
	}
	return v, errors.Join(errs...)
}

const (
	// mostChannels is what NCCL takes; connections between two ranks are never more.
	mostChannels = 64
	// leastChunk is the size of the smallest message that an array may be cut into.
	leastChunk = 64
)

// talks reports whether NCCL_DEBUG asks for what the engine chooses.
func (v *variables) talks() bool { return slices.Contains([]string{"INFO", "ABORT", "TRACE"}, v.debug) }

// chunk is the size of the messages with which as much is under way to a peer as the
// buffer that NCCL would have for it holds.
func (v *variables) chunk() int { return v.buffer / window }

// connections is the number of connections to a peer that is n otherwise.
func (v *variables) connections(n int) int {
	n = max(n, v.minChannels)
	if v.maxChannels > 0 {
		n = min(n, v.maxChannels)
	}
	return n
}

// families are the ways of NCCL's that the engine has too, with its algorithms.
var families = map[string][]Algorithm{
	"ring": {Ring, Chain},
	"tree": {Tree, Doubling},
	// These are NCCL's alone: switches and multicast of NVLink, and gathers in trees.
	"collnetdirect": nil, "collnetchain": nil, "nvls": nil, "nvlstree": nil, "pat": nil,
}

// familyRules is NCCL_ALGO: what each collective may take. The last rule for a
// collective counts.
type familyRules []familyRule

type familyRule struct {
	kind    transport.Kind // 0: of all
	exclude bool
	names   []string
}

var ncclFunctions = map[string]transport.Kind{
	"allreduce": transport.AllReduce, "reducescatter": transport.ReduceScatter, "allgather": transport.AllGather,
	"broadcast": transport.Broadcast, "reduce": transport.Reduce,
}

// parseFamilies reads such as "ring", "^tree" and "ring,nvls;allreduce:tree".
func parseFamilies(text string) (rules familyRules, err error) {
	for part := range strings.SplitSeq(strings.ToLower(text), ";") {
		var r familyRule
		list := strings.TrimSpace(part)
		if function, of, ok := strings.Cut(list, ":"); ok {
			if r.kind, ok = ncclFunctions[strings.TrimSpace(function)]; !ok {
				return nil, fmt.Errorf("there is no collective %q: want allreduce, reducescatter, allgather, broadcast or reduce", function)
			}
			list = strings.TrimSpace(of)
		}
		list, r.exclude = strings.CutPrefix(list, "^")
		for name := range strings.SplitSeq(list, ",") {
			name = strings.TrimSpace(name)
			if _, ok := families[name]; !ok {
				return nil, fmt.Errorf("there is no algorithm %q: want ring, tree, or one that NCCL alone has: collnetdirect, collnetchain, nvls, nvlstree or pat", name)
			}
			r.names = append(r.names, name)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// allow leaves those of the list that a collective may take. ok is false where it may
// take none of them, and the list stays as it is.
func (rules familyRules) allow(k transport.Kind, list []Algorithm) (_ []Algorithm, ok bool) {
	var rule *familyRule
	for i := range rules {
		if r := &rules[i]; r.kind == k || r.kind == 0 && (rule == nil || rule.kind == 0) {
			rule = r
		}
	}
	if rule == nil {
		return list, true
	}
	var named, allowed []Algorithm
	for _, name := range rule.names {
		named = append(named, families[name]...)
	}
	for _, a := range list {
		if slices.Contains(named, a) != rule.exclude {
			allowed = append(allowed, a)
		}
	}
	if allowed == nil {
		return list, false
	}
	return allowed, true
}
