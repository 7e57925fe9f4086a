"""A small model, its batches, and the averages of its gradients that one rank computes from the batches of all."""
import copy

import torch
import torch.distributed as dist


def mlp(seed=3):
    """The weights between the first layers are large."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.Tanh(), torch.nn.Linear(128, 4))


def batch(rank, step=0):
    return torch.randn(8, 256, generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(model, rank, step=0):
    return model(batch(rank, step)).square().mean()


def own_loss(model, step=0):
    return loss_of(model, dist.get_rank(), step)


def gradients_of(model, rank, step=0):
    model = copy.deepcopy(model)
    loss_of(model, rank, step).backward()
    return [p.grad for p in model.parameters()]


def averages_of(model, step=0, ranks=(0, 1)):
    return [(a + b) / 2 for a, b in zip(*(gradients_of(model, rank, step) for rank in ranks))]


def check_equal(tensors, expected):
    for a, b in zip(tensors, expected, strict=True):
        assert torch.equal(a, b), (a, b)


def check_gradients(model, expected):
    check_equal([p.grad for p in model.parameters()], expected)


def error_of(function):
    """The text of what it raises."""
    try:
        function()
    except Exception as error:
        return str(error)
    raise AssertionError("nothing was raised")


def train(model, forward=None, backwards=3):
    """Steps, of which each is compared with one by hand."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(backwards):
        expected = averages_of(model, step)
        own_loss(forward or model, step).backward()
        check_gradients(model, expected)
        optimizer.step()
        optimizer.zero_grad()
