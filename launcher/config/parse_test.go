package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// noEnv is an environment without any variable.
func noEnv(string) (string, bool, error) { return "", false, nil }

func envOf(vars map[string]string) environ {
	return func(name string) (string, bool, error) {
		v, ok := vars[name]
		return v, ok, nil
	}
}

// ok is the shortest valid file; cases append to it.
const ok = "data: {format: synthetic}\ntrain: {max_steps: 1}\n"

// Every kind of mistake is reported with its place, its value and what to do.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name, src string
		sets      []string
		want      []string
	}{
		{name: "unknown key in a section",
			src:  "data: {format: synthetic}\ntrain:\n  max_steps: 1\n  micro_batchs: 3\n",
			want: []string{"t.yaml:4:3: train.micro_batchs: unknown key; did you mean micro_batch?"}},
		{name: "two letters swapped",
			src:  ok + "checkpoint: {eveyr: 3}\n",
			want: []string{"t.yaml:3:14: checkpoint.eveyr: unknown key; did you mean every?"}},
		{name: "key of another section at top level",
			src:  ok + "lr: 3\n",
			want: []string{"t.yaml:3:1: lr: unknown key; did you mean train.lr?"}},
		{name: "key of another section in a section",
			src:  ok + "eval: {seq_len: 3}\n",
			want: []string{"t.yaml:3:8: eval.seq_len: unknown key; did you mean data.seq_len?"}},
		{name: "another tool's name",
			src:  ok + "model: {num_hidden_layers: 3}\n",
			want: []string{"t.yaml:3:9: model.num_hidden_layers: unknown key; did you mean model.layers?"}},
		{name: "misspelt key of another section",
			src:  ok + "warmup_stpes: 3\n",
			want: []string{"t.yaml:3:1: warmup_stpes: unknown key; did you mean train.warmup_steps?"}},
		{name: "what no group of ranks takes",
			src: ok + "comm: {chunk: 5, ports: 9-1}\n",
			want: []string{"t.yaml:3:15: comm.chunk: 5 bytes are too few: want at least 64, or 0",
				`t.yaml:3:25: comm.ports: ports "9-1": want a range within 1 to 65535, such as 40000-40100`}},
		{name: "nothing near",
			src:  ok + "log: {xyzzy: 3}\n",
			want: []string{"t.yaml:3:7: log.xyzzy: unknown key; log has every, trace, tensorboard, plot, prometheus"}},
		{name: "wrong types, all at once, in the file's order",
			src: "train: {max_steps: many}\nname: [a]\ndata:\n  format: synthetic\n  seq_len: 12.5\n  packing: yes\nseed: -1\nmodel: 5\nlog: [1]\n" +
				"comm: {timeout: 600}\ncheckpoint: {keep: \"2\"}\nsample: {temperature: .nan}\neval: {every: }\nparallel: {compress: {a: 1}}\n",
			want: []string{
				`t.yaml:1:20: train.max_steps: "many" is not a whole number`,
				`t.yaml:2:7: name: a list is not text`,
				`t.yaml:5:12: data.seq_len: "12.5" is not a whole number`,
				`t.yaml:6:12: data.packing: "yes" is not true or false`,
				`t.yaml:7:7: seed: "-1" is not a whole number from 0 to 18446744073709551615`,
				`t.yaml:8:8: model: "5" is not a section; want keys such as "path: …"`,
				`t.yaml:9:6: log: a list is not a section; want keys such as "every: …"`,
				`t.yaml:10:17: comm.timeout: "600" is not a duration such as 90s or 10m`,
				`t.yaml:11:20: checkpoint.keep: "2" is text; want a whole number, without quotes`,
				`t.yaml:12:23: sample.temperature: ".nan" is not a number`,
				`t.yaml:13:14: eval.every: has no value; leave the key out for its default`,
				`t.yaml:14:22: parallel.compress: a section is not one of none, fp16, bf16, int8, powersgd, topk`,
			}},
		{name: "out of range",
			src: "data: {format: synthetic, max_bytes: -1MB}\ntrain: {max_steps: 1, lr: 0, min_lr_ratio: 1.5, betas: [0.9, 1]}\neval: {every: -1}\ncomm: {max_ctas: 65}",
			want: []string{
				"t.yaml:1:38: data.max_bytes: -1000000 is out of range: want at least 0",
				"t.yaml:2:27: train.lr: 0 is out of range: want above 0",
				"t.yaml:2:44: train.min_lr_ratio: 1.5 is out of range: want at least 0 and at most 1",
				"t.yaml:2:56: train.betas: 1 is out of range: want at least 0 and below 1",
				"t.yaml:3:15: eval.every: -1 is out of range: want at least 0",
				"t.yaml:4:18: comm.max_ctas: 65 is out of range: want at least 0 and at most 64",
			}},
		{name: "length of a list",
			src:  "data: {format: synthetic}\ntrain: {max_steps: 1, betas: 0.9}",
			want: []string{"t.yaml:2:30: train.betas: [0.9] has 1 values, want 2"}},
		{name: "misspelt word",
			src:  ok + "model: {arch: lama}\n",
			want: []string{`t.yaml:3:15: model.arch: "lama" is not one of llama, qwen2, qwen3, gpt2, gorgonia-mlp, gorgonia-convnet; did you mean llama?`}},
		{name: "another tool's word",
			src: "data: {format: synthetic}\ntrain: {max_steps: 1, device: GPU, precision: float32}\n",
			want: []string{
				`t.yaml:2:31: train.device: "GPU" is not one of auto, cpu, cuda; did you mean cuda?`,
				`t.yaml:2:47: train.precision: "float32" is not one of auto, fp32, bf16; did you mean fp32?`,
			}},
		{name: "a list of devices",
			src: ok + "comm: {transport: rdma, ib_hca: \"mlx5_0:x\"}\n",
			want: []string{
				`t.yaml:3:33: comm.ib_hca: "mlx5_0:x" names no devices: "mlx5_0:x" is none, nor one and its port, such as mlx5_0:1`,
			}},
		{name: "an address without a port",
			src: ok + "log: {prometheus: 9100}\n",
			want: []string{
				"t.yaml:3:19: log.prometheus: \"9100\" is no address to serve at; want a port from 0 to 65535, with or without a host, such as :9100",
			}},
		{name: "an address with no such port",
			src:  ok + "log: {prometheus: \"localhost:65536\"}\n",
			want: []string{"t.yaml:3:19: log.prometheus: \"localhost:65536\" is no address to serve at; want a port from 0 to 65535, with or without a host, such as :9100"}},
		{name: "adapters without a rank",
			src: ok + "lora: {alpha: 16, dropout: 0.1, targets: q_proj}\n",
			want: []string{
				"t.yaml:3:15: lora.alpha: 16: there are no adapters; give lora.r, or leave the key out",
				"t.yaml:3:28: lora.dropout: 0.1: there are no adapters; give lora.r, or leave the key out",
				"t.yaml:3:42: lora.targets: [\"q_proj\"]: there are no adapters; give lora.r, or leave the key out",
			}},
		{name: "an adapter without a name",
			src:  ok + "lora: {r: 8, targets: [q_proj, '']}\n",
			want: []string{"t.yaml:3:23: lora.targets: holds an empty name"}},
		{name: "compression and what has the same say",
			src: ok + "parallel: {compress: int8, reduce_dtype: bf16, find_unused_parameters: true, static_graph: false, compress_rank: 2, compress_fraction: 0.1}\n",
			want: []string{
				"t.yaml:3:42: parallel.reduce_dtype: bf16: parallel.compress is int8, which decides what is sent; leave one of them out",
				"t.yaml:3:72: parallel.find_unused_parameters: true: with parallel.compress int8 every step must use the same parameters; set parallel.static_graph to true",
				"t.yaml:3:114: parallel.compress_rank: 2: parallel.compress is int8, and this is for powersgd; leave the key out",
				"t.yaml:3:136: parallel.compress_fraction: 0.1: parallel.compress is int8, and this is for topk; leave the key out",
			}},
		{name: "compression that GPUs lack",
			src:  "data: {format: synthetic}\ntrain: {max_steps: 3, device: cuda}\nparallel: {compress: topk}\n",
			want: []string{"t.yaml:3:22: parallel.compress: \"topk\": train.device is cuda, and this is for the CPU; leave the key out"}},
		{name: "what only ddp has",
			src: ok + "parallel: {strategy: zero2, find_unused_parameters: true, static_graph: false, check_replicas: 10}\n",
			want: []string{
				"t.yaml:3:53: parallel.find_unused_parameters: true: parallel.strategy is zero2, and this is for ddp; leave the key out",
				"t.yaml:3:73: parallel.static_graph: false: parallel.strategy is zero2, and this is for ddp; leave the key out",
				"t.yaml:3:96: parallel.check_replicas: 10: parallel.strategy is zero2, and this is for ddp; leave the key out",
			}},
		{name: "sharded on GPUs, with what shards and GPUs lack",
			src: "data: {format: synthetic}\ntrain: {max_steps: 1, device: cuda}\nparallel: {strategy: zero3, check_replicas: 10, compress: topk}\n",
			want: []string{
				"t.yaml:3:45: parallel.check_replicas: 10: parallel.strategy is zero3, and this is for ddp; leave the key out",
				"t.yaml:3:59: parallel.compress: \"topk\": train.device is cuda, and this is for the CPU; leave the key out",
			}},
		{name: "given twice",
			src:  ok + "train: {lr: 1}\n",
			want: []string{"t.yaml:3:1: train: is given twice, first in line 2"}},
		{name: "shape that cannot be",
			src: ok + "model: {hidden: 130, heads: 4, kv_heads: 3}\n",
			want: []string{
				"t.yaml:3:17: model.hidden: 130 is no multiple of model.heads = 4",
				"t.yaml:3:42: model.kv_heads: 3 does not divide model.heads = 4",
			}},
		{name: "odd heads", src: ok + "model: {hidden: 12, heads: 4}\n",
			want: []string{"t.yaml:3:28: model.heads: 4 heads of 3 dimensions: rotary positions need an even number of dimensions"}},
		{name: "odd heads of their own size", src: ok + "model: {hidden: 12, heads: 5, head_dim: 3}\n",
			want: []string{"t.yaml:3:28: model.heads: 5 heads of 3 dimensions: rotary positions need an even number of dimensions"}},
		{name: "no heads", src: ok + "model: {heads: 0}\n",
			want: []string{"t.yaml:3:16: model.heads: 0 is out of range: want at least 1 and at most 10000"}},
		{name: "heads of gpt2", src: ok + "model: {arch: gpt2, head_dim: 8}\n",
			want: []string{"t.yaml:3:31: model.head_dim: 8: gpt2's 4 heads share model.hidden = 128; leave the key out"}},
		{name: "tokens at once", src: "data: {train: x, seq_len: 1000000}\ntrain: {max_steps: 1, micro_batch: 200}",
			want: []string{"t.yaml:2:36: train.micro_batch: 200 times data.seq_len = 1000000 are 200000000 tokens at once, above 100000000"}},
		{name: "sequence above the model's", src: ok + "model: {max_seq_len: 128}\n",
			want: []string{"t.yaml:3:22: model.max_seq_len: 128 is below data.seq_len = 256"}},
		{name: "sample above the model's", src: "data: {train: x}\ntrain: {max_steps: 1}\nsample: {every: 1, tokens: 253}\n",
			want: []string{"t.yaml:3:28: sample.tokens: 253 behind a prompt of 4 are 257 tokens, above model.max_seq_len = 256"}},
		{name: "gpt2", src: ok + "model: {arch: gpt2, rope_theta: 1e4, kv_heads: 2, qkv_bias: false}\n",
			want: []string{
				"t.yaml:3:33: model.rope_theta: 10000: gpt2 has no rotary positions; leave the key out",
				"t.yaml:3:48: model.kv_heads: 2: gpt2 has as many as model.heads = 4; leave the key out",
				"t.yaml:3:61: model.qkv_bias: false: gpt2's projections have a bias; leave the key out",
			}},
		{name: "no data", src: "train: {max_steps: 1}",
			want: []string{"t.yaml: data.train: must name files to train on (or choose data.format: synthetic)"}},
		{name: "no follow-up of a value that could not be read", src: "data: {train: '${NOPE}/x'}\ntrain: {max_steps: 1}",
			want: []string{`t.yaml:1:15: data.train: "${NOPE}/x": environment variable NOPE is not set; set it, or write ${NOPE:-default}`}},
		{name: "settings that would do nothing",
			src: "data: {format: synthetic, train: x, dtype: uint32, packing: false}\ntrain: {epochs: 2, max_steps: 9, schedule: constant, min_lr_ratio: 0.1, warmup_steps: 10}\nsample: {every: 5}",
			want: []string{
				"t.yaml:1:34: data.train: synthetic data needs no files; leave data.train and data.eval out, or choose another data.format",
				"t.yaml:1:44: data.dtype: uint32: only data.format tokens has a dtype; leave the key out",
				"t.yaml:1:61: data.packing: false: data.format synthetic has no documents to keep apart; leave the key out",
				"t.yaml:2:17: train.epochs: 2: synthetic data has no end; give max_steps",
				"t.yaml:2:68: train.min_lr_ratio: 0.1: the schedule is constant; leave the key out",
				"t.yaml:2:87: train.warmup_steps: 10 is above train.max_steps = 9",
				"t.yaml:3:17: sample.every: 5: samples are text, and data.format is synthetic; leave the key out",
			}},
		{name: "what is for GPUs, on the CPU",
			src: "data: {format: synthetic}\ntrain: {max_steps: 1, device: cpu, precision: bf16}\nmodel: {attention: native}\n" +
				"comm: {engine: nccl, max_ctas: 4}\nparallel: {grad_dtype: bf16}",
			want: []string{
				`t.yaml:2:47: train.precision: "bf16": train.device is cpu, and this is for GPUs; leave the key out`,
				`t.yaml:3:20: model.attention: "native": train.device is cpu, and this is for GPUs; leave the key out`,
				`t.yaml:4:16: comm.engine: "nccl": train.device is cpu, and this is for GPUs; leave the key out`,
				`t.yaml:4:32: comm.max_ctas: 4: train.device is cpu, and this is for GPUs; leave the key out`,
				`t.yaml:5:24: parallel.grad_dtype: "bf16": train.device is cpu, and this is for GPUs; leave the key out`,
			}},
		{name: "an algorithm of GPUs, on the CPU",
			src: "data: {format: synthetic}\ntrain: {max_steps: 1, device: cpu}\ncomm: {algo: kernels}",
			want: []string{
				`t.yaml:3:14: comm.algo: "kernels": train.device is cpu, and this is for GPUs; leave the key out`,
			}},
		{name: "what is for links, without any",
			src: "data: {format: synthetic}\ntrain: {max_steps: 1, device: cpu}\n" +
				"comm: {transport: shm, interface: eth0, ports: 40000-40100, channels: 2, chunk: 64KB, algo: ring}",
			want: []string{
				`t.yaml:3:35: comm.interface: "eth0": comm.transport is shm, and this is for tcp; leave the key out`,
				`t.yaml:3:48: comm.ports: "40000-40100": comm.transport is shm, and this is for tcp; leave the key out`,
				`t.yaml:3:71: comm.channels: 2: comm.transport is shm, and this is for tcp; leave the key out`,
				`t.yaml:3:81: comm.chunk: 64000: comm.transport is shm, and this is for tcp and rdma; leave the key out`,
				`t.yaml:3:93: comm.algo: "ring": comm.transport is shm, and this is for tcp and rdma; leave the key out`,
			}},
		{name: "what is for tcp, over rdma",
			src: "data: {format: synthetic}\ntrain: {max_steps: 1, device: cpu}\n" +
				"comm: {transport: rdma, interface: eth0, ports: 40000-40100, channels: 2, chunk: 64KB, algo: ring, topo_file: host.xml}",
			want: []string{
				`t.yaml:3:36: comm.interface: "eth0": comm.transport is rdma, and this is for tcp; leave the key out`,
				`t.yaml:3:49: comm.ports: "40000-40100": comm.transport is rdma, and this is for tcp; leave the key out`,
				`t.yaml:3:72: comm.channels: 2: comm.transport is rdma, and this is for tcp; leave the key out`,
			}},
		{name: "a topology that nothing goes by",
			src: "data: {format: synthetic}\ntrain: {max_steps: 1, device: cpu}\ncomm: {transport: tcp, topo_file: host.xml}",
			want: []string{
				`t.yaml:3:35: comm.topo_file: "host.xml": train.device is cpu, and this is for GPUs; leave the key out`,
			}},
		{name: "what is for the CPU, on GPUs",
			src: "data: {format: synthetic}\ntrain: {max_steps: 1, device: cuda, threads: 3, matmul: own, precision: fp32}",
			want: []string{
				`t.yaml:2:46: train.threads: 3: train.device is cuda, and this is for the CPU; leave the key out`,
				`t.yaml:2:57: train.matmul: "own": train.device is cuda, and this is for the CPU; leave the key out`,
				`t.yaml:2:73: train.precision: "fp32": train.device is cuda, and this is for the CPU; leave the key out`,
			}},
		{name: "settings of other schedules",
			src: "data: {format: synthetic}\ntrain: {max_steps: 9, schedule: inverse_sqrt, min_lr_ratio: 0.1, warmup_steps: 1, warmup_ratio: 0.1, cycles: 2, power: 2, decay_steps: 3, decay_shape: linear}",
			want: []string{
				"t.yaml:2:61: train.min_lr_ratio: 0.1: the schedule is inverse_sqrt; leave the key out",
				"t.yaml:2:97: train.warmup_ratio: 0.1 cannot be given beside train.warmup_steps = 1; choose one",
				"t.yaml:2:110: train.cycles: 2: train.schedule is inverse_sqrt, and this is for cosine_with_restarts; leave the key out",
				"t.yaml:2:120: train.power: 2: train.schedule is inverse_sqrt, and this is for polynomial; leave the key out",
				"t.yaml:2:136: train.decay_steps: 3: train.schedule is inverse_sqrt, and this is for warmup_stable_decay; leave the key out",
				"t.yaml:2:152: train.decay_shape: \"linear\": train.schedule is inverse_sqrt, and this is for warmup_stable_decay; leave the key out",
			}},
		{name: "a schedule longer than the job", src: "data: {format: synthetic}\ntrain: {max_steps: 9, schedule: warmup_stable_decay, warmup_steps: 4, decay_steps: 6}",
			want: []string{"t.yaml:2:84: train.decay_steps: 6 and train.warmup_steps = 4 are 10 steps, above train.max_steps = 9"}},
		{name: "another tool's name of a schedule", src: "data: {format: synthetic}\ntrain: {max_steps: 9, schedule: wsd}",
			want: []string{"t.yaml:2:33: train.schedule: \"wsd\" is not one of cosine, linear, constant, cosine_with_restarts, polynomial, inverse_sqrt, warmup_stable_decay; did you mean warmup_stable_decay?"}},
		{name: "what needs evaluations", src: "data: {train: x}\ntrain: {max_steps: 9}\neval: {at_start: true, patience: 2}\ncheckpoint: {best: true, keep: 0}",
			want: []string{
				"t.yaml:3:18: eval.at_start: true: nothing is evaluated; give eval.every and data to evaluate on, or leave the key out",
				"t.yaml:3:34: eval.patience: 2: nothing is evaluated; give eval.every and data to evaluate on, or leave the key out",
				"t.yaml:4:20: checkpoint.best: true: nothing is evaluated; give eval.every and data to evaluate on, or leave the key out",
			}},
		{name: "a margin without patience", src: "data: {format: synthetic}\ntrain: {max_steps: 9}\neval: {min_delta: 0.1}",
			want: []string{"t.yaml:3:19: eval.min_delta: 0.1: give eval.patience too, or leave the key out"}},
		{name: "no length of training", src: "data: {format: synthetic}",
			want: []string{"t.yaml: train.max_steps: give max_steps or epochs: the length of training"}},
		{name: "tokens without vocab", src: "data: {format: tokens, train: x}\ntrain: {max_steps: 1}",
			want: []string{"t.yaml:1:16: model.vocab: must be given for data.format tokens: one more than the largest token id"}},
		{name: "evaluation without data", src: "data: {train: x}\ntrain: {max_steps: 1}\neval: {every: 3}",
			want: []string{"t.yaml:3:15: eval.every: 3, but there is nothing to evaluate on; give data.eval or data.eval_split"}},
		{name: "flags", src: ok,
			sets: []string{"train.lr", "modle.layers=3", "train=3", "train.lr=fast", "data.packing=maybe", "seed=[1]", "train.betas=0.9,x"},
			want: []string{
				"--set train.lr: want key=value, such as train.lr=1e-4",
				"--set modle.layers=3: modle.layers: unknown key; did you mean model.layers?",
				"--set train=3: train: is a section; set one of its keys, such as train.max_steps",
				`--set train.lr=fast: train.lr: "fast" is not a number`,
				`--set data.packing=maybe: data.packing: "maybe" is not true or false`,
				`--set seed=[1]: seed: a list is not a whole number`,
				`--set train.betas=0.9,x: train.betas: "x" is not a number`,
			}},
		{name: "a flag is checked even where the file's value could not be read", src: ok + "log: {every: x}\n", sets: []string{"log.every=0"},
			want: []string{
				`t.yaml:3:14: log.every: "x" is not a whole number`,
				"--set log.every=0: log.every: 0 is out of range: want at least 1",
			}},
		{name: "empty", src: "# nothing\n", want: []string{"t.yaml: the file holds no keys"}},
		{name: "two documents", src: ok + "---\nname: x\n", want: []string{"t.yaml:4:5: a second document begins here; a job is one document"}},
		{name: "glob without quotes", src: "data: {train: [*.go]}\ntrain: {max_steps: 1}",
			want: []string{"t.yaml:1:16: data.train: a value that begins with * must stand in quotes"}},
		{name: "not a mapping", src: "hello", want: []string{`t.yaml:1:1: "hello" is not a job; want keys such as "name: …"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse("t.yaml", []byte(c.src), c.sets, noEnv)
			got := fmt.Sprint(err)
			if want := strings.Join(c.want, "\n"); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestSyntaxErrorHasPlace(t *testing.T) {
	_, err := Parse("t.yaml", []byte("train:\n  lr: [1, 2\nname: x\n"), nil)
	if err == nil || !strings.HasPrefix(err.Error(), "t.yaml:") || !strings.Contains(err.Error(), "not valid YAML") {
		t.Errorf("got %v", err)
	}
	_, err = Parse("t.yaml", []byte("a: b\ndata: {train: ${GOROOT}/x}\n"), nil)
	if err == nil || !strings.HasPrefix(err.Error(), "t.yaml:2:") || !strings.HasSuffix(err.Error(), "must stand in quotes") {
		t.Errorf("got %v", err)
	}
}

// A file's values, in each spelling that YAML has for them.
func TestValues(t *testing.T) {
	c, err := parse("dir/job.yaml", []byte(`
name: 007
seed: 18446744073709551615
data:
  train: ["a, b", 'c']
  eval:
    - d
    - "${X}/$${Y}/$Z"
  max_bytes: 1.5 MiB
comm: {timeout: 1h30m}
train: {max_steps: "${N}", lr: 1E-4, betas: [0.5, .25]}
sample: {prompt: "two\nlines"}
log:
`), nil, envOf(map[string]string{"X": "y", "N": "12"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ got, want any }{
		{c.Name, "007"},
		{c.Output, "runs/007"},
		{c.Seed, uint64(18446744073709551615)},
		{c.Data.Train, []string{"a, b", "c"}},
		{c.Data.Eval, []string{"d", "y/${Y}/$Z"}},
		{c.Data.MaxBytes, Bytes(3 << 19)},
		{c.Comm.Timeout.String(), "1h30m0s"},
		{c.Train.MaxSteps, 12},
		{c.Train.LR, 1e-4},
		{c.Train.Betas, []float64{0.5, 0.25}},
		{c.Log.Every, 1},
		{c.Eval.Every, 50},
	} {
		if !reflect.DeepEqual(x.got, x.want) {
			t.Errorf("got %v, want %v", x.got, x.want)
		}
	}
}

// --set reaches every key: whatever the file says, a flag with the key's
// resolved value gives the same configuration.
func TestSetReachesEveryKey(t *testing.T) {
	want, err := parse("job.yaml", []byte(everything), nil, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	var sets []string
	for _, f := range leaves {
		if f.isList() && f.in(want).Len() == 0 {
			sets = append(sets, f.path+"=")
			continue
		}
		parts := []string{}
		v := f.in(want)
		if f.isList() {
			for i := range v.Len() {
				parts = append(parts, escape(text(v.Index(i))))
			}
		} else {
			parts = append(parts, escape(text(v)))
		}
		sets = append(sets, f.path+"="+strings.Join(parts, ","))
	}
	got, err := parse("other.yaml", []byte("{}"), sets, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestSetOverridesAndLists(t *testing.T) {
	c, err := parse("job.yaml", []byte("data: {train: [x, y], eval: z}\ntrain: {max_steps: 1, lr: 1}\n"), []string{
		"data.train=a.txt,b.txt", `data.eval=["a,b", c]`, "train.lr=2", "train.lr=3", `name="q"`, "sample.prompt=a=b: c", "eval.every=0",
	}, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintln(c.Data.Train, c.Data.Eval, len(c.Data.Eval), c.Train.LR, c.Name, c.Sample.Prompt, c.Eval.Every)
	if want := "[a.txt b.txt] [a,b c] 2 3 q a=b: c 0\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The files in configs/ are jobs that load as they are.
func TestPresetsLoad(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no presets: %v", err)
	}
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(f, src, nil, envOf(map[string]string{"GOROOT": "/go"})); err != nil {
			t.Error(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ok)
	f.Add(everything)
	f.Add("a: [*x, &y z]\n? b\n: !!str c\n")
	f.Fuzz(func(t *testing.T, src string) {
		c, err := parse("job.yaml", []byte(src), nil, noEnv)
		if err == nil {
			roundTrip(t, c)
		}
	})
}

// What a caller's check finds stands at the key's place, and is looked for only in
// a configuration that is well otherwise.
func TestChecks(t *testing.T) {
	gone := Check{"data.train", func(c *Config) error { return fmt.Errorf("%s is gone", c.Data.Train[0]) }}
	well := Check{"data.eval", func(*Config) error { return nil }}
	for _, c := range []struct {
		src  string
		sets []string
		want string
	}{
		{"data:\n  train: a.txt\ntrain: {max_steps: 1}\n", nil, "t.yaml:2:10: data.train: a.txt is gone"},
		{"data:\n  train: a.txt\ntrain: {max_steps: 1}\n", []string{"data.train=b"}, "--set data.train=b: data.train: b is gone"},
		{"data:\n  train: a.txt\ntrain: {max_steps: -1}\n", nil, "t.yaml:3:20: train.max_steps: -1 is out of range: want at least 0"},
	} {
		_, err := Parse("t.yaml", []byte(c.src), c.sets, well, gone)
		if fmt.Sprint(err) != c.want {
			t.Errorf("%q: %v, want %s", c.src, err, c.want)
		}
	}
}
