"""The opponents of `stormo bench step`: training steps of PyTorch, one process per rank.

Started by `stormo run`; arguments: RENDEZVOUS_FILE NAME INPUTS_FILE DESCRIPTION. NAME is pytorch_ddp, a row of HOOKS,
or pytorch_fsdp (over Gloo), a pipeline (pytorch_gpipe, pytorch_1f1b, pytorch_interleaved, pytorch_zero_bubble),
pytorch_tensor (tensor parallelism), or pytorch (every rank for itself). With _stormo behind it the backend is Stormo's;
so it is for pytorch_hook_stormo and pytorch_average_stormo, whose gradients it averages in its own ways. The inputs are
Stormo's weights before the first step and its batches, as raw numbers; the description says what model they belong to.
Every rank prints one JSON object.
"""
import json
import math
import os
import re
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        empty = lambda *sizes: nn.Parameter(torch.empty(sizes))
        self.attention_norm, self.qkv, self.projection = empty(width), empty(3 * width, width), empty(width, width)
        self.mlp_norm, self.up, self.down = empty(width), empty(4 * width, width), empty(width, 4 * width)

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
    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.token = nn.Parameter(torch.empty(vocabulary, width))
        self.position = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.ParameterDict({"norm": torch.empty(width)})  # as a module: the file has it last

    def forward(self, x):
        x = functional.embedding(x, self.token) + self.position[: x.size(1)]
        for block in self.blocks:
            x = block(x)
        return functional.linear(functional.layer_norm(x, x.shape[-1:], self.head["norm"]), self.token)


def mlp(sizes):
    layers = [nn.Flatten()]
    for i, (rows, columns) in enumerate(zip(sizes, sizes[1:])):
        layers += [nn.ReLU()] if i else []
        layers.append(nn.Linear(rows, columns))
    return nn.Sequential(*layers)


def cnn(classes):
    return nn.Sequential(nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(16, 32, 5), nn.MaxPool2d(2),
                         nn.ReLU(), nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, classes))


def make_model(description):
    m = description["model"]
    if m["kind"] == "mlp":
        return mlp(m["sizes"])
    if m["kind"] == "cnn":
        return cnn(m["classes"])
    return Gpt(description["vocabulary"], m["context"], m["layers"], m["heads"], m["width"])


class Inputs:
    """Weights into the model, and the batches, from the file, in order."""

    def __init__(self, path, description):
        self.data, self.offset, self.description = bytearray(open(path, "rb").read()), 0, description

    def take(self, shape, dtype):
        count = math.prod(shape)
        values = torch.frombuffer(self.data, dtype=dtype, count=count, offset=self.offset).view(shape).clone()
        self.offset += count * dtype.itemsize
        return values

    def read(self, model):
        """The file must end where the batches do: else it belongs to another model."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(self.take(parameter.shape, parameter.dtype))
        d = self.description
        shape, batches = [d["batch"], *d["sample"]], []
        for _ in range(d["batches"]):
            sample = self.take(shape, torch.int64 if d["tokens"] else torch.float32)
            batches.append((sample, self.take(shape if d["tokens"] else shape[:1], torch.int64)))
        if self.offset != len(self.data):
            sys.exit(f"{len(self.data)} bytes of inputs, the model here takes {self.offset}")
        return batches


def sharded(model):
    """FSDP2 over CPUs: a group of parameters per layer or block, the rest in the root's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in list(model.modules()):
        if isinstance(module, (nn.Linear, nn.Conv2d, Block)):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if dist.get_backend() == "stormo":  # what it sends and receives is in the Arena; Gloo has no memory of its own
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(True)
    return model


def half_precision(model):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return ddp


def power_sgd(model, rank):
    """From the third step on, which is as early as it can. In one bucket: with several it hangs or aborts over Gloo."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    mebibytes = 1 + (sum(p.numel() * p.element_size() for p in model.parameters()) >> 20)
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=mebibytes)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


HOOKS = {  # of DistributedDataParallel
    "pytorch_fp16_hook": half_precision,
    "pytorch_powersgd": lambda model: power_sgd(model, 4),
    "pytorch_powersgd_1": lambda model: power_sgd(model, 1),
}


def distribute(name, model):
    if name == "pytorch_tensor":
        return tensor_parallel(model)
    if name in HOOKS:
        return HOOKS[name](model)
    if name == "pytorch_ddp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if name == "pytorch_hook":
        import stormo_torch
        return stormo_torch.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if name == "pytorch_average":
        import stormo_torch
        stormo_torch.average_gradients(model)
    return sharded(model) if name == "pytorch_fsdp" else model


PIPELINES = ("pytorch_gpipe", "pytorch_1f1b", "pytorch_interleaved", "pytorch_zero_bubble")


class Stage(nn.Module):
    """Consecutive layers of a Gpt. The last stage has a copy of the tied weight, if the first one is another rank's."""

    def __init__(self, gpt, first, last):
        super().__init__()
        self.blocks = gpt.blocks[first:last]
        self.begins, self.ends = first == 0, last == len(gpt.blocks)
        self.token = gpt.token if self.begins or self.ends else None
        self.position = gpt.position if self.begins else None
        self.norm = gpt.head["norm"] if self.ends else None

    def forward(self, x):
        if self.begins:
            x = functional.embedding(x, self.token) + self.position[: x.size(1)]
        for block in self.blocks:
            x = block(x)
        return functional.linear(functional.layer_norm(x, x.shape[-1:], self.norm), self.token) if self.ends else x


class Pipeline:
    """torch.distributed.pipelining, with equal numbers of blocks on each stage."""

    def __init__(self, name, gpt, d):
        from torch.distributed import pipelining
        kinds = {"pytorch_gpipe": (pipelining.ScheduleGPipe, 1), "pytorch_1f1b": (pipelining.Schedule1F1B, 1),
                 "pytorch_interleaved": (pipelining.ScheduleInterleaved1F1B, 2),
                 "pytorch_zero_bubble": (pipelining.ScheduleInterleavedZeroBubble, 2)}
        schedule, chunks = kinds[name]
        self.rank, ranks = dist.get_rank(), dist.get_world_size()
        parts, blocks = ranks * chunks, len(gpt.blocks)
        if not isinstance(gpt, Gpt) or blocks % parts:
            sys.exit(f"{name}: a GPT whose blocks are a multiple of {parts} is needed")
        own = [Stage(gpt, p * blocks // parts, (p + 1) * blocks // parts) for p in range(self.rank, parts, ranks)]
        stages = [pipelining.PipelineStage(part, self.rank + i * ranks, parts, torch.device("cpu"))
                  for i, part in enumerate(own)]
        loss = lambda output, target: functional.cross_entropy(output.flatten(0, -2), target.flatten())
        self.schedule = schedule(stages if chunks > 1 else stages[0], d["micro_batches"], loss_fn=loss)
        self.parameters = list({id(p): p for part in own for p in part.parameters()}.values())
        self.tied = gpt.token if self.rank in (0, ranks - 1) and ranks > 1 else None
        self.ends = dist.new_group([0, ranks - 1])
        self.first, self.last = self.rank == 0, self.rank == ranks - 1

    def step(self, inputs, targets):
        losses = []
        of_last = {"target": targets, "losses": losses} if self.last else {}
        self.schedule.step(*([inputs] if self.first else []), **of_last)
        if self.tied is not None:
            dist.all_reduce(self.tied.grad, group=self.ends)
        return sum(loss.item() for loss in losses) / len(losses) if losses else 0.0


class SplitBlock(nn.Module):
    """A Block of layers that torch.distributed.tensor.parallel knows how to cut."""

    def __init__(self, block):
        super().__init__()
        width = block.projection.shape[0]
        self.head_width = width // block.heads
        self.attention_norm, self.mlp_norm = block.attention_norm, block.mlp_norm
        self.q, self.k, self.v = (self.linear(part) for part in block.qkv.detach().chunk(3))
        self.projection, self.up, self.down = (self.linear(w) for w in (block.projection, block.up, block.down))

    @staticmethod
    def linear(weight):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = nn.Parameter(weight.detach().clone())
        return layer

    def attention(self, x):
        batch, length, _ = x.shape
        q, k, v = (part(x).view(batch, length, -1, self.head_width).transpose(1, 2)
                   for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x):
        x = x + self.attention(functional.layer_norm(x, x.shape[-1:], self.attention_norm))
        return x + self.down(functional.gelu(self.up(functional.layer_norm(x, x.shape[-1:], self.mlp_norm))))


class SplitGpt(nn.Module):
    def __init__(self, gpt):
        super().__init__()
        self.embedding = nn.Embedding(*gpt.token.shape)
        self.embedding.weight = nn.Parameter(gpt.token.detach().clone())
        self.position, self.norm = gpt.position, gpt.head["norm"]
        self.blocks = nn.ModuleList(SplitBlock(block) for block in gpt.blocks)
        self.output = SplitBlock.linear(gpt.token)

    def forward(self, x):
        x = self.embedding(x) + self.position[: x.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.output(functional.layer_norm(x, x.shape[-1:], self.norm))


def tensor_parallel(model):
    """As PyTorch's tutorial cuts a transformer; the embedding and the output share their shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if not isinstance(model, Gpt):
        linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        ways = {name: RowwiseParallel() if i % 2 else
                ColwiseParallel(output_layouts=Replicate()) if i + 1 == len(linears) else ColwiseParallel()
                for i, name in enumerate(linears)}
        return parallelize_module(model, mesh, ways)
    model = SplitGpt(model)
    for block in model.blocks:
        parallelize_module(block, mesh, {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(),
                                         "projection": RowwiseParallel(), "up": ColwiseParallel(),
                                         "down": RowwiseParallel()})
    parallelize_module(model, mesh, {"embedding": RowwiseParallel(input_layouts=Replicate()),
                                     "output": ColwiseParallel(output_layouts=Replicate())})
    model.output.weight = model.embedding.weight
    return model


def kilobytes_of(path, key):
    with open(path, encoding="ascii") as file:
        return int(re.search(rf"^{key}:\s+(\d+) kB", file.read(), re.M)[1]) << 10


def make_optimizer(parameters, o):
    """Its fused form refuses sharded and plain tensors in one group of parameters."""
    by_type = {}
    for parameter in parameters:
        by_type.setdefault(type(parameter.data), []).append(parameter)
    groups = [{"params": group} for group in by_type.values()]
    return torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["epsilon"],
                             weight_decay=o["weight_decay"], fused=True)


def memory_now():
    return kilobytes_of("/proc/self/smaps_rollup", "Pss"), kilobytes_of("/proc/self/status", "VmHWM")


def run_pipeline(pipeline, batches, d):
    """As run(); a step ends with the update."""
    optimizer = make_optimizer(pipeline.parameters, d["optimizer"])
    times, losses, total = [], [], d["warmup"] + d["steps"] + 1
    for step in range(total):
        losses.append(pipeline.step(*batches[step % len(batches)]))
        if step + 1 == total:
            memory = memory_now()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
    shared = torch.tensor(losses, dtype=torch.float64)
    dist.broadcast(shared, dist.get_world_size() - 1)
    return [b - a for a, b in zip(times, times[1:])][d["warmup"]:], shared.tolist(), memory


def run(model, batches, d):
    """Times between the losses of consecutive steps, the losses, and the memory at the end of the last backward."""
    optimizer = make_optimizer(model.parameters(), d["optimizer"])
    times, losses, total = [], [], d["warmup"] + d["steps"] + 1
    for step in range(total):
        inputs, targets = batches[step % len(batches)]
        loss = functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        losses.append(loss.item())
        times.append(time.perf_counter())
        loss.backward()
        if step + 1 == total:
            dist.barrier()
            memory = memory_now()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [b - a for a, b in zip(times, times[1:])][d["warmup"]:], losses, memory


def percentile(times, p):
    return sorted(times)[max(math.ceil(p * len(times)), 1) - 1]


def main():
    file, name, inputs, text = sys.argv[1:]
    d, rank = json.loads(text), int(os.environ["STORMO_RANK"])
    torch.set_num_threads(1)
    backend = "stormo" if name.endswith("_stormo") else "gloo"
    os.environ["STORMO_TRUST_STORE"] = "1"  # between hosts: the rendezvous file lies in a folder of the benchmark's own
    name = name.removesuffix("_stormo")
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank,
                            world_size=int(os.environ["STORMO_WORLD_SIZE"]))
    model = make_model(d)
    batches = Inputs(inputs, d).read(model)
    is_pipeline = name in PIPELINES
    model = Pipeline(name, model, d) if is_pipeline else distribute(name, model)
    dist.barrier()
    times, losses, (pss, peak) = (run_pipeline if is_pipeline else run)(model, batches, d)
    print(json.dumps({"rank": rank, "host": int(os.environ["STORMO_CROSS_RANK"]), "p50_s": percentile(times, 0.5),
                      "p90_s": percentile(times, 0.9), "steps": len(times), "pss": pss, "peak_rss": peak,
                      "first_loss": losses[0], "compared_loss": losses[d["compared"]], "last_loss": losses[-1]}) + "\n",
          end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
