"""Small programs of PyTorch, one for each way to distribute training: 20 steps over the default group, of any backend.

Each returns what the rank has seen: tensors, that another backend must give as well. Every rank has data of its own
where the way of training has it so, hence a backend that moves nothing gives others. Numbers are of torch's default
type. The ranks are 2 or 4.
"""
import contextlib
import functools

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble,
                                          ScheduleZBVZeroBubble)
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = 20
WIDTH = 24
loss_of = torch.nn.functional.mse_loss


def batches(seed, steps=STEPS, rows=8):
    generator = torch.Generator().manual_seed(100 + seed)
    for _ in range(steps):
        yield torch.randn(rows, WIDTH, generator=generator)


def own_batches(**how):
    return batches(dist.get_rank(), **how)


def train(model, optimizer, data, accumulate=1):
    """The losses. Gradients of `accumulate` batches make a step."""
    losses = []
    for i, x in enumerate(data):
        last = i % accumulate == accumulate - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = loss_of(model(x), x.sin().roll(1, 1))
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def copies(tensors):
    return [t.detach().clone() for t in tensors]


def full_weights(model):
    """Of a model in parts (DTensor)."""
    return [p.full_tensor().detach() if isinstance(p, DTensor) else p.detach().clone() for p in model.parameters()]


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, WIDTH))


class Experts(torch.nn.Module):
    """A batch uses one of two layers: the other one has no gradient, on this rank or on all."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, 64, bias=False)  # of one before a norm the gradient is noise
        self.norm = torch.nn.BatchNorm1d(64)  # has buffers
        self.experts = torch.nn.ModuleList(torch.nn.Linear(64, WIDTH) for _ in range(2))

    def forward(self, x):
        return self.experts[int(x[0, 0] > 0)](self.norm(self.first(x)).tanh())


# --- every rank has the whole model


def ddp():
    model = DistributedDataParallel(mlp(), bucket_cap_mb=0.005)  # three buckets
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return train(model, optimizer, own_batches()) + copies(model.parameters())


def ddp_of_unused_parameters():
    model = DistributedDataParallel(Experts(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = train(model, optimizer, own_batches(steps=2 * STEPS), accumulate=2)
    return losses + copies([*model.parameters(), *model.buffers()])


def join_of_uneven_inputs():
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        losses = train(model, optimizer, own_batches(steps=STEPS + 3 * dist.get_rank()))
    return losses + copies(model.parameters())


def zero_redundancy_optimizer():
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    losses = train(model, optimizer, own_batches())
    optimizer.consolidate_state_dict(0)
    state = optimizer.state_dict()["state"] if dist.get_rank() == 0 else {}
    return losses + copies(model.parameters()) + [v for of in state.values() for v in of.values()]


# --- every rank has a part of the weights


def sharded(mesh, width=64, prepare=lambda layer: None):
    layers = [torch.nn.Linear(WIDTH, width), torch.nn.Linear(width, width), torch.nn.Linear(width, WIDTH)]
    model = torch.nn.Sequential(*(torch.nn.Sequential(layer, torch.nn.Tanh()) for layer in layers))
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh)
        prepare(layer)
    return model


def train_sharded(model, data):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for x in data:
        loss = loss_of(model(x), x.sin().roll(1, 1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.detach(), norm.full_tensor()]
    return losses, optimizer


def fsdp2():
    model = sharded(init_device_mesh("cpu", (dist.get_world_size(),)))
    losses, _ = train_sharded(model, own_batches())
    return losses + full_weights(model)


def hsdp():
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    losses, _ = train_sharded(model, own_batches())
    return losses + full_weights(model)


class LargeTensorsOfGroups(TorchDispatchMode):
    """Keeps what `look` says of each large tensor that FSDP2 gathers or reduces, by operation."""

    def __init__(self, look):
        super().__init__()
        self.look, self.seen = look, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        if name in ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_"):
            large = [t for t in args[:2] if t.nbytes >= 64 << 10]
            self.seen.setdefault(name, []).extend(self.look(t) for t in large)
        return function(*args, **(kwargs or {}))


def fsdp2_in_memory_of_the_group(look):
    """`look` tells of a tensor where it is."""
    prepare = lambda layer: layer.set_allocate_memory_from_process_group_for_comm(True)
    # so wide that of the inner layer even a quarter is large
    model = sharded(init_device_mesh("cpu", (dist.get_world_size(),)), 256, prepare)
    with LargeTensorsOfGroups(look) as large:
        losses, _ = train_sharded(model, own_batches())
    return losses + full_weights(model), large.seen


def save(folder):
    model = sharded(init_device_mesh("cpu", (dist.get_world_size(),)))
    _, optimizer = train_sharded(model, own_batches())
    weights, state = get_state_dict(model, optimizer)
    torch.distributed.checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    return full_weights(model)


def load_and_continue(folder):
    """Of other ranks than those that have saved. The weights as loaded, and what 20 steps more have made of them."""
    model = sharded(init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1)
    weights, state = get_state_dict(model, optimizer)
    loaded = {"model": weights, "optimizer": state}
    torch.distributed.checkpoint.load(loaded, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    before = full_weights(model)
    return before, train(model, optimizer, own_batches()) + full_weights(model)


# --- every rank has a part of each layer


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def tensor_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(model, optimizer, batches(0)) + full_weights(model)


def sequence_parallel():
    """Between the layers every rank has a part of the rows."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh, {
            "norm": SequenceParallel(sequence_dim=0, use_local_output=True),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        })
    parallelize_module(model, mesh, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0),
                                                       use_local_output=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x in batches(0):
        out = DTensor.from_local(model(x), mesh, [Shard(0)]).full_tensor()
        loss = loss_of(out, x.sin().roll(1, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses + full_weights(model)


def tensor_parallel_in_fsdp2():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = torch.nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(model, optimizer, batches(mesh["data"].get_local_rank())) + full_weights(model)


# --- every rank has some layers


def pipeline(schedule, of_rank):
    """of_rank: the stages of a rank; schedules of one stage take it alone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = of_rank(rank, size)
    total = size * len(numbers)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(total)]
    stages = [PipelineStage(layers[n], n, total, torch.device("cpu")) for n in numbers]
    run = schedule(stages if len(stages) > 1 else stages[0], 2 * size, loss_fn=loss_of)
    own = torch.nn.ModuleList(layers[n] for n in numbers)
    optimizer = torch.optim.AdamW(own.parameters(), lr=0.01)
    seen = []
    for x in batches(0, rows=4 * size):
        losses = []
        run.step(*([x] if 0 in numbers else []), losses=losses,
                 target=x.sin().roll(1, 1) if total - 1 in numbers else None)
        optimizer.step()
        optimizer.zero_grad()
        seen += copies(losses)
    return seen + copies(own.parameters())


pipeline_1f1b = functools.partial(pipeline, Schedule1F1B, lambda rank, size: [rank])
pipeline_zero_bubble = functools.partial(pipeline, ScheduleInterleavedZeroBubble,
                                         lambda rank, size: [rank, size + rank])
pipeline_zero_bubble_v = functools.partial(pipeline, ScheduleZBVZeroBubble,
                                           lambda rank, size: [rank, 2 * size - 1 - rank])
