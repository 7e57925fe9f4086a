"""Pipeline parallel training: each rank has some layers, and micro-batches follow each other (1F1B).

    torchrun --nproc-per-node 2 examples/python/pipeline.py
"""
import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main(backend):
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(2 * size)]
    own = torch.nn.Sequential(*layers[2 * rank:2 * rank + 2])
    stage = PipelineStage(own, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(7)  # the first rank has the inputs, the last one the targets
    for step in range(40):
        x = torch.randn(64, 64, generator=data)
        losses = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=x.tanh(), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        if losses and step % 10 == 9:
            print(f"step {step + 1}: loss {torch.stack(losses).mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:] or ["stormo"])
