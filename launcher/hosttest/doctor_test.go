package hosttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/launcher/doctor"
	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// firewall makes a host drop what comes in for TCP ports, from the first to the last.
func firewall(t *testing.T, h *netns.Host, first, last int) {
	t.Helper()
	// Classic BPF over an Ethernet frame of IPv4: the port stands 36 bytes in.
	program := fmt.Sprintf("5,40 0 0 36,53 0 1 %d,37 0 1 %d,6 0 0 0,6 0 0 2", first, last)
	for _, args := range [][]string{
		{"qdisc", "add", "dev", "eth0", "clsact"},
		{"filter", "add", "dev", "eth0", "ingress", "protocol", "ip", "bpf", "direct-action", "bytecode", program},
	} {
		if out, err := h.Command("tc", args...).CombinedOutput(); err != nil {
			t.Fatalf("tc %v: %v\n%s", args, err, out)
		}
	}
}

// consult runs gorun doctor on all hosts at once and returns the report of each, and
// its exit status; all but host 0 have none unless they cannot meet.
func consult(t *testing.T, hosts []*netns.Host, args ...string) (reports []*doctor.Report, codes []int) {
	t.Helper()
	command, err := gorun()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	reports, codes = make([]*doctor.Report, len(hosts)), make([]int, len(hosts))
	var all []*exec.Cmd
	var stdout, stderr []*bytes.Buffer
	for i, h := range hosts {
		line := append([]string{"doctor", "--json", "--nnodes", fmt.Sprint(len(hosts)), "--node-rank", fmt.Sprint(i), "--rdzv", hosts[0].Addr.String() + ":29400"}, args...)
		cmd := h.Command(command, line...)
		out, said := &bytes.Buffer{}, &bytes.Buffer{}
		cmd.Env = append(os.Environ(), "GORUN_TOKEN=only for this test")
		cmd.Stdout, cmd.Stderr = out, said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all, stdout, stderr = append(all, cmd), append(stdout, out), append(stderr, said)
	}
	for i, cmd := range all {
		cmd.Wait() // the exit status says it
		codes[i] = cmd.ProcessState.ExitCode()
		if stdout[i].Len() == 0 {
			continue
		}
		reports[i] = &doctor.Report{}
		if err := json.Unmarshal(stdout[i].Bytes(), reports[i]); err != nil {
			t.Fatalf("%s: %v\n%s%s", hosts[i].Name, err, stdout[i], stderr[i])
		}
	}
	t.Logf("after %s", time.Since(begin).Round(10*time.Millisecond))
	if reports[0] == nil {
		t.Fatalf("no report: %v\n%s", codes, stderr[0])
	}
	return reports, codes
}

// finding returns the one of a check whose words match, of a host and about a peer.
func finding(t *testing.T, r *doctor.Report, check, host, peer, pattern string) doctor.Finding {
	t.Helper()
	want := regexp.MustCompile(pattern)
	for _, f := range r.Findings {
		if f.Check == check && f.Where.Host == host && f.Where.Peer == peer && want.MatchString(f.What+" / "+f.Evidence) {
			return f
		}
	}
	t.Fatalf("%s of %s to %q: nothing like %q in:\n%s", check, host, peer, pattern, text(r))
	return doctor.Finding{}
}

func text(r *doctor.Report) string {
	var b strings.Builder
	r.WriteText(&b, true) // never fails
	return b.String()
}

// nothing fails where a check has found anything worse than a note.
func nothing(t *testing.T, r *doctor.Report, checks ...string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Severity > doctor.Note && slices.Contains(checks, f.Check) {
			t.Errorf("found, though nothing is wrong: %+v", f)
		}
	}
}

// between are the checks of what lies between hosts.
var between = []string{"dials", "ports", "mtu", "clock", "meeting", "versions", "nics"}

// Hosts between which all is well: every dial is there with both of its addresses.
// That the hosts' names mean loopback is said, and that their interfaces are virtual
// does no harm.
func TestDoctorFindsNothingBetweenHosts(t *testing.T) {
	t.Parallel()
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %t", v6), func(t *testing.T) {
			t.Parallel()
			hosts := netns.New(t, netns.Options{Hosts: 3, IPv6: v6})
			address := func(h *netns.Host) string { return h.Addr.String() }
			rdzv := address(hosts[0]) + ":29400"
			if v6 {
				rdzv = "[" + address(hosts[0]) + "]:29400"
			}
			reports, codes := consult(t, hosts, "--ports", "40000-40003", "--rdzv", rdzv)
			r := reports[0]
			nothing(t, r, between...)
			if reports[1] != nil || reports[2] != nil || codes[0] != r.Status() || codes[1] != codes[0] || codes[2] != codes[0] {
				t.Errorf("reports %v, exit statuses %v, want one report and %d", reports, codes, r.Status())
			}
			if len(r.Dials) != 6 {
				t.Errorf("%d dials, want 6:\n%s", len(r.Dials), text(r))
			}
			for _, d := range r.Dials {
				from, to := hosts[d.From[4]-'0'], hosts[d.To[4]-'0']
				if d.Outcome != doctor.Connected || d.Local != from.Addr || d.Remote.Addr() != to.Addr || d.Interface != "eth0" || d.Remote.Port() != 40000 {
					t.Errorf("%+v", d)
				}
			}
			finding(t, r, "hostname", "host1", "", `the host's name means 127\.0\.1\.1 here`)
		})
	}
}

// A network that looks as if both hosts were on it, and is one of containers on each.
func TestDoctorFindsDecoys(t *testing.T) {
	t.Parallel()
	reports, _ := consult(t, netns.New(t, netns.Options{Decoys: true}))
	r := reports[0]
	f := finding(t, r, "dials", "host0", "host1", `tries (.*, )?br-swarm.* of host1 before eth0, in vain`)
	if !strings.Contains(f.Fix, "comm.interface=eth0") {
		t.Errorf("%+v", f)
	}
	finding(t, r, "interfaces", "host1", "", `has an address, and is down / down0`)
	finding(t, r, "interfaces", "host0", "", `br-x \(bridge, `)
	for _, d := range r.Dials {
		if strings.HasPrefix(d.Remote.String(), "169.254.") || d.Interface == "docker0" || d.Interface == "down0" {
			t.Errorf("dialled: %+v", d)
		}
	}
	nothing(t, r, "mtu", "clock", "meeting")
}

// The interface that is named is the one that is probed; one that is not there is said.
func TestDoctorTakesTheInterface(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"eth0": "", "nosuch0": `names an interface that is not there`, "down0": `is down, or has no address`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reports, _ := consult(t, netns.New(t, netns.Options{Decoys: true}), "--interface", name)
			if want == "" {
				nothing(t, reports[0], append(between, "variables")...)
				return
			}
			finding(t, reports[0], "variables", "host1", "", want)
		})
	}
}

// Some ports of the range are dropped on one host.
func TestDoctorFindsBlockedPorts(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{})
	firewall(t, hosts[1], 40002, 40004)
	reports, _ := consult(t, hosts, "--ports", "40000-40005")
	f := finding(t, reports[0], "ports", "host0", "host1", `^3 of the 6 ports of comm\.ports cannot be reached on host1: 40002-40004 \(filtered: no answer`)
	if f.Severity != doctor.Error || !strings.Contains(f.Evidence, "from 10.99.0.1 to 10.99.0.2:40002 (eth0): filtered after ") {
		t.Errorf("%+v", f)
	}
	nothing(t, reports[0], "dials", "mtu", "clock", "meeting")
	for _, f := range reports[0].Findings {
		if f.Check == "ports" && f.Where.Host != "host0" {
			t.Errorf("the other way is open: %+v", f)
		}
	}
}

// All ports but that of the meeting are dropped on one host.
func TestDoctorFindsFirewall(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{})
	firewall(t, hosts[0], 29401, 65535-1) // answers to host0's own dials among them
	reports, _ := consult(t, hosts, "--ports", "30000-30002")
	f := finding(t, reports[0], "dials", "host1", "host0", `^host1 cannot reach host0: filtered`)
	if f.Severity != doctor.Error {
		t.Errorf("%+v", f)
	}
}

// Long packets vanish, and the longest that do not are named; the report itself comes
// through all the same.
func TestDoctorFindsMTUHole(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{MTU: 9000})
	swallow(hosts[0])
	reports, _ := consult(t, hosts)
	for i, h := range hosts {
		f := finding(t, reports[0], "mtu", h.Name, hosts[1-i].Name, `^packets of more than 1500 bytes vanish on the way to host\d, though the interfaces take 9000`)
		if f.Severity != doctor.Error || f.Where.Interface != "eth0" {
			t.Errorf("%+v", f)
		}
	}
}

// A short MTU on one host alone is no hole for TCP: both ends agree on the shorter one.
func TestDoctorAllowsShortMTU(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{MTU: 9000})
	hosts[1].SetMTU(1500)
	reports, _ := consult(t, hosts)
	nothing(t, reports[0], "mtu", "dials", "meeting")
}

// Hosts that cannot meet each say so, look at themselves, and end in time.
func TestDoctorWithoutMeeting(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{})
	hosts[1].Unplug()
	reports, codes := consult(t, hosts, "--join-timeout", "5s")
	for i, h := range hosts {
		if reports[i] == nil || codes[i] != reports[i].Status() {
			t.Fatalf("%s: report %v, exit status %d", h.Name, reports[i], codes[i])
		}
		f := finding(t, reports[i], "meeting", h.Name, "", `the hosts cannot meet at 10\.99\.0\.1:29400.* / node \d of 2 cannot join: `)
		if f.Severity != doctor.Error {
			t.Errorf("%+v", f)
		}
		finding(t, reports[i], "hostname", h.Name, "", `127\.0\.1\.1`)
	}
	finding(t, reports[1], "meeting", "host1", "", `10\.99\.0\.1:29400 cannot be reached`)
}

// A small /dev/shm is one of the workers' host.
func TestDoctorFindsSmallShm(t *testing.T) {
	t.Parallel()
	reports, _ := consult(t, netns.New(t, netns.Options{Shm: 1 << 20}), "--nproc", "2")
	finding(t, reports[0], "shm", "host1", "", `/dev/shm has 1 MiB free, and 2 workers`)
}

// A host that outlives node 0 does not wait for what will never come.
func TestDoctorOutlivesNodeZero(t *testing.T) {
	t.Parallel()
	hosts := netns.New(t, netns.Options{MTU: 9000})
	swallow(hosts[0]) // so that the examination takes a while
	j := start(t, launch{hosts: hosts, args: []string{"doctor"}})
	j.agents[1].await(t, "has the console")
	hosts[0].Crash()
	j.wait(afterSilence)
	j.agents[1].reports(t, 125, `cannot reach node 0's store|node 0 .* has ended, or is cut off`)
}
