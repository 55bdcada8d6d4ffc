"""What PEFT makes of adapters that gorun wrote, and adapters that PEFT writes.

    compare.py MODEL OURS THEIRS < ids > figures

MODEL is a model's folder, OURS adapters for it, THEIRS a folder to be made. ids is a
JSON list. The figures are JSON: the logits behind the last id of MODEL with OURS, of
the model into which PEFT merges them, and of MODEL with THEIRS.
"""
import json
import sys
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

warnings.filterwarnings("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
model, ours, theirs = sys.argv[1:]
ids = torch.tensor([json.load(sys.stdin)])


def base():
    return AutoModelForCausalLM.from_pretrained(model).eval()


def logits(m):
    with torch.no_grad():
        return m(input_ids=ids).logits[0, -1].double().tolist()


figures = {}
adapted = PeftModel.from_pretrained(base(), ours).eval()
figures["ours"] = logits(adapted)
names = {n for n, _ in adapted.named_parameters() if ".lora_" in n}
figures["modules"] = sorted({n.split("base_model.model.")[1].split(".lora_")[0] for n in names})
figures["merged"] = logits(adapted.merge_and_unload())

targets = ["c_attn", "mlp.c_proj"] if "gpt2" in model else ["q_proj", "v_proj", "up_proj"]
adapted = get_peft_model(base(), LoraConfig(r=3, lora_alpha=5, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM"))
for name, p in adapted.named_parameters():
    if ".lora_" in name:
        torch.nn.init.normal_(p, std=0.1)
adapted.save_pretrained(theirs)
figures["theirs"] = logits(adapted.eval())
json.dump(figures, sys.stdout)
