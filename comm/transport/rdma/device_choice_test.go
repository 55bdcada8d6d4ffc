package rdma

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

func TestWhichAddress(t *testing.T) {
	gid := func(i int, addr string, typ verbs.GIDType) verbs.GID {
		return verbs.GID{Index: i, Port: 1, Addr: netip.MustParseAddr(addr), Type: typ}
	}
	local, v1, v2 := gid(0, "fe80::1", verbs.TypeRoCEv2), gid(1, "::ffff:10.0.0.1", verbs.TypeRoCEv1), gid(2, "::ffff:10.0.0.1", verbs.TypeRoCEv2)
	global, other := gid(3, "2001:db8::1", verbs.TypeRoCEv2), verbs.GID{Index: 4, Port: 2, Addr: v2.Addr, Type: verbs.TypeRoCEv2}
	ib, auto := gid(0, "fe80::2:c903:0:1", verbs.TypeIB), gid(5, "::ffff:169.254.1.1", verbs.TypeRoCEv2)
	for _, c := range []struct {
		link  verbs.LinkLayer
		gids  []verbs.GID
		want  int // asked for
		index int // -1: an error
		says  string
	}{
		{verbs.Ethernet, []verbs.GID{other, local, v1, global, v2}, -1, 2, ""},
		{verbs.Ethernet, []verbs.GID{local, v1, global, auto}, -1, 3, ""},
		{verbs.Ethernet, []verbs.GID{v1, local}, -1, 0, ""},
		{verbs.Ethernet, []verbs.GID{v1}, -1, -1, "RoCE v1"},
		{verbs.Ethernet, []verbs.GID{other}, -1, -1, "no address"},
		{verbs.Ethernet, []verbs.GID{local, v1, v2}, 1, 1, ""},
		{verbs.Ethernet, []verbs.GID{local, v2}, 4, -1, "no index 4"},
		{verbs.InfiniBand, []verbs.GID{ib, gid(1, "fe80::9", verbs.TypeIB)}, -1, 0, ""},
	} {
		g, err := chooseGID(c.gids, 1, c.link, c.want)
		if c.index >= 0 && (err != nil || g.Index != c.index) {
			t.Errorf("%v, %d wanted: got %v, %v", c.gids, c.want, g, err)
		}
		if c.index < 0 && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v, %d wanted: got %v, want an error with %q", c.gids, c.want, err, c.says)
		}
	}
}

func TestWhichDevices(t *testing.T) {
	for list, want := range map[string]string{
		"": "fake0 fake1", "fake": "fake0 fake1", "fake1": "fake1", "=fake1,=none": "fake1", "^fake0": "fake1", "^=fake": "fake0 fake1",
		"fake0:1": "fake0", "fake0:2": "", "^fake0:1": "fake1", "mlx5": "", "^fake": "",
	} {
		ports, err := usable(newFabric(t).API(), Settings{HCA: list})
		var names []string
		for _, p := range ports {
			names = append(names, p.Device)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q gives %q, want %q (%v)", list, got, want, err)
		}
		if want == "" && (!errors.Is(err, ErrNone) || !strings.Contains(err.Error(), list)) {
			t.Errorf("%q: %v", list, err)
		}
	}
	for _, bad := range []string{"mlx5_0:x", "mlx5_0:0", ":1"} {
		if err := (Settings{HCA: bad}).Check(); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	f := newFabric(t)
	f.Port.State = 1
	if _, err := Usable(f.API(), Settings{}); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "fake1 port 1 is down") {
		t.Errorf("a port that is down: %v", err)
	}
}

func TestVariables(t *testing.T) {
	env := map[string]string{"NCCL_IB_HCA": "fake1", "NCCL_IB_GID_INDEX": "0", "NCCL_IB_TC": "106", "NCCL_IB_TIMEOUT": "18",
		"NCCL_IB_RETRY_CNT": "0", "NCCL_IB_PKEY": "2", "NCCL_IB_QPS_PER_CONNECTION": "4"}
	get := func(name string) string { return env[name] }
	s, err := Settings{}.FromEnvironment(get)
	if want := (Settings{HCA: "fake1", GID: 1, TrafficClass: 106, Timeout: 18, Retries: 1, PKey: 2, QPs: 4}); err != nil || s != want {
		t.Errorf("got %+v, %v", s, err)
	}
	own := Settings{HCA: "fake0", GID: 2, TrafficClass: 8, Timeout: 14, Retries: 3, PKey: 1, QPs: 1}
	if s, err := own.FromEnvironment(get); err != nil || s != own {
		t.Errorf("settings do not win: %+v, %v", s, err)
	}
	for name, bad := range map[string]string{"NCCL_IB_GID_INDEX": "-2", "NCCL_IB_TC": "256", "NCCL_IB_TIMEOUT": "32", "NCCL_IB_RETRY_CNT": "8",
		"NCCL_IB_PKEY": "x", "NCCL_IB_QPS_PER_CONNECTION": "0", "NCCL_IB_HCA": "a:b"} {
		_, err := Settings{}.FromEnvironment(func(n string) string {
			if n == name {
				return bad
			}
			return ""
		})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s=%s: %v", name, bad, err)
		}
	}
}

// What a queue pair is told: the smaller MTU, and the settings.
func TestSettingsReachTheQueuePairs(t *testing.T) {
	f := newFabric(t)
	api := f.API()
	small := *api
	small.Port = func(c verbs.Context, n uint8) (verbs.Port, error) {
		p, err := api.Port(c, n)
		p.MTU = 3
		return p, err
	}
	s := Settings{GID: 2, TrafficClass: 106, Timeout: 14, Retries: 4, QPs: 3}
	_, errs := tryJoin(t, 2, func(rank int) Options {
		if rank == 1 {
			return Options{API: &small, Settings: s}
		}
		return Options{API: api, Settings: s}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	qps := f.Peers()
	if len(qps) != 6 {
		t.Errorf("%d queue pairs", len(qps))
	}
	for _, a := range qps {
		if a.MTU != 3 || a.GID != 1 || a.Traffic != 106 || a.Timeout != 14 || a.Retries != 3 || !a.Global || a.RNR != 7 || a.PeerPSN == 0 && a.PSN == 0 {
			t.Errorf("%+v", a)
		}
	}
	if len(qps) == 0 {
		t.Fatal("nothing is connected")
	}
}
