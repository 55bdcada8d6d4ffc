package agent

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gorun-dev/gorun/launcher/cluster"
	"github.com/gorun-dev/gorun/launcher/status"
)

// The descriptors of a worker's pipes beside stdin, stdout and stderr.
const (
	statusFD = 3 // see status.FDVariable
	stopFD   = 4 // see status.StopVariable
)

// environment returns what a worker finds in its environment beside the agent's
// own variables: torchrun's names, and ours for the store and the pipes.
func environment(s *Spec, l *cluster.Layout, attempt, localRank int, logDir string) []string {
	node := l.Nodes[l.Self]
	rank := l.Base(l.Self) + localRank
	env := []string{
		fmt.Sprint("RANK=", rank),
		fmt.Sprint("LOCAL_RANK=", localRank),
		fmt.Sprint("WORLD_SIZE=", l.World()),
		fmt.Sprint("LOCAL_WORLD_SIZE=", node.NProc),
		fmt.Sprint("GROUP_RANK=", l.Self),
		fmt.Sprint("GROUP_WORLD_SIZE=", len(l.Nodes)),
		fmt.Sprint("ROLE_RANK=", rank),
		fmt.Sprint("ROLE_WORLD_SIZE=", l.World()),
		"ROLE_NAME=default",
		"MASTER_ADDR=" + l.MasterAddr,
		fmt.Sprint("MASTER_PORT=", l.MasterPort),
		fmt.Sprint("TORCHELASTIC_RESTART_COUNT=", attempt),
		fmt.Sprint("TORCHELASTIC_MAX_RESTARTS=", s.MaxRestarts),
		"TORCHELASTIC_RUN_ID=" + l.Job,
		"TORCHELASTIC_USE_AGENT_STORE=False",
		"TORCHELASTIC_ERROR_FILE=" + filepath.Join(logDir, errorFile),
		"TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
		"GORUN_STORE=" + l.StoreAddr,
		"GORUN_TOKEN=" + s.Token,
		"GORUN_JOB=" + l.Job,
		fmt.Sprint("GORUN_ATTEMPT=", attempt),
		fmt.Sprint(status.FDVariable, "=", statusFD),
		fmt.Sprint(status.StopVariable, "=", stopFD),
	}
	if LimitsThreads(node.NProc) {
		env = append(env, "OMP_NUM_THREADS=1")
	}
	if _, set := os.LookupEnv("PYTHONUNBUFFERED"); !set {
		// Its stdout is a pipe here; lines should come when they are printed.
		env = append(env, "PYTHONUNBUFFERED=1")
	}
	return env
}

// LimitsThreads says whether workers get OMP_NUM_THREADS=1: several on a host
// with a thread for each core each would fight for the cores.
func LimitsThreads(nproc int) bool {
	_, set := os.LookupEnv("OMP_NUM_THREADS")
	return nproc > 1 && !set
}
