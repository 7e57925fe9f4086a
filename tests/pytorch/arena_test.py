"""Memory that ranks share: what is put there, and what is not."""
import threading
import unittest
import warnings

import torch
import torch.distributed as dist

import stormo_torch
from by_hand import error_of, mlp
from cases import Cases
from forked_ranks import JoinedRanks

LARGE = 1 << 15  # elements: 128 KiB, which the Arena takes
cases = Cases()


def is_large_made_in_arena():
    return stormo_torch.in_arena(torch.empty(LARGE))


@cases
def arena_takes_what_is_large():
    with stormo_torch.arena():
        large, small = torch.ones(LARGE), torch.ones(8)
        with stormo_torch.arena():
            pass
        assert is_large_made_in_arena()
        of_thread = []
        thread = threading.Thread(target=lambda: of_thread.append(is_large_made_in_arena()))
        thread.start()
        thread.join()
    assert of_thread == [False]
    assert stormo_torch.in_arena(large) and stormo_torch.in_arena(large[5:7]) and not stormo_torch.in_arena(small)
    assert not is_large_made_in_arena()
    dist.all_reduce(large)
    assert torch.equal(large, torch.full((LARGE,), 2.0))


@cases
def arena_ends_by_an_exception():
    def fail():
        with stormo_torch.arena():
            raise ValueError("as the test wants it")

    assert error_of(fail) == "as the test wants it"
    assert not is_large_made_in_arena()


@cases
def empty_in_the_arena():
    tensor = stormo_torch.empty(LARGE, 2, dtype=torch.float64, requires_grad=True)
    assert stormo_torch.in_arena(tensor) and tensor.requires_grad
    assert (tensor.shape, tensor.dtype) == ((LARGE, 2), torch.float64)
    assert stormo_torch.empty((2, 3)).shape == (2, 3)
    assert not is_large_made_in_arena()


@cases
def another_backend_is_refused():
    gloo = dist.new_group(backend="gloo")
    for function in (lambda: stormo_torch.arena(gloo).__enter__(), lambda: stormo_torch.empty(LARGE, group=gloo),
                     lambda: stormo_torch.in_arena(torch.zeros(1), gloo),
                     lambda: stormo_torch.average_gradients(mlp(), group=gloo),
                     lambda: stormo_torch.DistributedDataParallel(mlp(), process_group=gloo)):
        assert "is gloo; use init_process_group('stormo')" in error_of(function)


# --- what needs a job of its own


def memory_of_the_group():
    """FSDP2 asks for it. No scope was opened yet."""
    tensor = dist.group.WORLD._get_backend(torch.device("cpu")).allocate_tensor(
        LARGE, dtype=torch.float32, device=torch.device("cpu"))
    return stormo_torch.in_arena(tensor)


def all_in_arena():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stormo_torch.use_arena()
    assert is_large_made_in_arena()
    return [(w.category.__name__, w.filename, str(w.message)) for w in said]


def without_a_group():
    return [error_of(function) for function in (
        lambda: stormo_torch.empty(LARGE), lambda: stormo_torch.average_gradients(mlp()), stormo_torch.use_arena)]


def run_cases():
    return cases.run()


@cases.tests(run_cases, 2)
class ArenaTest(unittest.TestCase):
    def test_memory_of_the_group_is_in_the_arena(self):
        self.assertEqual(JoinedRanks(memory_of_the_group, 1).wait(), [True])

    def test_use_arena_warns(self):
        [[(category, file, text)]] = JoinedRanks(all_in_arena, 1).wait()
        self.assertEqual((category, file), ("UserWarning", __file__))
        self.assertRegex(text, r"forked children share .* DataLoader .* spawn")

    def test_without_a_group(self):
        for text in JoinedRanks(without_a_group, 1, backend=None).wait()[0]:
            self.assertIn("call init_process_group('stormo') first", text)


if __name__ == "__main__":
    unittest.main()
