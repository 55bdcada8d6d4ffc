#!/usr/bin/env python3
"""Trains the same model on the same samples with transformers' Trainer as gorun does,
and compares the losses and the speed.

    trainer.py make BASE --tokenizer TOK          a random Qwen2.5-0.5B, in Hugging Face's format
    trainer.py train CONFIG --out trainer.json    100 steps of it by the Trainer
    trainer.py compare gorun/metrics.jsonl trainer.json ...

CONFIG is gorun's own file, trainer.yaml, and --set overrides its keys as gorun's does, so
that both have one set of hyper-parameters. What is done here for both to do the same:

- Samples. The Trainer gets them from transformers' tokenizer and chat template, not from
  gorun. Their order is gorun's shuffle (class Order, the twin of models/data/order.go). A
  sample of n tokens is n-1 inputs and their targets; what data.seq_len does not hold is cut
  off, what is missing is padded, as gorun does. There is no attention mask: behind the
  padding nothing counts, and so the Trainer may use its fastest attention.
- Loss: the sum over a batch's targets by their number, which is the Trainer's own way.
- AdamW: torch's fused one, in the Trainer's own groups: matrices decay, biases and norms
  do not. Clipping is the Trainer's.
- Learning rate: gorun's formula; transformers' warm-up would begin with a step of rate 0.
- Weights are fp32, and autocast computes in bf16 (--precision bf16). Other precisions and
  --attention eager show how far apart two runs of the Trainer itself are.

On a GPU a step's time is between two events on its stream; nothing waits for the GPU but
the Trainer itself. torch, transformers and accelerate are needed, for compare alone none.
"""

import argparse
import json
import math
import pathlib
import shutil
import statistics
import time

WARM = 10  # first steps, which do not count for the speed: kernels are chosen and compiled


def make(args):
    """Writes a model with transformers' own initial weights. They are bf16, so that
    whoever loads them has the same numbers in any type."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(args.seed)
    config = Qwen2Config(
        vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers, intermediate_size=args.ffn,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, rms_norm_eps=1e-6, tie_word_embeddings=True,
        bos_token_id=151643, eos_token_id=151645, use_cache=False,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(args.dir)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(pathlib.Path(args.tokenizer) / name, pathlib.Path(args.dir) / name)


def settings(path, overrides):
    """gorun's configuration, as nested dicts; overrides are KEY=VALUE."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML 1.2's numbers, as gorun reads them: 1e-4 is one."""

    number = yaml.resolver.re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    with open(path) as f:
        config = yaml.load(f, Loader)
    for text in overrides:
        key, value = text.split("=", 1)
        *sections, last = key.split(".")
        at = config
        for s in sections:
            at = at.setdefault(s, {})
        at[last] = yaml.load(value, Loader)
    wanted = {("data", "format"): "alpaca", ("data", "packing"): False, ("data", "truncation"): "cut", ("train", "schedule"): "cosine"}
    for (section, key), value in wanted.items():
        if config[section].get(key) != value:
            raise SystemExit(f"{path}: {section}.{key} must be {value}: this is all that trainer.py can do as gorun does it")
    return config


class Order:
    """gorun's order of n samples: At(k) of models/data/order.go, whose random numbers
    are those of models/rand.go. Valid over as many epochs as there are."""

    BITS = (1 << 64) - 1
    GOLDEN = 0x9E3779B97F4A7C15

    def __init__(self, seed, n):
        self.seed, self.n = seed, n
        self.half = ((n - 1).bit_length() + 1) // 2
        self.name = 0xCBF29CE484222325  # FNV-1a of the name of what the numbers are for
        for byte in b"data.order":
            self.name = (self.name ^ byte) * 0x100000001B3 & self.BITS

    def mix(self, z):
        z &= self.BITS
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & self.BITS
        z = (z ^ z >> 27) * 0x94D049BB133111EB & self.BITS
        return z ^ z >> 31

    def __getitem__(self, k):
        epoch, i = divmod(k, self.n)
        key = self.mix(self.seed + epoch * self.GOLDEN + self.GOLDEN * self.mix(self.name))
        mask = (1 << self.half) - 1
        while True:
            left, right = i >> self.half, i & mask
            for r in range(6):
                left, right = right, left ^ (self.mix(key + self.GOLDEN * ((r << 32 | right) + 1)) & mask)
            i = left << self.half | right
            if i < self.n:
                return i


def samples(config, tokenizer):
    """The (inputs, targets) of every sample that keeps a target, of at most data.seq_len
    each. The targets that count are the assistant's content and the mark that ends its turn."""
    data = config["data"]
    with open(data["train"]) as f:
        rows = [json.loads(line) for line in f]
    texts, said = [], []  # said: from where to where the assistant's text and its end are
    for row in rows:
        asked = [{"role": "user", "content": row[data["fields"]["instruction"]]}]
        answer = row[data["fields"]["output"]]
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        text = tokenizer.apply_chat_template([*asked, {"role": "assistant", "content": answer}], tokenize=False)
        texts.append(text)
        said.append((len(prompt), text.rindex(answer) + len(answer + tokenizer.eos_token)))
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    out = []
    for ids, places, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"], said):
        targets = [t if begin < to and at < end else -100 for t, (at, to) in zip(ids, places)][1:][: data["seq_len"]]
        if set(targets) != {-100}:
            out.append((ids[:-1][: data["seq_len"]], targets))
    return out


def rate(train, step):
    """The learning rate of a step, counted from 0, as a share of train.lr."""
    warm, total, low = train["warmup_steps"], train["max_steps"], train["min_lr_ratio"]
    if step < warm:
        return (step + 1) / (warm + 1)
    done = min((step - warm) / max(total - warm, 1), 1)
    return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2


def train(args):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

    config = settings(args.config, args.set)
    hyper, seq_len = config["train"], config["data"]["seq_len"]
    path, batch = config["model"]["path"], hyper["micro_batch"]
    on_gpu = torch.cuda.is_available() and not args.cpu

    every = samples(config, AutoTokenizer.from_pretrained(path))
    order = Order(config["seed"], len(every))
    taken = [every[order[k]] for k in range(hyper["max_steps"] * batch)]

    def collate(part):
        def rows(which, fill):
            return torch.tensor([s[which] + [fill] * (seq_len - len(s[which])) for s in part])

        targets = rows(1, -100)
        return {"input_ids": rows(0, 0), "labels": targets, "shift_labels": targets}

    losses, marks = [], []

    def mark():
        if not on_gpu:
            return marks.append(time.perf_counter())
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()

    def millis(a, b):
        return a.elapsed_time(b) if on_gpu else (b - a) * 1e3

    class Watched(Trainer):
        """The Trainer with gorun's learning rate, which keeps each step's loss."""

        def create_scheduler(self, num_training_steps, optimizer=None):
            optimizer = optimizer or self.optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(hyper, step))
            return self.lr_scheduler

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            losses.append(loss.detach().clone())
            return loss

    class Report(TrainerCallback):
        def on_step_end(self, *_, **__):
            mark()

        def on_log(self, *_, **__):  # the Trainer has waited for the GPU here
            self.write()

        def write(self):
            if on_gpu:
                torch.cuda.synchronize()
            steps = [
                {"step": k + 1, "loss": losses[k].item(), "step_ms": millis(marks[k - 1], marks[k]) if k else None}
                for k in range(len(marks))
            ]
            targets = [sum(t != -100 for s in taken[k * batch : (k + 1) * batch] for t in s[1]) for k in range(len(marks))]
            tokens = [sum(len(s[0]) for s in taken[k * batch : (k + 1) * batch]) for k in range(len(marks))]
            about = {
                "batch": batch, "tokens": tokens, "targets": targets,
                "torch": torch.__version__, "device": torch.cuda.get_device_name() if on_gpu else "cpu",
                "attention": args.attention, "precision": args.precision, "compile": args.compile,
                "memory": torch.cuda.max_memory_reserved() if on_gpu else None,
            }  # fmt: skip
            pathlib.Path(args.out).write_text(json.dumps({"about": about, "steps": steps}))

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=args.attention)
    torch.set_float32_matmul_precision("high" if args.precision == "tf32" else "highest")
    arguments = TrainingArguments(
        output_dir=str(pathlib.Path(args.out).with_suffix("")), max_steps=hyper["max_steps"], seed=config["seed"],
        per_device_train_batch_size=batch, train_sampling_strategy="sequential", remove_unused_columns=False,
        learning_rate=hyper["lr"], optim="adamw_torch_fused", max_grad_norm=hyper["max_grad_norm"],
        adam_beta1=hyper["betas"][0], adam_beta2=hyper["betas"][1], adam_epsilon=hyper["eps"], weight_decay=hyper["weight_decay"],
        bf16=args.precision == "bf16", torch_compile=args.compile, use_cpu=not on_gpu,
        logging_steps=10, save_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=on_gpu,
    )  # fmt: skip
    report = Report()
    trainer = Watched(model=model, args=arguments, train_dataset=taken, data_collator=collate, callbacks=[report])
    trainer.train()
    report.write()


class Run:
    """What gorun's metrics.jsonl or train's file tells of one run."""

    def __init__(self, path):
        path = pathlib.Path(path)
        self.about = {}
        if path.suffix == ".jsonl":
            self.name = path.parent.name
            steps = [s for s in map(json.loads, path.read_text().splitlines()) if "event" not in s]
        else:
            self.name = path.stem
            said = json.loads(path.read_text())
            self.about, steps = said["about"], said["steps"]
        if [s["step"] for s in steps] != list(range(1, len(steps) + 1)):
            raise SystemExit(f"{path}: the steps are not 1, 2, 3 and so on")
        self.loss = [float(s["loss"]) for s in steps]
        times = [s["step_ms"] for s in steps[WARM:]] or [s["step_ms"] for s in steps[1:]]
        self.ms = statistics.median(times) if times else math.nan

    def smooth(self):
        """Means over ten steps that follow each other, the first of which is k."""
        return [statistics.fmean(self.loss[k : k + 10]) for k in range(max(len(self.loss) - 9, 1))]


def compare(args):
    runs = [Run(p) for p in args.runs]
    about = next((r.about for r in runs if r.about), None)
    if about is None:
        raise SystemExit("compare takes at least one file of train: it tells the size of a batch")
    names = [r.name for r in runs]

    def table(*rows):
        widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
        for r in rows:
            print("  ".join(str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(r, widths))).rstrip())
        print()

    last = max(len(r.loss) for r in runs)
    shown = [1, *range(10, last + 1, 10)]
    table(["loss at step", *names], *([k, *(f"{r.loss[k - 1]:.4f}" if k <= len(r.loss) else "" for r in runs)] for k in shown))

    pairs = [(a, b) for i, a in enumerate(runs) for b in runs[i + 1 :]]
    rows = []
    for a, b in pairs:
        raw = [abs(x - y) for x, y in zip(a.loss, b.loss)]
        smooth = [abs(x - y) for x, y in zip(a.smooth(), b.smooth())]
        at = smooth.index(max(smooth))
        figures = [statistics.fmean(raw), max(raw), statistics.fmean(smooth), max(smooth)]
        rows.append([f"{a.name} - {b.name}", len(raw), *(f"{x:.2g}" for x in [raw[0], *figures]), f"{at + 1}-{at + len(a.loss[at : at + 10])}"])
    table(["difference of losses", "steps", "at step 1", "mean", "largest", "smoothed: mean", "largest", "at"], *rows)

    batch = about["batch"]
    tokens = statistics.fmean(about["tokens"])
    rows = []
    for r in runs:
        memory = r.about.get("memory")
        size = f"{memory / 1e9:.1f}" if memory else ""
        rows.append([r.name, f"{r.ms:.1f}", f"{batch / r.ms * 1e3:.1f}", f"{tokens / r.ms * 1e3:.0f}", f"{r.ms / runs[0].ms:.2f}", size])
    table([f"speed from step {WARM + 1} on", "ms a step, median", "samples/s", "tokens/s, no padding", "time by the first's", "GB reserved"], *rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = p.add_subparsers(required=True)

    c = commands.add_parser("make", help="write a random model; the sizes are Qwen2.5-0.5B's")
    c.add_argument("dir")
    c.add_argument("--tokenizer", required=True, help="folder with Qwen2.5's tokenizer.json and tokenizer_config.json")
    c.add_argument("--seed", type=int, default=42)
    for name, size in {"layers": 24, "hidden": 896, "heads": 14, "kv-heads": 2, "ffn": 4864, "vocab": 151936}.items():
        c.add_argument(f"--{name}", type=int, default=size)
    c.set_defaults(run=make)

    c = commands.add_parser("train", help="train it with transformers' Trainer")
    c.add_argument("config", help="gorun's configuration")
    c.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of it")
    c.add_argument("--out", required=True, help="file for the losses and times, written every ten steps")
    c.add_argument("--precision", choices=["bf16", "tf32", "fp32"], default="bf16")
    c.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    c.add_argument("--compile", action="store_true", help="with torch.compile")
    c.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    c.set_defaults(run=train)

    c = commands.add_parser("compare", help="tables of losses, their differences, and speed")
    c.add_argument("runs", nargs="+", help="gorun's metrics.jsonl, and files of train")
    c.set_defaults(run=compare)

    args = p.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
