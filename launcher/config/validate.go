package config

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/transport/rdma"
)

// Validate checks a configuration that was made or changed by a program; Load
// has called it already. The error is an Errors.
func (c *Config) Validate() error {
	var errs Errors
	for _, p := range c.problems() {
		errs = append(errs, place{file: "configuration"}.errorf(p.keys[0], "%s", p.msg))
	}
	if len(errs) == 0 {
		return nil
	}
	return errs
}

// A problem is a wrong value, or values that cannot go together. The first key
// is the one to report it at.
type problem struct {
	keys []string
	msg  string
}

type problems []problem

func (ps *problems) add(keys, format string, args ...any) {
	*ps = append(*ps, problem{strings.Fields(keys), fmt.Sprintf(format, args...)})
}

func (c *Config) problems() []problem {
	var ps problems
	for _, f := range leaves {
		if f.describesShape() && c.Model.Path != "" {
			continue // what is given is compared with the folder's by whoever opens it
		}
		if value, wrong := f.check(f.in(c)); wrong != "" {
			ps.add(f.path, "%s %s", value, wrong)
		}
	}
	if len(ps) > 0 {
		return ps // what follows may divide by values that are wrong
	}
	if c.Name == "" || strings.ContainsAny(c.Name, "/\n") {
		ps.add("name", "%q is not a name: want a word without slashes", c.Name)
	}
	if c.Output == "" {
		ps.add("output", "is empty; name a folder")
	}
	switch {
	case c.Model.Classifies():
		c.checkClassifier(&ps)
	case c.Model.Path == "":
		c.checkShape(&ps)
	}
	c.checkData(&ps)
	c.checkComm(&ps)
	c.checkParallel(&ps)
	c.checkTrain(&ps)
	c.checkLora(&ps)
	return ps
}

// checkShape holds the numbers of a model against each other.
func (c *Config) checkShape(ps *problems) {
	m := &c.Model
	switch {
	case m.HeadDim == 0:
		ps.add("model.hidden model.heads", "%d is no multiple of model.heads = %d", m.Hidden, m.Heads)
	case m.Arch == "gpt2" && m.HeadDim*m.Heads != m.Hidden:
		ps.add("model.head_dim model.heads model.hidden model.arch", "%d: gpt2's %d heads share model.hidden = %d; leave the key out", m.HeadDim, m.Heads, m.Hidden)
	case m.Arch != "gpt2" && m.HeadDim%2 != 0:
		ps.add("model.heads model.hidden model.head_dim", "%d heads of %d dimensions: rotary positions need an even number of dimensions", m.Heads, m.HeadDim)
	}
	if m.KVHeads < 1 || m.Heads%m.KVHeads != 0 {
		ps.add("model.kv_heads model.heads", "%d does not divide model.heads = %d", m.KVHeads, m.Heads)
	}
	if m.FFN < 1 {
		ps.add("model.ffn", "%d is out of range: want at least 1", m.FFN)
	}
	if m.MaxSeqLen < c.Data.SeqLen {
		ps.add("model.max_seq_len data.seq_len", "%d is below data.seq_len = %d", m.MaxSeqLen, c.Data.SeqLen)
	}
	if n := len(c.Sample.Prompt) + c.Sample.Tokens; c.Sample.Every > 0 && n > m.MaxSeqLen {
		ps.add("sample.tokens sample.prompt model.max_seq_len", "%d behind a prompt of %d are %d tokens, above model.max_seq_len = %d",
			c.Sample.Tokens, len(c.Sample.Prompt), n, m.MaxSeqLen)
	}
	if m.Arch == "gpt2" {
		if m.KVHeads != m.Heads {
			ps.add("model.kv_heads model.heads model.arch", "%d: gpt2 has as many as model.heads = %d; leave the key out", m.KVHeads, m.Heads)
		}
		if m.RopeTheta != 0 {
			ps.add("model.rope_theta model.arch", "%g: gpt2 has no rotary positions; leave the key out", m.RopeTheta)
		}
		if !m.QKVBias {
			ps.add("model.qkv_bias model.arch", "false: gpt2's projections have a bias; leave the key out")
		}
	} else if m.RopeTheta <= 0 {
		ps.add("model.rope_theta", "%g is out of range: want above 0", m.RopeTheta)
	}
	if m.NormEps <= 0 {
		ps.add("model.norm_eps", "%g is out of range: want above 0", m.NormEps)
	}
	switch {
	case m.Vocab == 0 && c.Data.Format == "tokens":
		ps.add("model.vocab data.format", "must be given for data.format tokens: one more than the largest token id")
	case m.Vocab == 0:
		ps.add("model.vocab data.tokenizer", "must be given beside data.tokenizer: at least one more than its largest token id")
	case c.Data.readsBytes(c.Model) && m.Vocab < 256:
		ps.add("model.vocab data.format", "%d is too small: text has a token for each of the 256 bytes", m.Vocab)
	case c.Data.Format == "synthetic" && m.Vocab < 2:
		ps.add("model.vocab data.format", "%d is too small for synthetic data; want at least 2", m.Vocab)
	}
}

// checkComm refuses what no group of ranks takes.
func (c *Config) checkComm(ps *problems) {
	if c.Comm.Chunk > 0 && c.Comm.Chunk < 64 {
		ps.add("comm.chunk", "%d bytes are too few: want at least 64, or 0", c.Comm.Chunk)
	}
	if _, _, err := comm.ParsePorts(c.Comm.Ports); err != nil {
		ps.add("comm.ports", "%v", err)
	}
	if err := rdma.CheckHCA(c.Comm.IBHCA); err != nil { // the other keys have ranges
		ps.add("comm.ib_hca", "%v", err)
	}
	if t := c.Comm.Transport; (t == "tcp" || t == "shm") && c.Comm.RDMA() != (rdma.Settings{}) {
		ps.add("comm.transport", "%s, and keys for RDMA are set: leave them out, or take rdma or auto", t)
	}
	c.checkLinks(ps)
}

// checkLinks refuses keys for links between ranks where there are to be none of their kind.
// auto may find some.
func (c *Config) checkLinks(ps *problems) {
	t := c.Comm.Transport
	if t != "shm" && t != "rdma" {
		return
	}
	for _, x := range []struct {
		key, on string
		set     bool
	}{
		{"comm.interface", "tcp", c.Comm.Interface != "" && c.Train.Device == "cpu"}, // NCCL has one, too
		{"comm.ports", "tcp", c.Comm.Ports != ""},
		{"comm.channels", "tcp", c.Comm.Channels > 0},
		{"comm.chunk", "tcp and rdma", c.Comm.Chunk > 0},
		{"comm.algo", "tcp and rdma", slices.Contains([]string{"oneshot", "doubling", "ring", "tree", "chain", "twolevel"}, c.Comm.Algo)},
	} {
		if x.set && !strings.Contains(x.on, t) {
			ps.add(x.key, "%s: comm.transport is %s, and this is for %s; leave the key out", show(lookup(x.key).in(c)), t, x.on)
		}
	}
}

// checkParallel refuses what only plain data parallelism has.
func (c *Config) checkParallel(ps *problems) {
	p := &c.Parallel
	c.checkCompress(ps)
	if p.Strategy == "ddp" {
		return
	}
	for _, x := range []struct {
		key string
		set bool
	}{
		{"parallel.find_unused_parameters", p.FindUnusedParameters},
		{"parallel.static_graph", !p.StaticGraph},
		{"parallel.check_replicas", show(lookup("parallel.check_replicas").in(c)) != lookup("parallel.check_replicas").def},
	} {
		if x.set {
			ps.add(x.key+" parallel.strategy", "%s: parallel.strategy is %s, and this is for ddp; leave the key out", show(lookup(x.key).in(c)), p.Strategy)
		}
	}
}

// checkCompress refuses settings of other schemes, and what has the same say.
func (c *Config) checkCompress(ps *problems) {
	p := &c.Parallel
	for _, x := range []struct{ key, of string }{
		{"parallel.compress_rank", "powersgd"}, {"parallel.compress_start", "powersgd"}, {"parallel.compress_fraction", "topk"},
	} {
		if f := lookup(x.key); p.Compress != x.of && show(f.in(c)) != f.def {
			ps.add(x.key+" parallel.compress", "%s: parallel.compress is %s, and this is for %s; leave the key out", show(f.in(c)), p.Compress, x.of)
		}
	}
	if p.Compress == "none" {
		return
	}
	if p.ReduceDType != "auto" {
		ps.add("parallel.reduce_dtype parallel.compress", "%s: parallel.compress is %s, which decides what is sent; leave one of them out", p.ReduceDType, p.Compress)
	}
	if p.FindUnusedParameters && !p.StaticGraph {
		ps.add("parallel.find_unused_parameters parallel.compress parallel.static_graph",
			"true: with parallel.compress %s every step must use the same parameters; set parallel.static_graph to true", p.Compress)
	}
}

// checkData refuses sources that are missing and settings that would do nothing.
func (c *Config) checkData(ps *problems) {
	d := &c.Data
	for _, key := range []string{"data.train", "data.eval"} {
		v := lookup(key).in(c)
		for i := range v.Len() {
			if v.Index(i).String() == "" {
				ps.add(key, "holds an empty path")
			}
		}
	}
	if d.Format == "synthetic" {
		if len(d.Train)+len(d.Eval) > 0 {
			ps.add("data.train data.eval data.format", "synthetic data needs no files; leave data.train and data.eval out, or choose another data.format")
		}
		if d.EvalSplit > 0 {
			ps.add("data.eval_split data.format", "%g: synthetic data is evaluated on sequences of its own; leave the key out", d.EvalSplit)
		}
		if d.MaxBytes > 0 {
			ps.add("data.max_bytes data.format", "%d: synthetic data reads no files; leave the key out", d.MaxBytes)
		}
	} else if len(d.Train) == 0 {
		ps.add("data.train data.format", "must name files to train on (or choose data.format: synthetic)")
	}
	if len(d.Eval) > 0 && d.EvalSplit > 0 {
		ps.add("data.eval_split data.eval", "%g cannot be given beside data.eval; choose one", d.EvalSplit)
	}
	if d.Format != "tokens" && d.DType != lookup("data.dtype").def {
		ps.add("data.dtype data.format", "%s: only data.format tokens has a dtype; leave the key out", d.DType)
	}
	if (d.Format == "tokens" || d.Format == "synthetic" || d.Images()) && !d.Packing {
		ps.add("data.packing data.format", "false: data.format %s has no documents to keep apart; leave the key out", d.Format)
	}
	c.checkImages(ps)
	c.checkSamples(ps)
	if c.Eval.Every > 0 && !c.hasEvalData() {
		ps.add("eval.every data.eval data.eval_split", "%d, but there is nothing to evaluate on; give data.eval or data.eval_split", c.Eval.Every)
	}
	if c.Sample.Every > 0 && (d.Format == "tokens" || d.Format == "synthetic") {
		ps.add("sample.every data.format", "%d: samples are text, and data.format is %s; leave the key out", c.Sample.Every, d.Format)
	}
	if c.Sample.Every > 0 && c.Sample.Prompt == "" {
		ps.add("sample.prompt sample.every", "is empty; a sample needs at least one byte to continue")
	}
}

func (c *Config) checkTrain(ps *problems) {
	t := &c.Train
	if t.MaxSteps == 0 && t.Epochs == 0 {
		ps.add("train.max_steps train.epochs", "give max_steps or epochs: the length of training")
	}
	const tokens = 100_000_000 // keeps every size of a model far from overflow
	if n := t.MicroBatch * c.Data.SeqLen; n > tokens {
		ps.add("train.micro_batch data.seq_len", "%d times data.seq_len = %d are %d tokens at once, above %d", t.MicroBatch, c.Data.SeqLen, n, tokens)
	}
	if c.Data.Format == "synthetic" && t.Epochs > 0 {
		ps.add("train.epochs data.format", "%g: synthetic data has no end; give max_steps", t.Epochs)
	}
	for _, key := range c.misfits(t.Device) {
		ps.add(key+" train.device", "%s: train.device is %s, and this is for %s; leave the key out", show(lookup(key).in(c)), t.Device, others(t.Device))
	}
	c.checkSchedule(ps)
	c.checkEvaluation(ps)
	if c.Checkpoint.Resume == "" {
		ps.add("checkpoint.resume", "is empty; want none, auto or the path of a checkpoint")
	}
	if at := c.Log.Prometheus; at != "" && !isAddress(at) {
		ps.add("log.prometheus", "%q is no address to serve at; want a port from 0 to 65535, with or without a host, such as :9100", at)
	}
}

func isAddress(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// checkSchedule refuses settings of other schedules, and pieces that are longer than
// the whole. Where epochs end the job, whoever counts its steps sees to the latter.
func (c *Config) checkSchedule(ps *problems) {
	t := &c.Train
	if t.WarmupRatio > 0 && t.WarmupSteps > 0 {
		ps.add("train.warmup_ratio train.warmup_steps", "%g cannot be given beside train.warmup_steps = %d; choose one", t.WarmupRatio, t.WarmupSteps)
	}
	if t.MaxSteps > 0 && t.WarmupSteps > t.MaxSteps {
		ps.add("train.warmup_steps train.max_steps", "%d is above train.max_steps = %d", t.WarmupSteps, t.MaxSteps)
	}
	if n := t.WarmupSteps + t.DecaySteps; t.MaxSteps > 0 && t.DecaySteps > 0 && n > t.MaxSteps {
		ps.add("train.decay_steps train.warmup_steps train.max_steps", "%d and train.warmup_steps = %d are %d steps, above train.max_steps = %d", t.DecaySteps, t.WarmupSteps, n, t.MaxSteps)
	}
	if t.MinLRRatio != 0 && (t.Schedule == "constant" || t.Schedule == "inverse_sqrt") {
		ps.add("train.min_lr_ratio train.schedule", "%g: the schedule is %s; leave the key out", t.MinLRRatio, t.Schedule)
	}
	for _, x := range []struct{ key, of string }{
		{"train.cycles", "cosine_with_restarts"}, {"train.power", "polynomial"},
		{"train.decay_steps", "warmup_stable_decay"}, {"train.decay_shape", "warmup_stable_decay"},
	} {
		if f := lookup(x.key); t.Schedule != x.of && text(f.in(c)) != f.def {
			ps.add(x.key+" train.schedule", "%s: train.schedule is %s, and this is for %s; leave the key out", show(f.in(c)), t.Schedule, x.of)
		}
	}
}

// checkEvaluation refuses what needs evaluations where there are none.
func (c *Config) checkEvaluation(ps *problems) {
	for _, x := range []struct {
		key string
		set bool
	}{{"eval.at_start", c.Eval.AtStart}, {"eval.patience", c.Eval.Patience > 0}, {"checkpoint.best", c.Checkpoint.Best}} {
		if x.set && c.Eval.Every == 0 {
			ps.add(x.key+" eval.every", "%s: nothing is evaluated; give eval.every and data to evaluate on, or leave the key out", show(lookup(x.key).in(c)))
		}
	}
	if c.Eval.MinDelta > 0 && c.Eval.Patience == 0 {
		ps.add("eval.min_delta eval.patience", "%g: give eval.patience too, or leave the key out", c.Eval.MinDelta)
	}
}

// checkLora refuses adapters' settings without adapters. Whether the model has the
// targets is seen by whoever describes it.
func (c *Config) checkLora(ps *problems) {
	l := &c.Lora
	for _, x := range []struct {
		key string
		set bool
	}{{"lora.alpha", l.Alpha > 0}, {"lora.dropout", l.Dropout > 0}, {"lora.targets", len(l.Targets) > 0}} {
		if x.set && l.R == 0 {
			ps.add(x.key+" lora.r", "%s: there are no adapters; give lora.r, or leave the key out", show(lookup(x.key).in(c)))
		}
	}
	if slices.Contains(l.Targets, "") {
		ps.add("lora.targets", "holds an empty name")
	}
}

// CheckDevice refuses settings that mean nothing on the device, "cpu" or "cuda", that
// train.device auto has come to; why is the reason for the CPU. Where train.device
// names one, Load has done so.
func (c *Config) CheckDevice(on, why string) error {
	var errs []error
	for _, key := range c.misfits(on) {
		place := "GPUs"
		if on == "cpu" {
			place = "the CPU: " + why
		}
		errs = append(errs, fmt.Errorf("%s: %s is for %s, and this job runs on %s; leave the key out", key, show(lookup(key).in(c)), others(on), place))
	}
	return errors.Join(errs...)
}

// others is what is not the device.
func others(on string) string {
	if on == "cpu" {
		return "GPUs"
	}
	return "the CPU"
}

// misfits is the keys whose values mean nothing on a device. How the CPU is used may
// stand beside auto: the file is then for hosts with and without GPUs.
func (c *Config) misfits(on string) (keys []string) {
	for _, x := range []struct {
		key, on string
		set     bool
	}{
		{"model.attention", "cpu", c.Model.Attention != "auto"},
		{"parallel.grad_dtype", "cpu", c.Parallel.GradDType == "bf16"},
		{"parallel.compress", "cuda", slices.Contains([]string{"int8", "powersgd", "topk"}, c.Parallel.Compress)},
		{"parallel.offload", "cpu", c.Parallel.Offload != "none"},
		{"comm.engine", "cpu", c.Comm.Engine == "nccl"},
		{"comm.algo", "cpu", slices.Contains([]string{"kernels", "copy-engines", "nccl"}, c.Comm.Algo)},
		{"comm.interface", "cpu", c.Train.Device == "auto" && c.Comm.Interface != "" && c.Comm.Transport == "rdma"}, // beside device cpu: see checkLinks
		{"comm.max_ctas", "cpu", c.Comm.MaxCTAs > 0},
		{"comm.topo_file", "cpu", c.Comm.TopoFile != "" && c.Comm.Transport != "rdma" && c.Comm.Transport != "auto"}, // RDMA goes by it, too
		{"train.precision", "cpu", c.Train.Precision == "bf16"},
		{"train.precision", "cuda", c.Train.Precision == "fp32"},
		{"train.threads", "cuda", c.Train.Device == "cuda" && c.Train.Threads > 0},
		{"train.matmul", "cuda", c.Train.Device == "cuda" && c.Train.MatMul != "auto"},
	} {
		if x.set && x.on == on {
			keys = append(keys, x.key)
		}
	}
	return keys
}
