// Package config is the one definition of train.yaml.
//
// The structs below carry everything that is known about a key: its name, what
// it does, its unit, default, permitted values, and what zero means. A walker
// over them (field.go) gives parsing with positions (parse.go), --set (set.go),
// the help text, the JSON Schema, docs/config.md, writing back (marshal.go) and
// the comparison that resuming needs (identity.go). A key is added by adding a
// struct field; what depends on several keys stands in resolve.go and
// validate.go.
//
// Tags: key is the name; def the default; enum the permitted words, a|b|c; range
// an interval such as [0,1) whose empty end is open; len the length of a list;
// unit and zero are words for the reader; derived says how a value that is not
// given is worked out; same:"resume" marks what a resumed run must share with
// the run that wrote the checkpoint.
package config

import "time"

// Config is one training job. Load gives a complete and valid one.
type Config struct {
	Name       string     `key:"name" derived:"the file's name without its extension" doc:"Name of the job, shown in the console and used for the default output folder."`
	Output     string     `key:"output" derived:"runs/ and the name" doc:"Folder for metrics.jsonl, logs/, checkpoints/ and samples. Relative paths, here and elsewhere, start at the folder gorun is started in."`
	Seed       uint64     `key:"seed" def:"42" same:"resume" doc:"Seed of the initial weights, the order of the samples, synthetic data and sampled text."`
	Model      Model      `key:"model" doc:"The model: its shape, or a folder with its weights."`
	Data       Data       `key:"data" doc:"What the model is trained and evaluated on."`
	Parallel   Parallel   `key:"parallel" doc:"How the job is spread over the ranks."`
	Comm       Comm       `key:"comm" doc:"How ranks exchange data."`
	Train      Train      `key:"train" doc:"The optimizer and the length of training."`
	Eval       Eval       `key:"eval" doc:"Evaluation on data that is not trained on."`
	Sample     Sample     `key:"sample" doc:"Text generated during training, to see what the model has learned."`
	Checkpoint Checkpoint `key:"checkpoint" doc:"Saving and resuming."`
	Log        Log        `key:"log" doc:"Console and metrics.jsonl."`
	Lora       Lora       `key:"lora" doc:"Training of low-rank adapters instead of all weights."`
	Launch     Launch     `key:"launch" doc:"Hosts that gorun starts the job on."`
}

// Model is the shape of a built-in model with weights drawn from the seed, or
// the folder of a pretrained one.
type Model struct {
	Path      string  `key:"path" same:"resume" zero:"weights are drawn from the seed, in the shape that the other keys give" doc:"Folder in Hugging Face format (config.json and safetensors) to take shape and weights from."`
	Arch      string  `key:"arch" def:"llama" enum:"llama|qwen2|qwen3|gpt2|gorgonia-mlp|gorgonia-convnet" same:"resume" doc:"Architecture. The two of gorgonia classify images, on the CPU, see docs/gorgonia.md; of the keys of this section they have layers and hidden."`
	Layers    int     `key:"layers" def:"4" range:"[1,1000]" same:"resume" derived:"for gorgonia-mlp 1; for gorgonia-convnet 2" doc:"Transformer blocks. For gorgonia-mlp its hidden layers, for gorgonia-convnet the convolutions, which are two."`
	Hidden    int     `key:"hidden" def:"128" range:"[1,100000]" same:"resume" doc:"Width of the residual stream; a multiple of heads, unless head_dim is given. For gorgonia-mlp and gorgonia-convnet the units of a hidden layer."`
	Heads     int     `key:"heads" def:"4" range:"[1,10000]" same:"resume" doc:"Attention heads."`
	KVHeads   int     `key:"kv_heads" def:"0" range:"[0,10000]" same:"resume" derived:"heads" doc:"Heads of keys and values (grouped-query attention); a divisor of heads."`
	HeadDim   int     `key:"head_dim" def:"0" range:"[0,10000]" same:"resume" derived:"hidden / heads" doc:"Size of a head. For gpt2 it is hidden / heads."`
	FFN       int     `key:"ffn" def:"0" range:"[0,1000000]" same:"resume" derived:"8/3 hidden, rounded up to a multiple of 32; for gpt2 4 hidden" doc:"Width of the feed-forward layer."`
	Vocab     int     `key:"vocab" def:"0" range:"[0,10000000]" same:"resume" derived:"256, one token a byte; must be given for tokens" doc:"Number of token ids."`
	MaxSeqLen int     `key:"max_seq_len" def:"0" range:"[0,10000000]" unit:"tokens" same:"resume" derived:"data.seq_len" doc:"Longest sequence that the model can take. For gpt2 it sizes the table of positions."`
	TieEmbed  bool    `key:"tie_embeddings" same:"resume" derived:"true for gpt2, else false" doc:"Whether the output layer shares the embedding's weights."`
	QKVBias   bool    `key:"qkv_bias" same:"resume" derived:"true for qwen2 and gpt2, else false" doc:"Whether the projections to queries, keys and values have a bias."`
	RopeTheta float64 `key:"rope_theta" def:"0" range:"[0,)" same:"resume" derived:"10000; 1000000 for qwen2 and qwen3; gpt2 has none" doc:"Base of the rotary position embedding's wavelengths."`
	NormEps   float64 `key:"norm_eps" def:"0" range:"[0,)" same:"resume" derived:"1e-5; 1e-6 for qwen2 and qwen3" doc:"Added to the variance in RMSNorm and LayerNorm."`
	Attention string  `key:"attention" def:"auto" enum:"auto|native|cudnn" doc:"Attention on a GPU. native: gorun's own kernels. cudnn: cuDNN's, version 9.14 or newer, with its deterministic backward pass; an error where it cannot be had. auto: cuDNN where it loads, agrees with native in a self-test and is known to be faster, else native; the log says which and why. The CPU has one implementation."`
}

// Data names the sources of training and evaluation and how they are cut into
// sequences.
type Data struct {
	Train      []string  `key:"train" same:"resume" doc:"Files to train on: a path, a glob (** crosses folders) or a list of them. Folders that a glob matches are skipped. Not used for synthetic."`
	Weights    []float64 `key:"weights" range:"[0,1000]" same:"resume" zero:"each sample comes once" doc:"How often the samples of each of train's entries come in an epoch: 2 is twice, 0.5 is one half of them, the same in every epoch. A number an entry. For samples."`
	Eval       []string  `key:"eval" zero:"no files of their own: see eval_split" doc:"Files to evaluate on, given as in train. Files that are also among train's are taken out of training."`
	EvalSplit  float64   `key:"eval_split" def:"0" range:"[0,0.5]" same:"resume" zero:"none is held back" doc:"Share of train that is held back for evaluation. Of samples, the seed and a hash of their tokens choose, in each entry of train by itself; equal samples are on the same side. Of files of bytes or token ids, a hash of each file's path below the first wildcard decides, so the choice is the same on every host and does not move when files are added; of a single file, the last part is held back."`
	Format     string    `key:"format" def:"text" enum:"text|text_rows|chat|sharegpt|alpaca|prompt_completion|mixed|tokens|synthetic|mnist" same:"resume" doc:"text: each file is a text. With tokenizer bytes, the bytes are the tokens, and each file ends in a zero byte; with another one each file is a sample. tokens: files of raw little-endian token ids, see dtype. synthetic: made from the seed, needs no files. mnist: train is a folder with the four files of MNIST, or of Fashion-MNIST; an image is a sequence of 784 tokens with one target, its label, and the test images are what is evaluated on. The others are samples, a row each, in files of JSON (an array) or JSONL (an object a line), packed by gzip or not: chat has messages, sharegpt conversations, alpaca instruction, input and output, prompt_completion prompt and completion, text_rows a text; mixed is any of these five, as each row's fields tell. docs/data.md has an example of each."`
	Tokenizer  string    `key:"tokenizer" same:"resume" zero:"model.path, or bytes where there is none" doc:"Folder with the tokenizer.json that makes tokens of text, or bytes: each byte is a token."`
	Template   string    `key:"template" same:"resume" zero:"that of the tokenizer's folder, where it has one" doc:"File with the chat template (Jinja) that conversations are written by, or none: then alpaca's rows are written by Alpaca's own prompt, and chat and sharegpt cannot be read."`
	TrainOn    string    `key:"train_on" def:"assistant" enum:"assistant|last|all" same:"resume" doc:"Which tokens of a sample are learned. assistant: what the assistant writes, to the token that ends its turn; of plain rows the completion or output and the token that ends the text. last: the same of the assistant's last message only. all: everything."`
	Truncation string    `key:"truncation" def:"auto" enum:"auto|cut|drop|split|error" same:"resume" doc:"Samples that are longer than seq_len. cut: their ends are left out. drop: they are. split: they become several. error: the job does not start. auto: split for text and text_rows, cut for the others. What is lost is counted in the console."`
	BadRows    string    `key:"bad_rows" def:"error" enum:"error|skip" same:"resume" doc:"Rows that cannot be read. error: the job does not start, and names file, line and field. skip: they are left out and counted in the console."`
	Cache      string    `key:"cache" zero:"gorun/data in the user's cache folder ($XDG_CACHE_HOME, or ~/.cache)" doc:"Folder where a host keeps the tokens of samples, from job to job. What lies there may be deleted when no job runs."`
	DType      string    `key:"dtype" def:"uint16" enum:"uint16|uint32" same:"resume" doc:"Width of a token id in files of format tokens."`
	SeqLen     int       `key:"seq_len" def:"256" range:"[1,10000000]" unit:"tokens" same:"resume" derived:"784 for mnist" doc:"Length of a training sequence."`
	Packing    bool      `key:"packing" def:"true" same:"resume" doc:"Of samples, true: a sequence holds as many as fit; attention does not cross from one to the next. Of bytes and token ids, true: the documents are joined and cut into windows of seq_len; a last part that fills no window is dropped (and counted in the console). false: one sample or document a sequence; what is missing is masked out of the loss."`
	MaxBytes   Bytes     `key:"max_bytes" def:"0" range:"[0,)" same:"resume" zero:"everything is read" doc:"Read only so much of train, and as much of eval. Files are taken in the order of a hash of their paths, so from all over; the last is cut. For bytes and token ids."`
	Fields     Fields    `key:"fields" doc:"Other names of the fields of rows. A name with dots leads into objects and lists: instances.0.output."`
}

// Fields are the names of the fields of rows.
type Fields struct {
	Messages    string `key:"messages" same:"resume" zero:"messages; conversations in sharegpt" doc:"The list of a conversation's messages."`
	Role        string `key:"role" same:"resume" zero:"role; from in sharegpt" doc:"Who says a message."`
	Content     string `key:"content" same:"resume" zero:"content; value in sharegpt" doc:"What a message says."`
	Tools       string `key:"tools" same:"resume" zero:"tools" doc:"The descriptions of tools that the assistant may call."`
	System      string `key:"system" same:"resume" zero:"system" doc:"The system message of sharegpt's and alpaca's rows."`
	Instruction string `key:"instruction" same:"resume" zero:"instruction" doc:"The instruction of alpaca's rows."`
	Input       string `key:"input" same:"resume" zero:"input" doc:"What the instruction is about, in alpaca's rows."`
	Output      string `key:"output" same:"resume" zero:"output" doc:"The answer in alpaca's rows."`
	Prompt      string `key:"prompt" same:"resume" zero:"prompt" doc:"The prompt of prompt_completion's rows."`
	Completion  string `key:"completion" same:"resume" zero:"completion" doc:"What follows the prompt, in prompt_completion's rows."`
	Text        string `key:"text" same:"resume" zero:"text" doc:"The text of text_rows' rows."`
}

// Parallel says how a job is spread over ranks.
type Parallel struct {
	Strategy             string  `key:"strategy" def:"ddp" enum:"ddp|zero1|zero2|zero3" doc:"ddp: every rank holds all weights, gradients and optimizer state; gradients are all-reduced. zero1: the optimizer state is sharded over the ranks, zero2: the gradients too, zero3: the weights too. Checkpoints are the same: each strategy goes on from any other's."`
	BucketCapMB          float64 `key:"bucket_cap_mb" def:"25" range:"(0,)" unit:"MiB" doc:"Gradients are reduced in buckets of at most this size."`
	FirstBucketMB        float64 `key:"first_bucket_mb" def:"1" range:"(0,)" unit:"MiB" doc:"Size of the first bucket that goes out; small, so that communication starts early."`
	FindUnusedParameters bool    `key:"find_unused_parameters" def:"false" doc:"Allow parameters that receive no gradient in a step. What some rank uses counts as zero on the others; what none uses is left as it is. Without it a missing gradient is an error that names the parameter. The built-in models use all of theirs."`
	StaticGraph          bool    `key:"static_graph" def:"true" doc:"Promise that each rank uses the same parameters in every step; a step that breaks it is an error. It makes find_unused_parameters as cheap as if it were off, and does nothing without it."`
	CheckReplicas        int     `key:"check_replicas" def:"100" range:"[0,)" unit:"steps" zero:"only before the first step" doc:"Steps between comparisons of a checksum of every weight, and on GPUs of its f32 master, over all ranks. Where they differ the job ends and names the weight and the rank. A comparison reads all weights and masters once. Under zero1 to zero3 there is nothing to compare: a master is on one rank alone, and each step makes all weights of them anew."`
	Compress             string  `key:"compress" def:"none" enum:"none|fp16|bf16|int8|powersgd|topk" doc:"Compression of gradients on their way, for slow networks. fp16, bf16: 16 bits an element, added up in fp32; fp16 turns what is below 6e-8 into zero and what is above 65504 into a skipped step. int8: a byte an element and a scale for each 256. powersgd: two thin matrices for each large one. topk: the largest elements of each parameter. What int8, powersgd and topk leave out is added to the next step; it takes 8 bytes of memory for each trained weight, on every rank whatever the strategy; a run that is resumed by as many ranks under the same strategy goes on with it. These three are for the CPU. The console and metrics.jsonl tell the bytes saved and the error made."`
	CompressRank         int     `key:"compress_rank" def:"1" range:"[1,10000]" doc:"Columns of powersgd's thin matrices: more send more and err less. A matrix that they would not make at least twice as small is sent whole, and so are vectors."`
	CompressStart        int     `key:"compress_start" def:"0" range:"[0,)" unit:"steps" zero:"from the first step on" doc:"Steps that send whole gradients before powersgd begins. The first ones suffer most from what is left out; PyTorch waits for 1000, and advises a tenth of the run."`
	CompressFraction     float64 `key:"compress_fraction" def:"0.01" range:"(0,1]" doc:"Share of each parameter's elements that topk sends, at least one. An element takes 8 bytes, place and value, and goes to every rank."`
	GradDType            string  `key:"grad_dtype" def:"auto" enum:"auto|fp32|bf16" doc:"Type that gradients are stored in; auto is fp32 where micro-steps are added up (train.grad_accum above 1), else the parameter's compute type. On a CPU always fp32."`
	ReduceDType          string  `key:"reduce_dtype" def:"auto" enum:"auto|fp32|bf16" doc:"Type that gradients are sent in; auto is grad_dtype."`
	Offload              string  `key:"offload" def:"none" enum:"none|optimizer" doc:"optimizer: on GPUs, master weights and the optimizer's moments lie in pinned memory of the host, 12 bytes for each parameter that a rank's optimizer steps. The optimizer works on them over the bus, so that every step takes the time of moving them once in each direction; the results are the same. On the CPU they are in the host's memory anyway."`
}

// Comm says how ranks exchange data.
type Comm struct {
	Engine    string        `key:"engine" def:"auto" enum:"auto|ring|nccl" doc:"Implementation of the collectives; ring is gorun's own: for host memory, for GPUs of one host that reach each other's memory, and for other GPUs by network cards that reach it (GPUDirect RDMA), else through pinned host memory. For GPU memory auto takes ring within such a host, and nccl between hosts and for what it is faster at within one (sends, receives, all-to-alls with counts, and large arrays that are not in the group's memory, as gradients are); or the one of them that can be had. Host memory has ring alone."`
	Transport string        `key:"transport" def:"auto" enum:"auto|shm|tcp|rdma" doc:"How bytes travel; auto is shm within a host, and between hosts rdma where every rank has a port that is fit for it, else tcp. The log says which, and why. rdma is InfiniBand or RoCE, and takes nothing else."`
	Timeout   time.Duration `key:"timeout" def:"10m" range:"(0,)" doc:"A collective that takes longer fails on every rank and ends the job. What a rank waits for another counts. Waiting for its part of a checkpoint does not, unless its disk moves no byte for so long."`
	Interface string        `key:"interface" zero:"the one that routes to the peer" doc:"Network interface for tcp, such as eth0; NCCL gets it too."`
	Ports     string        `key:"ports" zero:"any free port" doc:"Ports on which tcp may listen, such as 40000-40100, where a firewall is between the hosts. A host needs as many as it has ranks, and twice as many where memory of GPUs goes through the hosts'."`
	Overlap   bool          `key:"overlap" def:"true" doc:"Send gradients while the backward pass still runs; false sends them after it, for comparison."`
	Algo      string        `key:"algo" def:"auto" enum:"auto|oneshot|doubling|direct|ring|tree|chain|twolevel|kernels|copy-engines|nccl" doc:"Algorithm of the collectives that have it; the others take what is cheapest by size and ranks, as all do with auto. Over tcp and rdma: oneshot to chain. Shared memory has one of its own. twolevel needs several hosts with several ranks, where auto takes it too. Between GPUs of one host: kernels, direct (kernels that work on arrays where they are), copy-engines and nccl."`
	Channels  int           `key:"channels" def:"0" range:"[0,64]" zero:"1 within a host and 2 between hosts" doc:"Connections between two ranks over tcp, in each direction. Shared memory needs none."`
	Chunk     Bytes         `key:"chunk" def:"0" range:"[0,)" zero:"1MiB" doc:"Size of the largest message over tcp and rdma, at least 64; larger arrays travel in pieces. Shared memory has pieces of its own."`
	Tune      string        `key:"tune" def:"auto" enum:"auto|off" doc:"auto: where collectives have a choice of algorithms, as over tcp and between the GPUs of a host, joining measures them, which takes about 0.2 s, and keeps the figures in the user's cache for later jobs on the same hosts; a run that is resumed goes on with those of its checkpoint. off: typical figures choose."`
	MaxCTAs   int           `key:"max_ctas" def:"0" range:"[0,64]" zero:"chosen by the engine" doc:"Thread blocks of a GPU that a collective's kernel may occupy: fewer leave more of the GPU to the computation beside it, more are faster alone."`
	TopoFile  string        `key:"topo_file" zero:"NCCL looks for itself" doc:"File that describes a host to NCCL, in its XML format, where what NCCL finds by itself is wrong or hidden, as in some virtual machines; gorun topo --xml writes one, and gorun topo --topo-file shows what it says. Each host reads its own, under the same path. It goes before NCCL_TOPO_FILE, and the choice of a port of RDMA goes by it too. A file that cannot be read, or that NCCL would not take, is an error before training. For GPUs, and for RDMA on the CPU too."`

	IBHCA        string `key:"ib_hca" zero:"NCCL_IB_HCA, else all of the host" doc:"Devices that rdma may use, as NCCL names them: mlx5 (all whose names begin so), mlx5_0,mlx5_1:2 (with its port), =mlx5_1 (exactly), ^mlx5_2 (all but). Of their ports a rank takes the one nearest to its GPU; ranks that are as near to several take them in turn."`
	GIDIndex     int    `key:"gid_index" def:"-1" range:"[-1,4095]" doc:"Address of a port of RDMA, by its index in the port's table. -1: NCCL_IB_GID_INDEX, else chosen: on Ethernet one of RoCE v2 with an IPv4 address, else with a global IPv6 address, else a link-local one."`
	TrafficClass int    `key:"traffic_class" def:"0" range:"[0,255]" zero:"NCCL_IB_TC, else 0" doc:"Traffic class of RDMA packets, from which switches tell lossless traffic: the DSCP times 4."`
	IBTimeout    int    `key:"ib_timeout" def:"0" range:"[0,31]" zero:"NCCL_IB_TIMEOUT, else 20" doc:"How long an RDMA packet may go without an answer before it is sent again, as a code t: 4.096 microseconds times 2^t, so 4.3 s for 20."`
	IBRetries    int    `key:"ib_retries" def:"-1" range:"[-1,7]" doc:"How often an RDMA packet is sent again before its peer counts as lost. -1: NCCL_IB_RETRY_CNT, else 7."`
	PKey         int    `key:"pkey" def:"0" range:"[0,65535]" zero:"NCCL_IB_PKEY, else the first" doc:"Partition of RDMA, by its index in the port's table."`
	QueuePairs   int    `key:"queue_pairs" def:"0" range:"[0,16]" zero:"NCCL_IB_QPS_PER_CONNECTION, else 2" doc:"Queue pairs between two ranks over RDMA; large messages are cut into as many stripes. The same on all hosts."`
}

// Train is the optimizer (AdamW), its schedule and the length of training.
type Train struct {
	MaxSteps      int       `key:"max_steps" def:"0" range:"[0,)" unit:"steps" zero:"no limit; give epochs" doc:"Optimizer steps of the whole job, resumed ones included."`
	Epochs        float64   `key:"epochs" def:"0" range:"[0,)" unit:"passes over the data" zero:"no limit; give max_steps" doc:"Length of training in passes over the data, 2.5 for instance. With max_steps too, whichever ends first. Passes follow each other without a seam: a step may hold the end of one and the beginning of the next. The last step of the job holds the sequences that are left; its loss is their mean over its own targets."`
	MicroBatch    int       `key:"micro_batch" def:"8" range:"[1,100000]" unit:"sequences per rank and micro-step" doc:"Sequences that a rank works on at once. The global batch is micro_batch times grad_accum times the number of ranks."`
	GradAccum     int       `key:"grad_accum" def:"1" range:"[1,100000]" unit:"micro-steps" doc:"Micro-steps whose gradients are added up before one optimizer step."`
	LR            float64   `key:"lr" def:"3e-4" range:"(0,)" doc:"Peak learning rate."`
	Schedule      string    `key:"schedule" def:"cosine" enum:"cosine|linear|constant|cosine_with_restarts|polynomial|inverse_sqrt|warmup_stable_decay" doc:"Course of the learning rate behind the warm-up, as a share of lr; p goes from 0 to 1 over the steps that are left, and m is min_lr_ratio. linear: m + (1-m)(1-p). cosine: m + (1-m)(1 + cos(pi p))/2. cosine_with_restarts: the same, cycles times over: p is the fraction of p times cycles. polynomial: m + (1-m)(1-p)^power. inverse_sqrt: sqrt(w/(w+k)), k steps behind a warm-up of w steps; 10000 is w without one. warmup_stable_decay: 1, and in the last decay_steps a fall to m as decay_shape says. constant: 1. The formulas are those of transformers, of which constant_with_warmup is constant here, and cosine_with_min_lr is cosine. A run that goes on under other settings, max_steps and epochs included, takes the rates that these give its steps, as if they had been so from the start; the console says so."`
	WarmupSteps   int       `key:"warmup_steps" def:"0" range:"[0,)" unit:"steps" zero:"no warm-up" doc:"Steps w in which the learning rate rises in a straight line: step k of them, from 1 on, has k/(w+1) of lr, and the step behind them has lr. In transformers the first step has a rate of 0."`
	WarmupRatio   float64   `key:"warmup_ratio" def:"0" range:"[0,1)" zero:"see warmup_steps" doc:"The warm-up as a share of the job's steps, rounded up to whole ones. Give this or warmup_steps."`
	MinLRRatio    float64   `key:"min_lr_ratio" def:"0" range:"[0,1]" zero:"the learning rate ends at 0" doc:"Learning rate at the end, as a share of lr. Not used by constant and inverse_sqrt."`
	Cycles        int       `key:"cycles" def:"1" range:"[1,1000000]" doc:"Falls of the learning rate, for cosine_with_restarts."`
	Power         float64   `key:"power" def:"1" range:"(0,100]" doc:"Exponent of schedule polynomial; 1 is linear."`
	DecaySteps    int       `key:"decay_steps" def:"0" range:"[0,)" unit:"steps" zero:"a tenth of the job's steps, rounded up" doc:"Steps at the end in which warmup_stable_decay falls."`
	DecayShape    string    `key:"decay_shape" def:"cosine" enum:"cosine|linear|1-sqrt" doc:"How warmup_stable_decay falls, with p from 0 to 1 over decay_steps: (1 + cos(pi p))/2, 1-p, or 1 - sqrt(p), each scaled to end at min_lr_ratio."`
	Betas         []float64 `key:"betas" def:"0.9,0.95" range:"[0,1)" len:"2" doc:"Decay of AdamW's running means of the gradient and of its square."`
	Eps           float64   `key:"eps" def:"1e-8" range:"(0,)" doc:"Added to the root of the second moment in AdamW."`
	WeightDecay   float64   `key:"weight_decay" def:"0.1" range:"[0,)" zero:"none" doc:"Decoupled weight decay of matrices; biases and norms are not decayed."`
	MaxGradNorm   float64   `key:"max_grad_norm" def:"1" range:"[0,)" zero:"no clipping" doc:"Gradients whose global norm is larger are scaled down to it."`
	Precision     string    `key:"precision" def:"auto" enum:"auto|fp32|bf16" doc:"Type of parameters and activations: bf16 on a GPU, beside master weights and optimizer state in fp32; fp32 on a CPU. auto is the device's."`
	Device        string    `key:"device" def:"auto" enum:"auto|cpu|cuda" doc:"Where to compute. auto: on a GPU where one is visible and can run the model, else on the CPU; the console says why."`
	Threads       int       `key:"threads" def:"0" range:"[0,)" unit:"cores per rank" zero:"the host's cores divided by its ranks" doc:"Cores that a rank computes on, on the CPU; with train.device auto a GPU does not heed it."`
	MatMul        string    `key:"matmul" def:"auto" enum:"auto|own|openblas|gonum" doc:"Matrix products on the CPU: own needs AVX2, openblas needs libopenblas.so.0, gonum runs everywhere. auto takes the first of them that works here. Which one it is stands in the log. With train.device auto a GPU does not heed it."`
	Recompute     string    `key:"recompute" def:"none" enum:"none|norms|block" doc:"Activations that are computed again in the backward pass instead of being kept. norms: outputs of normalisations and activation functions, cheap. block: all but each block's input, at the price of a second forward pass. Results have the same bits."`
	SkipNonfinite int       `key:"skip_nonfinite" def:"3" range:"[1,)" unit:"steps" doc:"A step whose loss or gradients are NaN or infinite is skipped on all ranks; training stops when so many come in a row. 1 stops at the first."`
}

// Eval is evaluation on a fixed list of sequences, the same for any number of
// ranks.
type Eval struct {
	Every    int     `key:"every" unit:"steps" range:"[0,)" derived:"50 where there is data to evaluate on, else 0" zero:"no evaluation" doc:"Steps between evaluations; there is always one at the end."`
	Steps    int     `key:"steps" def:"8" range:"[0,)" unit:"global batches" derived:"0 for mnist" zero:"all of the evaluation data" doc:"Length of an evaluation. In sequences it is the same for any split of the global batch over ranks, so losses compare."`
	AtStart  bool    `key:"at_start" def:"false" doc:"Evaluate before the first step too, which tells what the model could do before."`
	Patience int     `key:"patience" def:"0" range:"[0,)" unit:"evaluations" zero:"training goes on to its end" doc:"Stop early: training ends when so many evaluations in a row have brought no improvement. The job counts as finished: its last checkpoint and what is made at the end are there, and --resume finds nothing to do unless patience is raised."`
	MinDelta float64 `key:"min_delta" def:"0" range:"[0,)" unit:"nats a token" zero:"any lower loss is an improvement" doc:"An improvement, to patience, is a validation loss that is lower by more than this than the one at the last improvement."`
}

// Sample is text generated during training.
type Sample struct {
	Every       int     `key:"every" def:"0" range:"[0,)" unit:"steps" zero:"no samples" doc:"Steps between samples; there is always one at the end."`
	Prompt      string  `key:"prompt" def:"The " doc:"Text that the sample continues."`
	Tokens      int     `key:"tokens" def:"128" range:"[1,)" unit:"tokens" doc:"Length of the sample."`
	Temperature float64 `key:"temperature" def:"0.8" range:"[0,)" zero:"always the most likely token" doc:"Divides the logits before sampling."`
	TopP        float64 `key:"top_p" def:"1" range:"(0,1]" doc:"Sample from the most likely tokens that together have this probability."`
}

// Checkpoint is saving and resuming.
type Checkpoint struct {
	Every  int    `key:"every" def:"100" range:"[0,)" unit:"steps" zero:"only at the end" doc:"Steps between checkpoints; there is one at the end, too, unless final is false."`
	Final  bool   `key:"final" def:"true" doc:"Save a checkpoint at the end of the job, and when it is asked to stop. false is for measurements of speed."`
	Async  bool   `key:"async" def:"true" doc:"Write a checkpoint beside the next steps: each rank copies its part of the weights and the optimizer's state to host memory, which takes as much of it, and training goes on. false: training stands still while checkpoints are written. The last one is waited for in any case. Without checkpoint.every there is no copy."`
	Export bool   `key:"export" def:"true" derived:"false for gorgonia-mlp and gorgonia-convnet, which have no such format" doc:"At the end of the job, make a folder in Hugging Face's format of the last checkpoint, or of the best with best: export in the output folder holds the model, or the adapters that were trained. gorun export does the same for any checkpoint. Without checkpoint.final there is none."`
	Keep   int    `key:"keep" def:"2" range:"[0,)" zero:"all" doc:"The newest so many checkpoints are kept, and with best the best one."`
	Best   bool   `key:"best" def:"false" doc:"Keep the checkpoint with the lowest validation loss, whatever its age, and export that one. An evaluation that is the best so far is saved at once, between every's too. Which one is best stands in the checkpoints themselves."`
	Resume string `key:"resume" def:"none" doc:"none: start anew. auto: go on from the newest good checkpoint in output, or start anew where there is none; --resume means this. Else the path of a checkpoint. Workers that --max-restarts starts again go on from their own job's newest in any case."`
}

// Log is the console and metrics.jsonl.
type Log struct {
	Every       int    `key:"every" def:"1" range:"[1,)" unit:"steps" doc:"Steps between lines of training metrics."`
	Trace       int    `key:"trace" def:"0" range:"[0,)" unit:"steps" zero:"no trace" doc:"Steps to record from the run's second step on: what ran when on which stream of each rank. They are written to trace.json, which Perfetto draws."`
	TensorBoard bool   `key:"tensorboard" def:"true" doc:"Write the metrics as event files for TensorBoard too, in the folder tensorboard of the output."`
	Plot        bool   `key:"plot" def:"true" doc:"Draw the losses at the end, in loss.png of the output."`
	Prometheus  string `key:"prometheus" zero:"no page" doc:"Address, such as :9100, at which rank 0 serves the newest metrics for Prometheus, under /metrics."`
}

// Lora is training of low-rank adapters.
type Lora struct {
	R       int      `key:"r" def:"0" range:"[0,10000]" same:"resume" zero:"no adapters: all weights are trained" doc:"Rank of the adapters (LoRA). With adapters the model's weights are frozen: they cost neither gradients nor optimizer state, and a checkpoint holds the adapters alone."`
	Alpha   float64  `key:"alpha" def:"0" range:"[0,)" same:"resume" derived:"twice r" doc:"Scale of the adapters: their output is multiplied by alpha/r."`
	Dropout float64  `key:"dropout" def:"0" range:"[0,1)" same:"resume" zero:"none" doc:"Share of an adapter's inputs that is zeroed in training. What is dropped follows from the seed, the step and the sample, not from the number of ranks."`
	Targets []string `key:"targets" same:"resume" zero:"every linear layer of the blocks, as all" doc:"The layers that get adapters, by the ends of their names: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj; for gpt2 c_attn, c_proj, c_fc, or attn.c_proj for one of two. all: every linear layer of the blocks."`
}

// Launch names hosts.
type Launch struct {
	Hosts []string `key:"hosts" zero:"this host, or those on which gorun is started with --node-rank" doc:"Hosts to start the job on by ssh, each with --nproc workers, or as many as its name says: node2:4. The first is the one on which gorun is started. --hosts wins; with --node-rank or --rdzv it is not used."`
}

// Bytes is a size in bytes. In YAML it may carry a unit: 64MB (10^6), 64MiB (2^20).
type Bytes int64
