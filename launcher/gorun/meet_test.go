package main

import (
	"strings"
	"testing"
)

func TestMeet(t *testing.T) {
	slurm := map[string]string{"SLURM_STEP_NODELIST": "gpu[03-04,07]", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "12345"}
	for _, c := range []struct {
		name     string
		l        launch
		env      map[string]string
		endpoint string
		addr     string // MASTER_ADDR; "" is found out while joining
		port     int    // MASTER_PORT; 0 is a free one
		wrong    string
	}{
		{"rdzv", launch{rdzv: "a:1"}, slurm, "a:1", "", 0, ""},
		{"rdzv, port for the program", launch{rdzv: "a:1", masterPort: 7}, nil, "a:1", "", 7, ""},
		{"rdzv wins over the environment", launch{rdzv: "a:1"}, map[string]string{"MASTER_ADDR": "b", "MASTER_PORT": "3"}, "a:1", "", 0, ""},
		{"rdzv over IPv6", launch{rdzv: "[fd00::1]:29400"}, nil, "[fd00::1]:29400", "", 0, ""},
		{"rdzv without a port", launch{rdzv: "a"}, nil, "", "", 0, "want host:port"},
		{"rdzv with a word", launch{rdzv: "a:b"}, nil, "", "", 0, "is no port"},
		{"flags", launch{masterAddr: "h", masterPort: 29000}, slurm, "h:29001", "h", 29000, ""},
		{"flag, default port", launch{masterAddr: "fd00::1"}, nil, "[fd00::1]:29501", "fd00::1", 29500, ""},
		{"environment", launch{}, map[string]string{"MASTER_ADDR": "h", "MASTER_PORT": "29000"}, "h:29001", "h", 29000, ""},
		{"environment with a bad port", launch{}, map[string]string{"MASTER_ADDR": "h", "MASTER_PORT": "x"}, "", "", 0, "MASTER_PORT"},
		{"last port", launch{masterAddr: "h", masterPort: 65535}, nil, "", "", 0, "choose a lower one"},
		{"slurm", launch{nnodes: 2}, slurm, "gpu03:24691", "gpu03", 24690, ""},
		{"slurm with other nodes", launch{nnodes: 3}, slurm, "", "", 0, "Slurm's step has 2 nodes"},
		{"nothing", launch{nnodes: 2}, nil, "", "", 0, "give --rdzv host:port"},
	} {
		endpoint, err := c.l.meet(func(k string) string { return c.env[k] })
		switch {
		case c.wrong != "":
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: error %v, want one about %q", c.name, err, c.wrong)
			}
		case err != nil || endpoint != c.endpoint || c.l.masterAddr != c.addr || c.l.masterPort != c.port:
			t.Errorf("%s: %q %q %d, %v; want %q %q %d", c.name, endpoint, c.l.masterAddr, c.l.masterPort, err, c.endpoint, c.addr, c.port)
		}
	}
}

func TestFirstSlurmHost(t *testing.T) {
	for list, want := range map[string]string{
		"a": "a", "a,b[1-2]": "a", "n[01-04]": "n01", "n[7,9],x": "n7", "r[2-3]n[1-4],y": "r2n1", "r[2-3]n1,y": "r2n1",
	} {
		if got := firstSlurmHost(list); got != want {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}
