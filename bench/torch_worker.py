"""For the opponents of `stormo bench async` that are PyTorch: the steps of a worker, and what it prints of them."""
import json
import math
import time

from torch.nn import functional


def is_slow(slow, worker, workers, step):
    return (worker + step) % workers == 0 if slow["in_turns"] else worker == slow["worker"]


def number(loss):
    """For JSON, which has no numbers that are not finite."""
    return loss if math.isfinite(loss) else None


def train(model, update, batches, d, worker, workers):
    """`update` is what follows the gradients. Prints times after the warm-up, and losses, as one JSON object."""
    times, losses = [], []
    for step in range(d["warmup"] + d["steps"] + 1):
        begun = time.monotonic()
        inputs, targets = batches[step % len(batches)]
        loss = functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        losses.append(loss.item())
        times.append(time.monotonic())
        loss.backward()
        if step >= d["warmup"] and is_slow(d["slow"], worker, workers, step - d["warmup"]):
            time.sleep((d["slow"]["factor"] - 1) * (time.monotonic() - begun))
        update()
        model.zero_grad(set_to_none=True)
    first, last = losses[:d["batches"]], losses[-d["batches"]:]
    print(json.dumps({"worker": worker, "workers": 1, "times": times[d["warmup"]:],
                      "losses": [number(loss) for loss in losses[d["warmup"]:]],
                      "first_loss": number(sum(first) / len(first)),
                      "last_loss": number(sum(last) / len(last))}) + "\n", end="", flush=True)
