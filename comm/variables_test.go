package comm

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma"
)

// environ reads variables from a list such as "A=1", "B=2".
func environ(list ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range list {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

func TestVariablesThatAreWrongAreNamed(t *testing.T) {
	for _, set := range []string{
		"NCCL_SOCKET_IFNAME=^", "NCCL_SOCKET_IFNAME=eth0,,eth1", "NCCL_SOCKET_IFNAME==^eth0", "NCCL_SOCKET_IFNAME=eth0 eth1",
		"NCCL_ALGO=rnig", "NCCL_ALGO=sum:ring", "NCCL_ALGO=ring;", "NCCL_ALGO=^",
		"NCCL_MIN_NCHANNELS=0", "NCCL_MAX_NCHANNELS=many", "NCCL_MAX_NCHANNELS=65", "NCCL_MIN_NCHANNELS=-1",
		"NCCL_BUFFSIZE=4M", "NCCL_BUFFSIZE=255", "NCCL_DEBUG=LOUD", "NCCL_NET_GDR_LEVEL=NEAR",
		"NCCL_IB_HCA=^", "NCCL_IB_HCA==", "NCCL_IB_HCA=,", "NCCL_IB_HCA=mlx5_0:x", "NCCL_IB_GID_INDEX=first", "NCCL_IB_TC=256",
		"NCCL_IB_TIMEOUT=0", "NCCL_IB_RETRY_CNT=8", "NCCL_IB_PKEY=-1", "NCCL_IB_QPS_PER_CONNECTION=17",
	} {
		name, _, _ := strings.Cut(set, "=")
		if v, err := readVariables(environ(set)); err == nil || !strings.HasPrefix(err.Error(), set+": ") {
			t.Errorf("%s gives %+v, %v: want an error that begins with %s", set, v, err, name)
		}
	}
	if _, err := readVariables(environ("NCCL_MIN_NCHANNELS=4", "NCCL_MAX_NCHANNELS=2")); err == nil || !strings.Contains(err.Error(), "NCCL_MAX_NCHANNELS") {
		t.Errorf("at least 4 and at most 2 channels: %v", err)
	}
	if err := CheckVariables(environ("NCCL_IB_TC=x", "NCCL_ALGO=rnig", "NCCL_DEBUG=INFO", "NCCL_IB_HCA=^")); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("three wrong variables: %v, want a line for each", err)
	}
	if v, err := readVariables(environ("NCCL_ALGO=", "NCCL_BUFFSIZE= ", "NCCL_IB_HCA= ")); err != nil || !reflect.DeepEqual(v, variables{}) {
		t.Errorf("empty variables give %+v, %v", v, err)
	}
}

func TestNumbersOfVariables(t *testing.T) {
	v, err := readVariables(environ("NCCL_MIN_NCHANNELS=4", "NCCL_MAX_NCHANNELS=0x8", "NCCL_BUFFSIZE=4194304", "NCCL_DEBUG=info"))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]int{1: 4, 6: 6, 20: 8} {
		if got := v.connections(n); got != want {
			t.Errorf("%d connections become %d, want %d", n, got, want)
		}
	}
	if v.chunk() != 1<<20 || !v.talks() {
		t.Errorf("chunks of %d bytes, talks %v: NCCL's own buffer size is gorun's own chunk, and INFO talks", v.chunk(), v.talks())
	}
	none := variables{debug: "WARN"}
	if none.connections(2) != 2 || none.talks() {
		t.Error("without variables something changes")
	}
}

func TestFamilies(t *testing.T) {
	all := candidates(transport.AllReduce)
	for text, want := range map[string]string{
		"ring":                            "AllReduce [ring], Broadcast [chain]",
		"Tree":                            "AllReduce [doubling], Broadcast [tree]",
		"^ring":                           "AllReduce [oneshot doubling direct], Broadcast [tree]",
		"^ring,tree":                      "AllReduce [oneshot direct], Broadcast none",
		"ring,tree":                       "AllReduce [doubling ring], Broadcast [tree chain]",
		"nvls":                            "AllReduce none, Broadcast none",
		"^nvls":                           "AllReduce [oneshot doubling direct ring], Broadcast [tree chain]",
		"ring;allreduce:tree,nvls":        "AllReduce [doubling], Broadcast [chain]",
		"allreduce:tree;ring":             "AllReduce [doubling], Broadcast [chain]",
		"broadcast:ring ; allgather:pat ": "AllReduce [oneshot doubling direct ring], Broadcast [chain]",
	} {
		rules, err := parseFamilies(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		show := func(k transport.Kind) string {
			list, ok := rules.allow(k, candidates(k))
			if !ok {
				if !reflect.DeepEqual(list, candidates(k)) {
					t.Errorf("%s: %s allows none, and the list is %v", text, k, list)
				}
				return k.String() + " none"
			}
			return fmt.Sprintf("%s %v", k, list)
		}
		if got := show(transport.AllReduce) + ", " + show(transport.Broadcast); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if list, ok := familyRules(nil).allow(transport.AllReduce, all); !ok || len(list) != len(all) {
		t.Error("no rule forbids something")
	}
}

func TestInterfaceRules(t *testing.T) {
	host := []card{{"docker0", true, false}, {"eth0", false, true}, {"eth1", false, false}, {"eth10", false, false}, {"veth1", true, false}}
	for _, c := range []struct{ text, want string }{
		{"eth", "eth1"}, // eth0 has no carrier
		{"eth0", "eth0"},
		{"=eth10", "eth10"},
		{"=eth", ""},
		{"ib,eth10", "eth10"},
		{"^docker,veth", "eth1"},
		{"^=eth1", "eth10"},
		{"^eth", "docker0"},
		{"^d,e,v", ""},
		{"veth", "veth1"},
	} {
		rule, err := parseInterfaces(c.text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := rule.choose(host, false)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s leaves %q, %v: want %q", c.text, got, err, c.want)
		}
		if c.want == "" && !strings.Contains(fmt.Sprint(err), "eth10") {
			t.Errorf("%s: %v does not say what there is", c.text, err)
		}
	}
	lo, err := parseInterfaces("lo")
	if err != nil {
		t.Fatal(err)
	}
	if name, err := lo.choose(host, true); name != "" || err != nil {
		t.Errorf("lo of ranks that share it is %q, %v: want no bound", name, err)
	}
	if name, err := lo.choose(host, false); err == nil {
		t.Errorf("lo of several hosts is %q", name)
	}
}

func TestInterfaceOf(t *testing.T) {
	for text, want := range map[string]string{"127.0.0.1": "lo", "eth7": "eth7", "192.0.2.1": ""} {
		if name, err := interfaceOf(text); name != want || (err == nil) != (want != "") {
			t.Errorf("%s is %q, %v: want %q", text, name, err, want)
		}
	}
}

// variablesGroup joins two ranks on two hosts, in as far as memory goes.
func variablesGroup(t *testing.T, o Options) ([]*Group, string, error) {
	t.Helper()
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil)) // rank 0 alone logs at this level
	o.Timeout = time.Minute
	groups, err := LocalOn([]string{"a", "b"}, o)
	t.Cleanup(func() {
		for _, g := range groups {
			g.Abort(errors.New("the test is over"))
			g.Close()
		}
	})
	return groups, log.String(), err
}

// Variables bear on what a group does, and an option goes before them.
func TestVariablesApply(t *testing.T) {
	for name, value := range map[string]string{
		"NCCL_ALGO": "ring", "NCCL_BUFFSIZE": "65536", "NCCL_MIN_NCHANNELS": "3", "NCCL_MAX_NCHANNELS": "3", "NCCL_SOCKET_IFNAME": "lo",
	} {
		t.Setenv(name, value)
	}
	groups, log, err := variablesGroup(t, Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := groups[0].engine.(*flat)
	c := call{}
	c.Kind, c.Count, c.DType = transport.AllReduce, 1, i32
	if a, _ := f.choose(&c); a != Ring || f.chunk != 16<<10 || log != "" {
		t.Errorf("takes %s with chunks of %d bytes, and says %q: want a ring, 16 KiB, and nothing", a, f.chunk, log)
	}
	groups, log, err = variablesGroup(t, Options{Algo: OneShot, Chunk: 1 << 12, Conns: 1, Interface: ""})
	if err != nil {
		t.Fatal(err)
	}
	f = groups[0].engine.(*flat)
	if a, _ := f.choose(&c); a != OneShot || f.chunk != 1<<12 {
		t.Errorf("takes %s with chunks of %d bytes: want what the options say", a, f.chunk)
	}
	for _, want := range []string{"algo oneshot goes before NCCL_ALGO", "chunk 4096 goes before NCCL_BUFFSIZE", "channels 1 goes before NCCL_MIN_NCHANNELS"} {
		if !strings.Contains(log, want) {
			t.Errorf("%q is not said: %s", want, log)
		}
	}
	t.Setenv("NCCL_ALGO", "allreduce:nvls")
	if _, log, err = variablesGroup(t, Options{}); err != nil || !strings.Contains(log, "NCCL_ALGO=allreduce:nvls leaves none") || strings.Count(log, "leaves none") != 1 {
		t.Errorf("%v: that AllReduce has no such algorithm is not said once: %s", err, log)
	}
	t.Setenv("NCCL_SOCKET_IFNAME", "=there-is-none")
	if _, _, err = variablesGroup(t, Options{}); err == nil || !strings.Contains(err.Error(), "NCCL_SOCKET_IFNAME==there-is-none: no interface") {
		t.Errorf("an interface that is not there: %v", err)
	}
	t.Setenv("NCCL_DEBUG", "LOUD")
	if _, _, err = variablesGroup(t, Options{}); err == nil || !strings.Contains(err.Error(), "NCCL_DEBUG=LOUD: want one of") {
		t.Errorf("a level that there is not: %v", err)
	}
}

// Shared memory has nothing that the variables could change, which is said.
func TestVariablesWithoutEffect(t *testing.T) {
	t.Setenv("NCCL_ALGO", "ring")
	t.Setenv("NCCL_SOCKET_IFNAME", "=there-is-none")
	t.Setenv("NCCL_NET_GDR_LEVEL", "PHB")
	t.Setenv("NCCL_IB_HCA", "mlx5")
	var log bytes.Buffer
	groups, err := LocalOn([]string{"a", "a"}, Options{Timeout: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		g.Abort(errors.New("the test is over"))
		g.Close()
	}
	for _, want := range []string{"NCCL_SOCKET_IFNAME, NCCL_ALGO, NCCL_IB_HCA: without effect on host memory", "NCCL_NET_GDR_LEVEL=PHB: without effect"} {
		if text := log.String(); !strings.Contains(text, want) {
			t.Errorf("%q is not said: %s", want, text)
		}
	}
}

// A value that means nothing ends a job of any transport, whatever the options say.
func TestVariablesAreReadByAllTransports(t *testing.T) {
	t.Setenv("NCCL_IB_TC", "many")
	for _, transport := range []string{"shm", "tcp", "rdma", "auto"} {
		o := Options{Transport: transport, RDMA: rdma.Settings{TrafficClass: 8}}
		if _, _, err := variablesGroup(t, o); err == nil || !strings.Contains(err.Error(), "NCCL_IB_TC=many: want a number from 0 to 255") {
			t.Errorf("%s: %v", transport, err)
		}
	}
}

// With NCCL_DEBUG=INFO the engine tells what it chooses.
func TestDebugTellsChoices(t *testing.T) {
	t.Setenv("NCCL_DEBUG", "INFO")
	var log bytes.Buffer
	groups, err := LocalOn([]string{"a", "b"}, Options{Timeout: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	var ranks sync.WaitGroup
	for _, g := range groups {
		ranks.Go(func() {
			c := &call{dst: make([]byte, 8), src: make([]byte, 8)}
			c.Kind, c.Count, c.DType, c.Root = transport.AllReduce, 2, i32, -1
			if err := errors.Join(g.place(here{}, c).Err(), g.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
	for _, want := range []string{"comm: algorithm", "comm: calls", "predicted="} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not told: %s", want, log.String())
		}
	}
}

// What is for links of one kind is said where the ranks go over something else.
func TestVariablesOfOtherLinks(t *testing.T) {
	for wire, want := range map[string]string{
		"tcp":  "NCCL_IB_HCA, NCCL_IB_TC: without effect on host memory, which goes over tcp: they choose devices of rdma, and how these send",
		"rdma": "NCCL_SOCKET_IFNAME, NCCL_MAX_NCHANNELS: without effect on host memory, which goes over rdma: they choose interfaces and connections of tcp",
	} {
		names := []string{"NCCL_SOCKET_IFNAME", "NCCL_BUFFSIZE", "NCCL_MAX_NCHANNELS", "NCCL_IB_HCA", "NCCL_IB_TC"}
		g := &Group{o: Options{nccl: &variables{names: names}}}
		g.wires.add("shm")
		g.wires.add(wire)
		var got []string
		g.tellLinks(func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) })
		if strings.Join(got, "\n") != want {
			t.Errorf("over %s: %q, want %q", wire, got, want)
		}
	}
}
