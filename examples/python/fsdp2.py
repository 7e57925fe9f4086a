"""Fully sharded training: FSDP2 (fully_shard) over Stormo. Each rank keeps a part of the weights and of the optimizer's
state.

    torchrun --nproc-per-node 2 examples/python/fsdp2.py
"""
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(backend):
    dist.init_process_group(backend)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU()) for _ in range(4)
    ], torch.nn.Linear(128, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)  # gathered before it computes, reduced after
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    for step in range(60):
        x = torch.randn(64, 128, generator=data)
        loss = torch.nn.functional.mse_loss(model(x), x[:, :8].sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    own = sum(p.to_local().numel() for p in model.parameters())
    print(f"rank {dist.get_rank()} keeps {own} of {sum(p.numel() for p in model.parameters())} weights")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:] or ["stormo"])
