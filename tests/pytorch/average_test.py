"""average_gradients and DistributedDataParallel of stormo_torch.

Averages are compared with those that one rank computes by hand from the batches of all.
"""
import copy
import gc
import io
import os
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import stormo_torch
from by_hand import (averages_of, batch, check_equal, check_gradients, error_of, gradients_of, loss_of, mlp, own_loss,
                     train)
from cases import Cases
from forked_ranks import JoinedRanks
from ranks import Ranks

LARGE = 1 << 15  # elements: 128 KiB, which the Arena takes
cases = Cases()


def is_large_made_in_arena():
    return stormo_torch.in_arena(torch.empty(LARGE))


# --- average_gradients


@cases
def average_in_buckets_and_at_the_end():
    for bucket_bytes, said in ((None, "gradients are reduced"), (0, "at the end of backward"),
                               (4096, "during backward, 4 KiB")):
        model = mlp()
        averaged = stormo_torch.average_gradients(model, bucket_bytes=bucket_bytes)
        assert said in str(averaged), averaged
        train(model, backwards=6)
        del averaged


@cases
def average_in_bfloat16():
    model = mlp()
    averaged = stormo_torch.average_gradients(model, bfloat16=True)
    assert "bfloat16" in str(averaged), averaged
    expected = averages_of(model)
    own_loss(model).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected, rtol=2e-2, atol=1e-4)
    assert not torch.equal(model[0].weight.grad, expected[0])


@cases
def average_begins_with_the_values_of_rank_0():
    model = mlp(seed=dist.get_rank())
    model.register_buffer("counts", torch.full((3,), float(dist.get_rank())))
    averaged = stormo_torch.average_gradients(model)
    check_equal(model.parameters(), mlp(seed=0).parameters())
    assert model.counts.tolist() == [0, 0, 0]
    model.counts.add_(dist.get_rank() + 5)
    averaged.broadcast_buffers()
    assert model.counts.tolist() == [5, 5, 5]


@cases
def average_makes_gradients_in_the_arena():
    model = mlp()
    averaged = stormo_torch.average_gradients(model)
    own_loss(model).backward()
    assert stormo_torch.in_arena(model[0].weight.grad)
    assert not is_large_made_in_arena()
    del averaged


@cases
def average_no_sync():
    model = mlp()
    averaged = stormo_torch.average_gradients(model)
    with averaged.no_sync(), averaged.no_sync():
        own_loss(model, 0).backward()
        own_loss(model, 1).backward()
    accumulated = [[a + b for a, b in zip(gradients_of(model, rank, 0), gradients_of(model, rank, 1))]
                   for rank in (0, 1)]
    check_gradients(model, accumulated[dist.get_rank()])
    expected = [((a + x) + (b + y)) / 2
                for a, b, x, y in zip(*accumulated, gradients_of(model, 0, 2), gradients_of(model, 1, 2))]
    own_loss(model, 2).backward()
    check_gradients(model, expected)


@cases
def average_of_unused_parameters():
    """One head is used by rank 0, one by rank 1, and one by nobody."""
    model = torch.nn.ModuleDict({name: torch.nn.Linear(256, 4) for name in "01n"})
    averaged = stormo_torch.average_gradients(model)
    for _ in range(3):
        by_rank = [model[str(rank)](batch(rank)).square().mean() for rank in (0, 1)]
        expected = [torch.autograd.grad(by_rank[rank], model[str(rank)].weight)[0] / 2 for rank in (0, 1)]
        model[str(dist.get_rank())](batch(dist.get_rank())).square().mean().backward()
        check_equal([model[name].weight.grad for name in "01"], expected)
        assert model["n"].weight.grad is None
        model.zero_grad()
    del averaged


@cases
def average_of_sparse_tables_stays_sparse():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"in": torch.nn.Embedding(1000, 8, sparse=True), "layer": torch.nn.Linear(8, 1),
                                 "bag": torch.nn.EmbeddingBag(1000, 8, sparse=True),
                                 "frozen": torch.nn.Embedding(1000, 8, sparse=True).requires_grad_(False)})
    averaged = stormo_torch.average_gradients(model)
    assert not model["frozen"].weight.requires_grad
    tables = torch.optim.SparseAdam([model["in"].weight, model["bag"].weight])

    def loss_on(rank):
        words = torch.tensor([[1, 5 + rank], [5 + rank, 900]])
        seen = model["in"](words).sum(1) + model["bag"](words) + model["frozen"](words).sum(1)
        return model["layer"](seen).square().sum()

    trained = [p for p in model.parameters() if p.requires_grad]
    for _ in range(3):
        dense = [[g.to_dense() for g in torch.autograd.grad(loss_on(rank), trained)] for rank in (0, 1)]
        loss_on(dist.get_rank()).backward()
        for p, a, b in zip(trained, *dense):
            torch.testing.assert_close(p.grad.to_dense(), (a + b) / 2)
        for name in ("in", "bag"):
            assert model[name].weight.grad.is_sparse
            assert model[name].weight.grad.coalesce().indices().tolist() == [[1, 5, 6, 900]]
        tables.step()
        model.zero_grad()
    del averaged


@cases
def average_of_several_forwards():
    model = mlp()
    averaged = stormo_torch.average_gradients(model)
    by_rank = []
    for rank in (0, 1):
        alone = copy.deepcopy(model)
        (loss_of(alone, rank, 0) + loss_of(alone, rank, 1)).backward()
        by_rank.append([p.grad for p in alone.parameters()])
    (own_loss(model, 0) + own_loss(model, 1)).backward()
    check_gradients(model, [(a + b) / 2 for a, b in zip(*by_rank)])
    assert not is_large_made_in_arena()
    del averaged


@cases
def average_by_weights():
    model = mlp()
    averaged = stormo_torch.average_gradients(model)
    averaged.set_weight(1 + 2 * dist.get_rank())
    expected = [(a + 3 * b) / 4 for a, b in zip(gradients_of(model, 0), gradients_of(model, 1))]
    own_loss(model).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected, rtol=1e-5, atol=1e-7)
    assert "number >= 0" in error_of(lambda: averaged.set_weight(-1))


@cases
def average_where_a_rank_has_no_samples():
    model = mlp()
    averaged = stormo_torch.average_gradients(model)
    if dist.get_rank() == 0:
        own_loss(model).backward()
    else:
        averaged.set_weight(0)
        averaged.reduce()
    check_gradients(model, gradients_of(model, 0))


@cases
def average_of_two_modules_in_one_backward():
    first, second = mlp(), torch.nn.Linear(4, 4)
    both = torch.nn.Sequential(first, second)
    averaged = [stormo_torch.average_gradients(m) for m in (first, second)]
    train(both)
    assert not is_large_made_in_arena()
    del averaged


@cases
def average_after_an_exception_in_backward():
    def fail(gradient):
        assert is_large_made_in_arena()
        raise ValueError("as the test wants it")

    model = mlp()
    averaged = stormo_torch.average_gradients(model)
    train(model)
    for bucket in range(2):
        loss = own_loss(model)
        hook = model[2 * bucket].weight.register_hook(fail)
        assert "as the test wants it" in error_of(loss.backward)
        assert not is_large_made_in_arena()
        hook.remove()
        model.zero_grad()
    train(model)
    del averaged


@cases
def average_three_times():
    model = mlp()
    for way in ("del", "remove", "del"):
        averaged = stormo_torch.average_gradients(model)
        train(model)
        output = model(batch(dist.get_rank()))  # kept: it has hooks
        if way == "del":
            del averaged
            gc.collect()
        else:
            averaged.remove()
        own_loss(model).backward()
        check_gradients(model, gradients_of(model, dist.get_rank()))
        model.zero_grad()
        del output


@cases
def average_twice_at_once_is_refused():
    model = mlp()
    averaged = [stormo_torch.average_gradients(model) for _ in range(2)]
    assert "wrapped twice" in error_of(own_loss(model).backward)
    del averaged


@cases
def average_is_not_that_of_a_copy():
    model = mlp()
    averaged = stormo_torch.average_gradients(model)
    other = copy.deepcopy(model)
    own_loss(other).backward()
    check_gradients(other, gradients_of(model, dist.get_rank()))
    train(model)
    del averaged


@cases
def average_of_a_module_that_changed_is_refused():
    def freeze(model):
        model[2].bias.requires_grad_(False)

    def thaw(model):
        model[0].bias.requires_grad_(True)

    def convert(model):
        model.double()

    def replace(model):
        model[2] = torch.nn.Linear(128, 4)

    def load(model):
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)

    for change in (freeze, thaw, convert, replace, load):
        model = mlp()
        model[0].bias.requires_grad_(False)
        averaged = stormo_torch.average_gradients(model)
        own_loss(model).backward()
        model.zero_grad()
        change(model)
        text = error_of(lambda: model(torch.zeros(1, 256, dtype=model[0].weight.dtype)))
        assert "average_gradients() again" in text, (change, text)
        averaged.remove()
        averaged = stormo_torch.average_gradients(model)
        model(torch.full((1, 256), float(dist.get_rank()), dtype=model[0].weight.dtype)).sum().backward()
        assert model[2].weight.grad is not None
        del averaged


# --- DistributedDataParallel


@cases
def ddp_is_that_of_pytorch():
    for options in ({}, {"bucket_cap_mb": 0.01}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        weights = []
        for kind in (torch.nn.parallel.DistributedDataParallel, stormo_torch.DistributedDataParallel):
            model = mlp(seed=dist.get_rank())  # rank 0's are taken
            train(model, kind(model, **options))
            weights.append(list(model.parameters()))
        check_equal(*weights)


@cases
def ddp_no_sync():
    model = mlp()
    ddp = stormo_torch.DistributedDataParallel(model)
    with ddp.no_sync():
        own_loss(ddp).backward()
    check_gradients(model, gradients_of(model, dist.get_rank()))
    model.zero_grad()
    train(model, ddp)


def check_hook(ddp):
    """Gradients are views of the buckets here, and the hook is a second one."""
    assert stormo_torch.in_arena(ddp.module[0].weight.grad)
    text = error_of(lambda: ddp.register_comm_hook(None, lambda state, bucket: None))
    assert "can only be called once" in text, text


@cases
def ddp_reduces_in_the_arena():
    model = mlp()
    ddp = stormo_torch.DistributedDataParallel(model, gradient_as_bucket_view=True)
    for step in range(3):  # buckets are made again after the first one
        own_loss(ddp).backward()
        assert stormo_torch.in_arena(model[0].weight.grad)
        assert not is_large_made_in_arena()
        model.zero_grad(set_to_none=False)
    check_hook(ddp)


@cases
def ddp_is_copied_and_pickled():
    ddp = stormo_torch.DistributedDataParallel(mlp(), gradient_as_bucket_view=True)
    train(ddp.module, ddp)
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    for other in (copy.deepcopy(ddp), torch.load(file, weights_only=False)):
        check_equal(other.parameters(), ddp.parameters())
        for step in range(2):
            expected = averages_of(ddp.module, step)
            own_loss(other, step).backward()
            check_gradients(other.module, expected)
            check_hook(other)
            other.zero_grad()


# --- what needs a job of its own


def ddp_over_a_mesh():
    """Ranks 0 and 2, and 1 and 3, have the same module."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    column = dist.get_rank() % 2
    for named in ({"device_mesh": mesh["data"]}, {"process_group": mesh["data"].get_group()}):
        model = mlp(seed=column)
        ddp = stormo_torch.DistributedDataParallel(model, **named)
        expected = averages_of(model, ranks=(column, column + 2))
        own_loss(ddp).backward()
        check_gradients(model, expected)
    model = mlp(seed=column)
    averaged = stormo_torch.average_gradients(model, group=mesh["data"].get_group())
    expected = averages_of(model, ranks=(column, column + 2))
    own_loss(model).backward()
    check_gradients(model, expected)
    del averaged


def three_jobs(folder):
    """One after the other in the same processes, with the same module."""
    model = mlp()
    for job in range(3):
        dist.init_process_group("stormo", init_method=f"file://{folder}/job.{job}",
                                rank=int(os.environ["RANK"]), world_size=2)
        averaged = stormo_torch.average_gradients(model)
        train(model)
        del averaged
        ddp = stormo_torch.DistributedDataParallel(model)
        train(model, ddp)
        del ddp
        dist.destroy_process_group()
        own_loss_alone = loss_of(model, job)
        own_loss_alone.backward()
        check_gradients(model, gradients_of(model, job))
        model.zero_grad()


def with_debug():
    """PyTorch wraps the backend then."""
    with stormo_torch.arena():
        assert is_large_made_in_arena()
    model = mlp()
    averaged = stormo_torch.average_gradients(model)
    train(model)
    averaged.remove()
    train(model, stormo_torch.DistributedDataParallel(model))


def run_cases():
    return cases.run()


@cases.tests(run_cases, 2)
class AverageTest(unittest.TestCase):
    def test_ddp_over_a_mesh(self):
        JoinedRanks(ddp_over_a_mesh, 4).wait()

    def test_three_jobs(self):
        with tempfile.TemporaryDirectory() as folder:
            JoinedRanks(three_jobs, 2, folder, backend=None).wait()

    def test_with_debug(self):
        Ranks(with_debug, 2, TORCH_DISTRIBUTED_DEBUG="DETAIL").wait()


if __name__ == "__main__":
    unittest.main()
