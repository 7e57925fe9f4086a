"""The opponent of `stormo train`: PyTorch DistributedDataParallel over Gloo, one process per rank.

Run by compare_ddp, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Models, batches, loss and
optimizer are those of Stormo's recipes. Rank 0 prints {"model": {"views": seconds per step, "copies": ...}}
as JSON: gradients as views into DDP's buckets, or copied.
"""
import json
import math
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

IMAGE_BATCH, GLOBAL_TEXT_BATCH, CONTEXT, VOCABULARY = 64, 12, 64, 65


def parameter(*sizes, std=0.02):
    return nn.Parameter(torch.randn(sizes) * std)


class Block(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.heads, residual = heads, 0.02 / math.sqrt(2 * layers)
        self.attention_norm, self.mlp_norm = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.qkv = parameter(3 * width, width)
        self.projection = parameter(width, width, std=residual)
        self.up = parameter(4 * width, width)
        self.down = parameter(width, 4 * width, std=residual)

    def attention(self, x):
        batch, length, width = x.shape
        parts = functional.linear(x, self.qkv).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.linear(mixed.transpose(1, 2).reshape(batch, length, width), self.projection)

    def forward(self, x):
        x = x + self.attention(functional.layer_norm(x, x.shape[-1:], self.attention_norm))
        hidden = functional.gelu(functional.linear(functional.layer_norm(x, x.shape[-1:], self.mlp_norm), self.up))
        return x + functional.linear(hidden, self.down)


class Gpt(nn.Module):
    def __init__(self, layers=4, heads=4, width=128):
        super().__init__()
        self.token, self.position = parameter(VOCABULARY, width), parameter(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads, layers) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = functional.embedding(x, self.token) + self.position[: x.size(1)]
        for block in self.blocks:
            x = block(x)
        return functional.linear(functional.layer_norm(x, x.shape[-1:], self.norm), self.token)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


def image_batches():
    """As Stormo reads MNIST: bytes in memory, made floats batch by batch."""
    pixels = torch.randint(0, 256, (8192, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(0, 10, (8192,))
    while True:
        for chosen in torch.randperm(len(labels)).split(IMAGE_BATCH):
            yield pixels[chosen].float().div_(255).sub_(0.1307).div_(0.3081), labels[chosen]


def text_batches(count):
    tokens = torch.randint(0, VOCABULARY, (200_000,), dtype=torch.int32)
    starts = torch.arange(len(tokens) // CONTEXT - 1) * CONTEXT
    while True:
        for chosen in starts[torch.randperm(len(starts))].split(count):
            windows = tokens[chosen[:, None] + torch.arange(CONTEXT + 1)].long()
            yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def seconds_per_step(model, batches, steps, window, bucket_view):
    """The median window after the first third."""
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3, fused=True)
    times, start = [], time.perf_counter()
    for step in range(1, steps + 1):
        inputs, targets = next(batches)
        loss = functional.cross_entropy(ddp(inputs).flatten(0, -2), targets.flatten())
        loss.item()  # as the other side does for its log
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % window == 0:
            now = time.perf_counter()
            times.append((now - start) / window)
            start = now
    return statistics.median(times[len(times) // 3:])


def main():
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["LOCAL_CORE"])]})
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    sizes = json.loads(os.environ["BENCH_SIZES"])  # {"mlp": [steps, window], ...}
    found = {name: {} for name in sizes}
    for setting in ("views", "copies"):
        for name, (steps, window) in sizes.items():
            model = mlp() if name == "mlp" else Gpt()
            count = GLOBAL_TEXT_BATCH // torch.distributed.get_world_size()
            batches = image_batches() if name == "mlp" else text_batches(count)
            found[name][setting] = seconds_per_step(model, batches, steps, window, setting == "views")
    if torch.distributed.get_rank() == 0:
        print(json.dumps(found), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
