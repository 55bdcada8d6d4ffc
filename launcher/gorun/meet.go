package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// defaultMasterPort is the program's port where only its host is given.
const defaultMasterPort = 29500

// meet works out where the nodes meet and what the program sees as MASTER_ADDR
// and MASTER_PORT: from the flags, else MASTER_ADDR and MASTER_PORT, else Slurm.
// MASTER_PORT stays free for the program, so the store of nodes that are told no
// other place takes the port above it.
func (l *launch) meet(getenv func(string) string) (endpoint string, err error) {
	addr, port := l.masterAddr, l.masterPort
	if addr == "" && l.rdzv == "" {
		addr = getenv("MASTER_ADDR")
	}
	if v := getenv("MASTER_PORT"); port == 0 && v != "" && l.rdzv == "" {
		if port, err = strconv.Atoi(v); err != nil || port < 1 || port > 65535 {
			return "", fmt.Errorf("MASTER_PORT=%q is no port", v)
		}
	}
	if addr == "" && l.rdzv == "" {
		if addr, port, err = slurmMaster(l.nnodes, port, getenv); err != nil {
			return "", err
		}
	}
	if l.rdzv != "" {
		if err := checkEndpoint(l.rdzv); err != nil {
			return "", err
		}
		l.masterAddr, l.masterPort = addr, port
		return l.rdzv, nil
	}
	if addr == "" {
		return "", fmt.Errorf("--nnodes %d: the nodes need a place to meet: give --rdzv host:port with an address of node 0 on every node, or --master-addr (MASTER_ADDR), or start gorun under srun", l.nnodes)
	}
	if port == 0 {
		port = defaultMasterPort
	}
	if port == 65535 {
		return "", errors.New("--master-port 65535: gorun's own port would be the one above it; choose a lower one, or give --rdzv")
	}
	l.masterAddr, l.masterPort = addr, port
	return net.JoinHostPort(addr, strconv.Itoa(port+1)), nil
}

func checkEndpoint(endpoint string) error {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil || host == "" {
		return fmt.Errorf("--rdzv %q: want host:port, such as 10.0.0.1:29400 or [fd00::1]:29400", endpoint)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("--rdzv %q: %q is no port", endpoint, port)
	}
	return nil
}

// slurmNodeRank reads the node's rank from Slurm's environment; 0 without Slurm.
func slurmNodeRank(getenv func(string) string) (int, error) {
	v := getenv("SLURM_NODEID")
	if v == "" {
		return 0, nil
	}
	rank, err := strconv.Atoi(v)
	if err != nil {
		return 0, fmt.Errorf("SLURM_NODEID=%q is no number; give --node-rank", v)
	}
	return rank, nil
}

// slurmMaster derives node 0 and a port from the step that srun started; an empty
// address without Slurm. The port depends on the job, so that two jobs on a node
// do not meet.
func slurmMaster(nnodes, port int, getenv func(string) string) (string, int, error) {
	nodes := getenv("SLURM_STEP_NODELIST")
	if nodes == "" {
		nodes = getenv("SLURM_JOB_NODELIST")
	}
	if nodes == "" {
		return "", port, nil
	}
	count := getenv("SLURM_STEP_NUM_NODES")
	if count == "" {
		count = getenv("SLURM_NNODES")
	}
	if count != "" && count != strconv.Itoa(nnodes) {
		return "", 0, fmt.Errorf("--nnodes %d, but Slurm's step has %s nodes (%s)", nnodes, count, nodes)
	}
	if port == 0 {
		id, err := strconv.Atoi(getenv("SLURM_JOB_ID"))
		if err != nil {
			return "", 0, fmt.Errorf("SLURM_JOB_ID=%q is no number; give --rdzv", getenv("SLURM_JOB_ID"))
		}
		port = 20000 + 2*(id%5000)
	}
	return firstSlurmHost(nodes), port, nil
}

// firstSlurmHost expands the first host of a list such as "gpu[01-04,07],login1".
func firstSlurmHost(list string) string {
	open := strings.IndexByte(list, '[')
	if comma := strings.IndexByte(list, ','); open < 0 || comma >= 0 && comma < open {
		first, _, _ := strings.Cut(list, ",")
		return first
	}
	inside, after, _ := strings.Cut(list[open+1:], "]")
	first := inside[:len(inside)-len(strings.TrimLeft(inside, "0123456789"))]
	return list[:open] + first + firstSlurmHost(after)
}

// needToken refuses several nodes without a token.
func needToken(token string) error {
	if token != "" {
		return nil
	}
	return errors.New("several nodes need the job's token, the same on each, so that nobody else gets in: make one with\n" +
		"  head -c 18 /dev/urandom | base64 > token\n" +
		"and give each node a copy: --token-file token, or GORUN_TOKEN=$(cat token)")
}
