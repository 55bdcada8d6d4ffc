"""Sum for ever; at SIGTERM or SIGINT, save after the step that is under way.

    gorun --nproc 2 -- python3 wait.py saved

Press Ctrl-C: every rank leaves a file, and gorun ends with status 130. The ranks
agree on the last step, for one that leaves alone would be missed by the others.
With a second argument, a line goes to that file once all ranks are under way.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist

stop = torch.zeros(1)


def ask(number, frame):
    stop.fill_(1)


def main():
    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    dist.init_process_group("gloo")
    rank, total, step = dist.get_rank(), torch.zeros(1), 0
    while True:
        anyone = stop.clone()
        dist.all_reduce(anyone, op=dist.ReduceOp.MAX)
        if anyone.item():
            break
        add = torch.ones(1)
        dist.all_reduce(add)
        total += add
        step += 1
        if step == 1 and rank == 0 and len(sys.argv) > 2:
            with open(sys.argv[2], "w") as f:
                f.write(f"{os.getppid()}\n")
    with open(f"{sys.argv[1]}.{rank}", "w") as f:
        f.write(f"{step} steps, sum {int(total.item())}\n")
    print(f"rank {rank} saved after {step} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    # Torch 1.13 can hang while the interpreter ends: see leave in ddp.py.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
