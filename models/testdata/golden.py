#!/usr/bin/env python3
"""Writes the golden figures of the model families, from weights made from a seed.

    python3 golden.py        needs PyTorch (Debian: python3-torch), any version

The forward passes are written out here, in float64, and differentiated by
PyTorch; nothing is taken from the Go code but the definition of the random
numbers (models/rand.go), of initial weights, and of parameter names. Beside this
script lie the files that it writes: llama.json, qwen2.json, qwen3.json and
gpt2.json. Each holds the shape, a batch, the loss (a sum over targets that are
not negative), the logits behind the first sequence, and for each parameter its
own norm, and its gradient's norm and first values.
"""
import json
import math
import os

import torch

torch.set_default_dtype(torch.float64)
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


class Rand:
    def __init__(self, seed, name):
        h = 0xCBF29CE484222325  # FNV-1a
        for b in name.encode():
            h = ((h ^ b) * 0x100000001B3) & MASK
        self.key = mix((seed + GOLDEN * mix(h)) & MASK)

    def uint64(self, i):
        return mix((self.key + GOLDEN * (i + 1)) & MASK)

    def uniform(self, i):
        return (self.uint64(i) >> 11) / (1 << 53)

    def normal(self, n, std):
        out = []
        for j in range(0, n, 2):
            radius = std * math.sqrt(-2 * math.log(1 - self.uniform(j)))
            angle = 2 * math.pi * self.uniform(j + 1)
            out += [radius * math.cos(angle), radius * math.sin(angle)]
        return torch.tensor(out[:n]).float()  # weights are float32


def weight(name, shape, layers, seed=1):
    """The initial value plus noise of deviation 0.1, all in float32."""
    n = math.prod(shape)
    if name.endswith(".bias"):
        value = torch.zeros(n, dtype=torch.float32)
    elif len(shape) == 1:
        value = torch.ones(n, dtype=torch.float32)
    else:
        residual = name.endswith((".o_proj.weight", ".down_proj.weight", ".c_proj.weight"))
        value = Rand(seed, name).normal(n, 0.02 / math.sqrt(2 * layers) if residual else 0.02)
    value = value + Rand(seed, "shake " + name).normal(n, 0.1)
    return value.double().reshape(shape).requires_grad_()


def llama_shapes(c):
    q, kv = c["Heads"] * c["HeadDim"], c["KVHeads"] * c["HeadDim"]
    shapes = {"model.embed_tokens.weight": (c["Vocab"], c["Hidden"]), "model.norm.weight": (c["Hidden"],)}
    for i in range(c["Layers"]):
        p = f"model.layers.{i}."
        shapes[p + "input_layernorm.weight"] = shapes[p + "post_attention_layernorm.weight"] = (c["Hidden"],)
        for name, rows in ("q", q), ("k", kv), ("v", kv):
            shapes[p + f"self_attn.{name}_proj.weight"] = (rows, c["Hidden"])
            if c["QKVBias"]:
                shapes[p + f"self_attn.{name}_proj.bias"] = (rows,)
        if c.get("QKNorm"):
            shapes[p + "self_attn.q_norm.weight"] = shapes[p + "self_attn.k_norm.weight"] = (c["HeadDim"],)
        shapes[p + "self_attn.o_proj.weight"] = (c["Hidden"], q)
        shapes[p + "mlp.gate_proj.weight"] = shapes[p + "mlp.up_proj.weight"] = (c["FFN"], c["Hidden"])
        shapes[p + "mlp.down_proj.weight"] = (c["Hidden"], c["FFN"])
    if not c["Tied"]:
        shapes["lm_head.weight"] = (c["Vocab"], c["Hidden"])
    return shapes


def gpt2_shapes(c):
    h = c["Hidden"]
    shapes = {"transformer.wte.weight": (c["Vocab"], h), "transformer.wpe.weight": (c["MaxPositions"], h),
              "transformer.ln_f.weight": (h,), "transformer.ln_f.bias": (h,)}
    for i in range(c["Layers"]):
        p = f"transformer.h.{i}."
        for name, rows, cols in (("attn.c_attn", 3 * h, h), ("attn.c_proj", h, h), ("mlp.c_fc", c["FFN"], h), ("mlp.c_proj", h, c["FFN"])):
            shapes[p + name + ".weight"], shapes[p + name + ".bias"] = (rows, cols), (rows,)
        for name in "ln_1", "ln_2":
            shapes[p + name + ".weight"] = shapes[p + name + ".bias"] = (h,)
    if not c["Tied"]:
        shapes["lm_head.weight"] = (c["Vocab"], h)
    return shapes


def attend(q, k, v):
    """q [B,T,H,D], k and v [B,T,K,D] -> [B,T,H*D], causal."""
    b, t, h, d = q.shape
    k = k.repeat_interleave(h // k.shape[2], dim=2)
    v = v.repeat_interleave(h // v.shape[2], dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(d)
    hidden = torch.ones(t, t).triu(1).bool()
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(hidden, -math.inf).softmax(-1), v).reshape(b, t, h * d)


def llama(c, w, ids):
    b, t = ids.shape
    d = c["HeadDim"]
    angle = torch.arange(t).double()[:, None] * c["RopeTheta"] ** (-torch.arange(0, d, 2).double() / d)
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]

    def rope(x):
        first, second = x[..., : d // 2], x[..., d // 2:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + c["NormEps"]).sqrt() * w[name]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    x = w["model.embed_tokens.weight"][ids]
    for i in range(c["Layers"]):
        p = f"model.layers.{i}."
        n = norm(x, p + "input_layernorm.weight")
        q, k, v = (linear(n, p + f"self_attn.{s}_proj").reshape(b, t, -1, d) for s in "qkv")
        if c.get("QKNorm"):
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        x = x + linear(attend(rope(q), rope(k), v), p + "self_attn.o_proj")
        n = norm(x, p + "post_attention_layernorm.weight")
        gate = linear(n, p + "mlp.gate_proj")
        x = x + linear(gate * gate.sigmoid() * linear(n, p + "mlp.up_proj"), p + "mlp.down_proj")
    return norm(x, "model.norm.weight") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def gpt2(c, w, ids):
    b, t = ids.shape
    heads = (b, t, c["Heads"], c["Hidden"] // c["Heads"])

    def norm(x, name):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.pow(2).mean(-1, keepdim=True) + c["NormEps"]).sqrt() * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:t]
    for i in range(c["Layers"]):
        p = f"transformer.h.{i}."
        q, k, v = (s.reshape(heads) for s in linear(norm(x, p + "ln_1"), p + "attn.c_attn").chunk(3, -1))
        x = x + linear(attend(q, k, v), p + "attn.c_proj")
        x = x + linear(gelu(linear(norm(x, p + "ln_2"), p + "mlp.c_fc")), p + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w.get("lm_head.weight", w["transformer.wte.weight"]).T


def golden(file, config, shapes, forward, b=2, t=9):
    w = {name: weight(name, shape, config["Layers"]) for name, shape in shapes(config).items()}
    draw, vocab = Rand(2, "batch"), config["Vocab"]
    tokens = [draw.uint64(2 * i) % vocab for i in range(b * t)]
    targets = [draw.uint64(2 * i + 1) % (vocab + vocab // 4) - vocab // 4 for i in range(b * t)]
    logits = forward(config, w, torch.tensor(tokens).reshape(b, t)).reshape(b * t, vocab)
    at = torch.tensor(targets)
    kept = at >= 0
    loss = -logits.log_softmax(-1)[kept, at[kept]].sum()
    loss.backward()
    result = {
        "Config": config, "B": b, "T": t, "Tokens": tokens, "Targets": [max(x, -1) for x in targets],
        "Loss": loss.item(), "Logits": logits[t - 1].tolist(),
        "Params": {name: {"Norm": p.norm().item(), "GradNorm": p.grad.norm().item(), "GradFirst": p.grad.flatten()[:3].tolist()}
                   for name, p in sorted(w.items())},
    }
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), file), "w") as out:
        json.dump(result, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    base = {"Vocab": 29, "Hidden": 20, "Layers": 3, "Heads": 6, "KVHeads": 2, "HeadDim": 4, "FFN": 27,
            "MaxPositions": 16, "RopeTheta": 100.0, "NormEps": 1e-5}
    golden("llama.json", {**base, "QKVBias": False, "Tied": False}, llama_shapes, llama)
    golden("qwen2.json", {**base, "QKVBias": True, "Tied": True}, llama_shapes, llama)
    golden("qwen3.json", {**base, "QKVBias": False, "QKNorm": True, "Tied": True}, llama_shapes, llama)
    golden("gpt2.json", {"Vocab": 31, "Hidden": 20, "Layers": 3, "Heads": 5, "FFN": 52, "MaxPositions": 16,
                         "NormEps": 1e-5, "Tied": True}, gpt2_shapes, gpt2)
