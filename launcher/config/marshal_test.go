package config

import (
	"reflect"
	"strings"
	"testing"
)

// everything differs from the defaults wherever this build allows it.
const everything = `
name: all "of" it
output: "/tmp/${HOME:-nobody}/$${X}\n"
seed: 7
model: {arch: qwen2, layers: 3, hidden: 96, heads: 6, kv_heads: 2, head_dim: 24, ffn: 100, vocab: 300, max_seq_len: 512, tie_embeddings: true, qkv_bias: false, rope_theta: 5e5, norm_eps: 1e-7, attention: native}
data: {train: [a, "b c"], eval: [d], seq_len: 64, packing: false, max_bytes: 3GiB}
parallel: {bucket_cap_mb: 0.125, first_bucket_mb: 0.0625, grad_dtype: fp32, reduce_dtype: fp32, find_unused_parameters: true, static_graph: false, check_replicas: 9, offload: optimizer}
comm: {engine: nccl, ib_hca: mlx5, gid_index: 3, traffic_class: 104, ib_timeout: 18, ib_retries: 5, pkey: 1, queue_pairs: 4, timeout: 90s, interface: eth0, ports: 40000-40100, overlap: false, algo: ring, channels: 3, chunk: 64KiB, tune: off, max_ctas: 8, topo_file: host.xml}
train: {max_steps: 10, epochs: 1.5, micro_batch: 2, grad_accum: 3, lr: 1e-300, schedule: linear, warmup_steps: 2, min_lr_ratio: 0.1, betas: [0.8, 0.9], eps: 1e-9, weight_decay: 0, max_grad_norm: 0, precision: bf16, device: cuda, recompute: norms, skip_nonfinite: 1}
eval: {every: 3, steps: 0, at_start: true, patience: 2, min_delta: 0.01}
sample: {every: 4, prompt: "\x01é\t#", tokens: 5, temperature: 0, top_p: 0.5}
checkpoint: {every: 6, final: false, async: false, export: false, keep: 0, best: true, resume: auto}
log: {every: 7, trace: 3, tensorboard: false, plot: false, prometheus: ":9100"}
lora: {r: 4, alpha: 6, dropout: 0.1, targets: [q_proj, mlp.up_proj]}
launch: {hosts: [a, "b:2"]}
`

// everySample is the rest: what is for samples.
const everySample = `
data: {train: [a, b], weights: [1, 0.5], tokenizer: tok, template: x.jinja, train_on: last, truncation: drop, bad_rows: skip, cache: /c, format: chat,
  fields: {messages: m.0, role: r, content: c, tools: t, system: s, instruction: i, input: j, output: o, prompt: p, completion: q, text: u}}
model: {vocab: 1000}
comm: {transport: rdma}
train: {epochs: 1}
`

// roundTrip writes c and reads it back under another file name.
func roundTrip(t *testing.T, c *Config) {
	t.Helper()
	src, err := c.Marshal()
	if err != nil {
		if strings.Contains(err.Error(), "UTF-8") {
			return
		}
		t.Fatal(err)
	}
	back, err := parse("elsewhere.yaml", src, nil, noEnv)
	if err != nil {
		t.Fatalf("%v in\n%s", err, src)
	}
	if !reflect.DeepEqual(c, back) {
		t.Errorf("wrote %+v\nread  %+v\nfrom:\n%s", c, back, src)
	}
}

func TestMarshalRoundTrip(t *testing.T) {
	for _, src := range []string{
		everything, everySample, ok,
		"data: {train: x, format: tokens, dtype: uint32}\nmodel: {path: ./m}\ntrain: {epochs: 1}",
		"data: {train: x}\nmodel: {arch: gpt2}\ntrain: {epochs: 1}",
		"data: {train: x, eval_split: 0.5}\ntrain: {epochs: 1}\neval: {every: 0}",
		"data: {train: x}\ntrain: {epochs: 1, device: cpu, threads: 2, matmul: gonum}",
		"data: {train: x}\ntrain: {epochs: 1}\nparallel: {strategy: zero3}",
		"data: {train: x}\ntrain: {epochs: 1}\nparallel: {compress: powersgd, compress_rank: 4, compress_start: 10}",
		"data: {train: x}\ntrain: {epochs: 1}\nparallel: {compress: topk, compress_fraction: 0.05}",
		"data: {train: x}\ntrain: {epochs: 1, schedule: cosine_with_restarts, cycles: 3, warmup_ratio: 0.1}",
		"data: {train: x}\ntrain: {epochs: 1, schedule: polynomial, power: 2}",
		"data: {train: x}\ntrain: {epochs: 1, schedule: warmup_stable_decay, decay_steps: 5, decay_shape: 1-sqrt, warmup_steps: 2}",
	} {
		c, err := parse("job.yaml", []byte(src), nil, noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		roundTrip(t, c)
	}
}

// The files named everything and everySample leave out only keys that another
// key of theirs excludes, so that a new key cannot miss the round trip.
func TestEverythingIsEverything(t *testing.T) {
	all, err := parse("job.yaml", []byte(everything), nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	samples, err := parse("job.yaml", []byte(everySample), nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := parse("job.yaml", []byte(ok), nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	excluded := map[string]bool{ // by another key of the file
		"model.path": true, "data.eval_split": true, "data.dtype": true,
		"train.threads": true, "train.matmul": true, "parallel.strategy": true,
		"parallel.compress": true, "parallel.compress_rank": true, "parallel.compress_start": true, "parallel.compress_fraction": true,
		"train.warmup_ratio": true, "train.cycles": true, "train.power": true, "train.decay_steps": true, "train.decay_shape": true,
		"model.qkv_bias": true, // not qwen2's default, but llama's
	}
	for _, f := range leaves {
		given := func(c *Config) bool { return !reflect.DeepEqual(f.in(c).Interface(), f.in(plain).Interface()) }
		if !excluded[f.path] && !given(all) && !given(samples) {
			t.Errorf("%s has its default", f.path)
		}
	}
}

func TestDerivedDefaults(t *testing.T) {
	for src, want := range map[string]Model{
		ok: {Arch: "llama", Layers: 4, Hidden: 128, Heads: 4, KVHeads: 4, HeadDim: 32, FFN: 352, Vocab: 256, MaxSeqLen: 256, RopeTheta: 1e4, NormEps: 1e-5, Attention: "auto"},
		ok + "model: {arch: qwen2, heads: 8, kv_heads: 2}": {Arch: "qwen2", Layers: 4, Hidden: 128, Heads: 8, KVHeads: 2, HeadDim: 16, FFN: 352, Vocab: 256, MaxSeqLen: 256,
			QKVBias: true, RopeTheta: 1e6, NormEps: 1e-6, Attention: "auto"},
		ok + "model: {arch: qwen3, head_dim: 64, kv_heads: 2}": {Arch: "qwen3", Layers: 4, Hidden: 128, Heads: 4, KVHeads: 2, HeadDim: 64, FFN: 352, Vocab: 256, MaxSeqLen: 256,
			RopeTheta: 1e6, NormEps: 1e-6, Attention: "auto"},
		ok + "model: {arch: gpt2, max_seq_len: 1024}": {Arch: "gpt2", Layers: 4, Hidden: 128, Heads: 4, KVHeads: 4, HeadDim: 32, FFN: 512, Vocab: 256, MaxSeqLen: 1024,
			TieEmbed: true, QKVBias: true, NormEps: 1e-5, Attention: "auto"},
		"data: {train: x, format: tokens}\ntrain: {epochs: 1}\nmodel: {path: m}": {Path: "m", Attention: "auto"},
	} {
		c, err := parse("job.yaml", []byte(src), nil, noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if c.Model != want {
			t.Errorf("%s\ngot  %+v\nwant %+v", src, c.Model, want)
		}
	}
}

// A program that changes a valid configuration hears of what it broke.
func TestValidate(t *testing.T) {
	c, err := parse("job.yaml", []byte(ok), nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	c.Train.LR, c.Comm.Transport = -1, "pigeon"
	want := "configuration: comm.transport: \"pigeon\" is not one of auto, shm, tcp, rdma\n" +
		"configuration: train.lr: -1 is out of range: want above 0"
	if err := c.Validate(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestIdentity(t *testing.T) {
	load := func(sets ...string) *Config {
		c, err := parse("job.yaml", []byte(ok), sets, noEnv)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	base := load().Identity(2)
	same := load("train.micro_batch=4", "train.grad_accum=4", "train.lr=1", "train.max_steps=9", "output=x", "name=y", "comm.transport=tcp").Identity(1)
	if d := same.Diff(base); d != nil || same.Hash() != base.Hash() {
		t.Errorf("a job that may resume differs: %q", d)
	}
	other := load("seed=1", "model.layers=2", "train.grad_accum=2").Identity(2)
	if other.Hash() == base.Hash() {
		t.Error("the hash misses a difference")
	}
	got := strings.Join(other.Diff(base), "\n")
	want := "seed: 42 in the checkpoint, now 1\nmodel.layers: 4 in the checkpoint, now 2\n" +
		"global_batch (train.micro_batch x train.grad_accum x ranks): 16 in the checkpoint, now 32"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := base.Diff(base[1:]); len(got) != 1 || got[0] != "seed: the checkpoint does not say, now 42" {
		t.Errorf("got %q", got)
	}
}
