package train

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt"
	"github.com/gorun-dev/gorun/runtime/param"
)

// configFile is the job's settings in a checkpoint, for people to read.
const configFile = "config.yaml"

// state is a checkpoint's metadata: what a run needs beside the tensors to go on
// as if it had not stopped.
type state struct {
	Step int `json:"step"`
	// Applied is Step without the steps that were skipped.
	Applied int `json:"applied"`
	World   int `json:"world"`
	// Strategy is parallel.strategy; checkpoints from before there was a choice have none.
	Strategy string `json:"strategy,omitempty"`
	// Identity is what a resumed run must share, Data the fingerprint of what it
	// trains on.
	Identity config.Identity `json:"identity"`
	Data     string          `json:"data"`
	// Base is the fingerprint of the weights that the adapters are for; "" without.
	Base string `json:"base,omitempty"`
	// Order is the order of the gradient buckets, by the names of the files' tensors:
	// sums are formed alike only in the same buckets.
	Order []string `json:"bucket_order"`
	// Evaluations are those up to Step.
	Evaluations evaluations `json:"evaluations,omitzero"`
	// Backend is what the bits depend on beside that; another one rounds otherwise.
	Backend string `json:"backend"`
	// Products are the algorithms of the matrix products that were timed on a GPU: a
	// resumed run takes the same, whatever it would measure.
	Products []cublaslt.Choice `json:"products,omitempty"`
	// Links is what was measured of the links between the ranks, by which the algorithms
	// of their sums are chosen: a resumed run chooses alike.
	Links json.RawMessage `json:"links,omitempty"`
}

func (j *job) state() state {
	s := state{
		Step: j.done, Applied: j.optim.applied, World: j.size(), Strategy: j.cfg.Parallel.Strategy, Identity: j.cfg.Identity(j.size()),
		Data: j.fingerprint(), Base: j.base, Order: tensorOrder(j.model.Params(), j.keeper.Order()), Backend: j.backend,
		Evaluations: j.evals, Links: j.group.Tuning(),
	}
	if j.gpuOps != nil {
		s.Products = j.gpuOps.Products().Choices()
	}
	return s
}

// rounding names all that rounds: what multiplies, and on a GPU the card, what computes
// attention of the model's shape, and what adds up the gradients of several ranks.
// Where things lie on this machine is not part of it. It is asked once, when the job is
// opened, for NCCL says more of its ways as it takes them.
func (j *job) rounding() (string, error) {
	if j.gpuOps == nil {
		return j.ops.Backend(), nil
	}
	s := j.arch.shape
	attention, err := j.gpuOps.Implementation(j.env.B, j.env.T, s.Heads, s.KVHeads, s.HeadDim)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s, %s, attention: %s", j.gpu.Name(), j.ops.Backend(), attention)
	if j.size() > 1 {
		text += ", sums: " + j.group.GPUEngine()
	}
	return text, nil
}

func (j *job) fingerprint() string { return fmt.Sprintf("%016x", j.data.Train.Info().Fingerprint) }

// baseOf is the fingerprint of the weights in model.path where a checkpoint does not hold
// them but adapters alone, else "".
func baseOf(a *architecture) (string, error) {
	if a.adapters == nil || a.weights == nil {
		return "", nil
	}
	print, err := a.weights.Fingerprint()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%016x", print), nil
}

// otherBase says in a line that adapters of a checkpoint are for other weights than mine,
// or "". Checkpoints from before there were fingerprints of them do not tell.
func (s *state) otherBase(mine string) string {
	if s.Base == "" || s.Base == mine {
		return ""
	}
	return fmt.Sprintf("the weights in model.path, which the adapters are for: fingerprint %s in the checkpoint, now %s", s.Base, mine)
}

func (j *job) checkpoints() string { return j.path("checkpoints") }

func (j *job) checkpointPath(step int) string {
	return filepath.Join(j.checkpoints(), fmt.Sprintf("step-%08d", step))
}

// writeConfig writes the job's settings, so that a checkpoint says what made it.
func (j *job) writeConfig(w io.Writer) error {
	b, err := j.cfg.Marshal()
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// fallback says what there is where the last checkpoint could not be written.
func (j *job) fallback() string {
	refs, err := checkpoint.List(j.checkpoints())
	if err != nil || len(refs) == 0 {
		return "and there is none before it"
	}
	return fmt.Sprintf("and the newest is of step %d (--resume goes on from it)", refs[len(refs)-1].Step)
}

// tensorOrder names the parts of the parameters in order.
func tensorOrder(params []*param.Param, order []string) (names []string) {
	byName := map[string]*param.Param{}
	for _, p := range params {
		byName[p.Name] = p
	}
	for _, name := range order {
		for _, part := range byName[name].Split() {
			names = append(names, part.Name)
		}
	}
	return names
}

// paramOrder is the inverse of tensorOrder: each parameter where its first part is
// named.
func paramOrder(params []*param.Param, names []string) (order []string, err error) {
	whole := map[string]*param.Param{}
	for _, p := range params {
		for _, part := range p.Split() {
			whole[part.Name] = p
		}
	}
	seen := map[*param.Param]bool{}
	for _, name := range names {
		p := whole[name]
		if p == nil {
			return nil, fmt.Errorf("the order of its gradient buckets names %s, which the model does not have", name)
		}
		if !seen[p] {
			seen[p] = true
			order = append(order, p.Name)
		}
	}
	return order, nil
}
