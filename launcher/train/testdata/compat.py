"""What transformers, peft and safetensors make of folders that gorun wrote.

    compat.py [--newer] < questions > answers

--newer is for what the usual transformers is too old for: it takes that of
.ci/python-newer.txt, where this Python has it. The questions are JSON: {"ids": [...], "models": [...], "adapters": [...], "files": [...]}.
"models" are folders. "adapters" are folders of adapters, each for the model that it
names. "files" are files of tensors. The answers are JSON:

    models    by folder: class, type of the weights as they lie there, what was missing or
              unexpected, warnings, the logits behind each of ids, and the greedy
              continuation of ids. Model and tokenizer are saved again, as folder.back
    adapters  by folder: the logits with the adapters, and of the model they are merged into
    files     by file: metadata, and each tensor's type and shape
"""
import json
import logging
import os
import sys
import warnings

newer = os.path.join(sys.prefix, "newer")
if "--newer" in sys.argv and os.path.isdir(newer):
    sys.path.insert(0, newer)
    import oldtorch  # noqa: F401

import torch
import transformers
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

warnings.filterwarnings("ignore")  # of Python, about versions; transformers' own are logged
torch.set_num_threads(1)

questions = json.load(sys.stdin)
ids = torch.tensor([questions["ids"]])
said = []


class Listener(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


transformers.logging.disable_default_handler()
transformers.logging.get_logger().addHandler(Listener(logging.WARNING))


def logits(model):
    with torch.no_grad():
        return model(input_ids=ids).logits[0].double().tolist()


def opened(folder):
    said.clear()
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    model.float()  # which newer ones do not by themselves
    complaints = {kind: [str(x) for x in found] for kind, found in info.items() if found}
    told = list(said)
    stored = AutoModelForCausalLM.from_pretrained(folder, torch_dtype="auto").dtype
    # Left to find out about synced_gpus, it imports a part of torch 1.13 that Python 3.11 refuses.
    more = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, pad_token_id=0, synced_gpus=False)
    model.save_pretrained(folder + ".back", max_shard_size="20KB" if "sharded" in folder else "1GB")
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder + ".back")
    return {
        "class": type(model).__name__,
        "dtype": str(stored),
        "complaints": complaints,
        "warnings": told,
        "logits": logits(model.eval()),
        "continued": more[0, ids.shape[1]:].tolist(),
        "ends": model.generation_config.eos_token_id,
    }


def adapted(folder):
    with open(folder + "/adapter_config.json") as f:
        base = json.load(f)["base_model_name_or_path"]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()
    return {"logits": logits(model), "merged": logits(model.merge_and_unload())}


def described(tensor):
    return f"{tensor.dtype} [{' '.join(map(str, tensor.shape))}]"


def held(file):
    with safe_open(file, framework="pt") as f:
        return {"metadata": f.metadata(), "tensors": {name: described(f.get_tensor(name)) for name in f.keys()}}


json.dump({
    "models": {folder: opened(folder) for folder in questions["models"]},
    "adapters": {folder: adapted(folder) for folder in questions["adapters"]},
    "files": {file: held(file) for file in questions["files"]},
}, sys.stdout)
