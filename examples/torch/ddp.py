"""Train a small network with torch.distributed, on as many processes as there are.

    gorun --nproc 2 -- python3 ddp.py

Nothing here knows of gorun: the script reads the variables that torchrun sets.
Each rank takes its share of every batch, DistributedDataParallel averages the
gradients, and the ranks compare their weights at the end.
"""

import argparse
import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def model():
    torch.manual_seed(7)  # the same weights on every rank
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))


def batch(step, rank, world, size):
    """The rank's share of the step's samples: a fixed function of what is drawn."""
    rng = torch.Generator().manual_seed(step)
    x = torch.randn(size, 32, generator=rng)
    y = torch.tanh(x[:, :4].sum(1, keepdim=True))
    return x[rank::world], y[rank::world]


def leave():
    """End the process when all ranks are done, without the interpreter's own end.

    Torch 1.13 can hang there: the destructor of DistributedDataParallel's reducer waits,
    with the interpreter's lock held, for a thread of gloo that wants this lock to let
    go of a tensor. The barrier leaves no collective of tensors of ours under way.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--batch", type=int, default=64, help="samples of all ranks together")
    p.add_argument("--fail-rank", type=int, default=-1, help="this rank raises an exception half-way")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}, local rank {os.environ['LOCAL_RANK']}", flush=True)
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(args.steps):
        if rank == args.fail_rank and step == args.steps // 2:
            raise ValueError(f"sample {step} cannot be read")
        x, y = batch(step, rank, world, args.batch)
        loss = torch.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    flat = torch.cat([w.detach().flatten() for w in net.parameters()])
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:12]
    every = [None] * world
    dist.all_gather_object(every, digest)
    if len(set(every)) != 1:
        raise RuntimeError(f"the ranks' weights differ: {every}")
    if rank == 0:
        print(f"all {world} ranks end with the same weights ({digest}), norm {flat.norm().item():.4f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
