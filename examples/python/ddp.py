"""Data parallel training: DistributedDataParallel over Stormo.

    torchrun --nproc-per-node 2 examples/python/ddp.py

The only line about Stormo is the name of the backend. Nothing has to be imported: PyTorch finds it by its entry point.
"""
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(backend):
    dist.init_process_group(backend)
    torch.manual_seed(1)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(dist.get_rank())  # every rank has its own samples
    for step in range(100):
        x = torch.randn(64, 32, generator=data)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # averages the gradients
        optimizer.step()
        if step % 25 == 24:
            dist.all_reduce(loss := loss.detach(), dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:] or ["stormo"])
