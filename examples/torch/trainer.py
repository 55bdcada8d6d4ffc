"""Train a tiny Llama with the Trainer of Hugging Face's transformers.

    gorun --nproc 2 -- python3 trainer.py out

The weights are drawn anew and the text is made up, so nothing is downloaded. The
Trainer finds its ranks as it does under torchrun.
"""

import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Counting(torch.utils.data.Dataset):
    """Sequences that count upwards: a model learns them in no time."""

    def __len__(self):
        return 256

    def __getitem__(self, i):
        ids = torch.arange(i % 32, i % 32 + 16)
        return {"input_ids": ids, "labels": ids}


def main():
    torch.manual_seed(7)
    # GPT-2 has a mask of booleans, which torch 1.13's gloo does not broadcast.
    config = LlamaConfig(vocab_size=64, max_position_embeddings=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    args = TrainingArguments(
        output_dir=sys.argv[1], per_device_train_batch_size=8, max_steps=40, learning_rate=1e-2, use_cpu=True,
        ddp_backend="gloo", logging_steps=10, save_steps=40, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )
    trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=Counting())
    result = trainer.train()
    print(f"rank {os.environ['RANK']} of {args.world_size}: loss {result.training_loss:.4f}, step {trainer.state.global_step}", flush=True)
    # Torch 1.13 can hang while the interpreter ends: see leave in ddp.py.
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
