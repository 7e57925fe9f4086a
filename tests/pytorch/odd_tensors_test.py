"""Tensors that share memory: with each other, or with themselves."""
import unittest

import torch
import torch.distributed as dist

from cases import Cases
from ranks import Ranks

cases = Cases()
SMALL, LARGE = 4, 40_000  # elements of a part


def part(rank, size, to=0):
    return torch.full((size,), float(10 * rank + to))


def sizes(test):
    def run():
        for size in (SMALL, LARGE):
            test(size)

    run.__name__ = test.__name__
    return run


@cases
@sizes
def all_to_all_into_its_input(size):
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    expected = torch.cat([part(r, size, rank) for r in ranks])
    whole = torch.cat([part(rank, size, r) for r in ranks])
    dist.all_to_all_single(whole, whole)
    torch.testing.assert_close(whole, expected)
    parts = [part(rank, size, r) for r in ranks]
    dist.all_to_all(parts, parts)
    torch.testing.assert_close(torch.cat(parts), expected)
    in_one = torch.cat([part(rank, size, r) for r in ranks])
    dist.all_to_all(list(in_one.view(len(ranks), size)), list(in_one.view(len(ranks), size)))
    torch.testing.assert_close(in_one, expected)


@cases
@sizes
def scatter_into_any_part_of_its_input(size):
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    for root in ranks:
        for place in ranks:
            whole = torch.stack([part(root, size, r) for r in ranks])
            out = whole[place] if rank == root else torch.empty(size)
            dist.scatter(out, list(whole) if rank == root else None, src=root)
            torch.testing.assert_close(out, part(root, size, rank))


@cases
@sizes
def gather_from_any_part_of_the_output(size):
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    expected = torch.stack([part(r, size) for r in ranks])
    for place in ranks:
        whole = torch.zeros(len(ranks), size)
        whole[place] = part(rank, size)
        dist.all_gather_into_tensor(whole, whole[place])
        torch.testing.assert_close(whole, expected)
        whole[place] = part(rank, size)
        dist.all_gather(list(whole), whole[place])
        torch.testing.assert_close(whole, expected)
        whole[place] = part(rank, size)
        dist.gather(whole[place], list(whole) if rank == 0 else None)
        if rank == 0:
            torch.testing.assert_close(whole, expected)


@cases
@sizes
def reduce_scatter_into_any_part_of_its_input(size):
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    for place in ranks:
        whole = torch.stack([part(rank, size, r) for r in ranks])
        dist.reduce_scatter_tensor(whole[place], whole)
        torch.testing.assert_close(whole[place], sum(part(r, size, rank) for r in ranks))


@cases
def results_in_elements_that_are_one_are_refused():
    same = torch.ones(1).expand(4)
    n = dist.get_world_size()
    for call in (lambda: dist.all_reduce(same), lambda: dist.all_gather([same] * n, torch.ones(4)),
                 lambda: dist.all_to_all([same] * n, [torch.ones(4)] * n),
                 lambda: dist.reduce_scatter_tensor(same, torch.ones(4 * n)),
                 lambda: dist.all_to_all_single(torch.ones(1).expand(n), torch.ones(n))):
        try:
            call()
        except ValueError as error:
            assert "expand() makes them; take its .clone()" in str(error), error
        else:
            raise AssertionError("it was not refused")
    x = torch.full((1,), float(dist.get_rank())).expand(4)
    parts = [torch.empty(4) for _ in range(n)]
    dist.all_gather(parts, x)  # they may be read
    torch.testing.assert_close(torch.stack(parts), torch.arange(float(n)).view(n, 1).expand(n, 4))


@cases
def all_to_all_of_parts_that_differ_is_refused():
    """Last: the group fails."""
    rank, n = dist.get_rank(), dist.get_world_size()
    own = LARGE + (rank == 1)  # to rank 0, which expects less
    sent, received = [own] + [LARGE] * (n - 1), [LARGE] * n
    if rank != 0:
        try:
            dist.all_to_all_single(torch.empty(n * LARGE), torch.ones(sum(sent)), received, sent)
        except dist.DistBackendError:
            pass  # it may have had all that it needs
        return
    try:
        dist.all_to_all_single(torch.empty(n * LARGE), torch.ones(sum(sent)), received, sent)
    except dist.DistBackendError as error:
        assert f"rank 1 sends {LARGE + 1} elements to rank 0, which expects {LARGE}" in str(error), error
    else:
        raise AssertionError("it was not refused")


def run_cases():
    return cases.run()


@cases.tests(run_cases, 3)
class OddTensorsTest(unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
