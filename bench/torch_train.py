"""A rank of PyTorch over Gloo that trains a recipe of Stormo's, for bench/decentralised.

usage: torch_train.py RENDEZVOUS_FILE RANK RANKS NAME RECIPE

RECIPE is what `stormo train --dry-run --json` says of it: model, data, batch, optimizer, schedule, clipping, period and
outer optimizer are read from there. NAME is pytorch_ddp, a row of HOOKS of torch_step.py, pytorch_local_sgd,
pytorch_post_local_sgd or pytorch_diloco. Initial weights have the distributions that Stormo's have, and samples come in
a random order; neither are the same numbers. Rank 0 prints events as `stormo train --json` does: "start", "step" before
an evaluation, and "eval".
"""
import json
import math
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from torch_meetings import DiLoCo, LocalSgd, synchronous_at_first
from torch_step import Gpt, distribute, make_model, make_optimizer


class Text:
    """Windows of a text of characters, of which the last tenth is for validation."""

    def __init__(self, recipe, validation):
        path, self.context = pathlib.Path(recipe["data"]["path"]), recipe["model"]["context"]
        files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        number = {c: i for i, c in enumerate(sorted(set(text)))}
        self.vocabulary = len(number)
        cut = len(text) * 9 // 10
        self.tokens = torch.tensor([number[c] for c in (text[cut:] if validation else text[:cut])])
        self.size = (len(self.tokens) - (1 if validation else self.context)) // self.context
        self.places = torch.arange(self.context)

    def batch(self, indices, shift):
        at = (indices * self.context + shift % self.context)[:, None] + self.places
        return self.tokens[at], self.tokens[at + 1]


class Images:
    """Those of a folder of .npy files."""
    vocabulary = 0

    def __init__(self, recipe, validation):
        import numpy
        data = recipe["data"]
        folder = pathlib.Path(data["path"]) / data["validation" if validation else "train"]
        bytes_of, labels = (numpy.load(folder / f"{name}.npy") for name in ("images", "labels"))
        self.images = (torch.from_numpy(bytes_of).float() / 255 - data["mean"][0]) / data["stddev"][0]
        self.labels = torch.from_numpy(labels).long()
        self.size = len(self.labels)

    def batch(self, indices, _):
        return self.images[indices], self.labels[indices]


def initial(model):
    """A Gpt has no values yet; the other layers have PyTorch's, which are Stormo's."""
    if not isinstance(model, Gpt):
        return model
    for name, p in model.named_parameters():
        if p.dim() == 1:
            nn.init.ones_(p)
        else:
            residual = name.endswith(("projection", "down"))
            nn.init.normal_(p, std=0.02 / math.sqrt(2 * len(model.blocks)) if residual else 0.02)
    return model


class Order:
    """Of the samples: another one in each epoch, without those that fill no batch."""

    def __init__(self, data, batch, seed):
        self.data, self.batch, self.seed, self.epoch = data, batch, seed, None

    def part(self, step, rank, ranks):
        """Of the batch of a step, that of a rank."""
        epoch, place = divmod(step, self.data.size // self.batch)
        if epoch != self.epoch:
            random = torch.Generator().manual_seed(1000 * self.seed + epoch)
            self.epoch, self.shift = epoch, int(torch.randint(1 << 16, (), generator=random))
            self.indices = torch.randperm(self.data.size, generator=random)
        first = place * self.batch + rank * self.batch // ranks
        return self.data.batch(self.indices[first:first + self.batch // ranks], self.shift)


def learning_rate(recipe, step, steps):
    rate, peak = recipe["learning_rate"], recipe["optimizer"]["lr"]
    warmup, least = rate["warmup_steps"], rate["min_lr"]
    if step < warmup:
        return peak * (step + 1) / warmup
    if rate["kind"] != "cosine":
        return peak
    return least + (peak - least) / 2 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def optimizer_of(parameters, o):
    if o["kind"] == "adamw":
        return make_optimizer(parameters, o)
    return torch.optim.SGD(parameters, lr=o["lr"], momentum=o["momentum"], weight_decay=o["weight_decay"],
                           nesterov=o["nesterov"], fused=True)


def meetings_of(name, model, s):
    """The model as it is trained, and who is asked after each step."""
    parameters = list(model.parameters())
    if name == "pytorch_local_sgd":
        return model, LocalSgd(parameters, s["period"])
    if name == "pytorch_post_local_sgd":
        return (synchronous_at_first(model, s["warmup_steps"]),
                LocalSgd(parameters, s["period"], s["warmup_steps"]))
    if name == "pytorch_diloco":
        return model, DiLoCo(parameters, s["period"], s["outer_lr"], s["outer_momentum"])
    return distribute(name, model), None


@torch.no_grad()
def validation_loss(model, data, batch, rank, ranks):
    """Of parameters that are equal on all ranks, each of which looks at its part of the samples."""
    mine, sums = torch.arange(rank, data.size, ranks), torch.zeros(2)
    for indices in mine.split(max(batch, 64)):
        inputs, targets = data.batch(indices, 0)
        sums += torch.tensor([len(indices) * loss_of(model, inputs, targets).item(), len(indices)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def loss_of(model, inputs, targets):
    return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def say(rank, **record):
    if rank == 0:
        print(json.dumps(record), flush=True)


def run(recipe, name, rank, ranks):
    options = recipe["train"]
    torch.manual_seed(options["seed"])
    training, validation = ((Text if recipe["data"]["kind"] == "text" else Images)(recipe, v) for v in (False, True))
    plain = initial(make_model({**recipe, "vocabulary": training.vocabulary}))
    model, meetings = meetings_of(name, plain, recipe["strategy"])
    optimizer = optimizer_of(plain.parameters(), recipe["optimizer"])
    order = Order(training, options["global_batch"], options["seed"])
    dist.barrier()
    say(rank, event="start")
    for step in range(options["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step, options["steps"])
        loss_of(model, *order.part(step, rank, ranks)).backward()
        if options["clip_norm"] > 0:
            nn.utils.clip_grad_norm_(plain.parameters(), options["clip_norm"])
        optimizer.step()
        if meetings:
            meetings.after_step()
        optimizer.zero_grad(set_to_none=True)
        done = step + 1
        if done % options["eval_every"] == 0 or done == options["steps"]:
            say(rank, event="step", step=done)
            loss = validation_loss(plain, validation, options["global_batch"], rank, ranks)
            say(rank, event="eval", split="validation", step=done, loss=loss)


def main():
    file, rank, ranks, name, text = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(ranks))
    run(json.loads(text), name, int(rank), int(ranks))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
