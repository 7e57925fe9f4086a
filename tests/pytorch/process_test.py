"""What else goes on in a training process: forked workers, other threads; and what the kernel sees of a collective."""
import os
import pathlib
import tempfile
import threading
import time
import unittest
import warnings

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import stormo_torch
from forked_ranks import JoinedRanks
from system_calls import counted_bytes

MIB = 1 << 20


class Overwriting(Dataset):
    """1 MiB of numbers, each of which is overwritten when it is read."""

    def __init__(self):
        self.values = torch.arange(MIB // 4, dtype=torch.float32).view(64, -1)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        values = self.values[index].clone()
        self.values[index] = -1
        return values


def load(dataset):
    """Reads all of it with two workers. Whether the values in this process are still what they were."""
    before = Overwriting().values
    batches = list(DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="fork"))
    assert torch.equal(torch.cat(batches), before), "the workers read other values"
    return torch.equal(dataset.values, before)


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 256), float(step + dist.get_rank()))).square().mean().backward()
        optimizer.step()


def train_with_workers(meet_at, kind):
    """Data sets that were made before the group, after it and after training; and training goes on."""
    early = Overwriting()
    dist.init_process_group("stormo", init_method=f"file://{meet_at}", rank=int(os.environ["RANK"]), world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 8))
    if kind == "average_gradients":
        averaged = stormo_torch.average_gradients(model)
    elif kind == "DistributedDataParallel":
        model = stormo_torch.DistributedDataParallel(model, gradient_as_bucket_view=True)
    after_wrapping = Overwriting()
    if kind == "arena":
        with stormo_torch.arena():
            assert stormo_torch.in_arena(torch.empty(MIB))
    else:
        train(model, 3)
        weight = next(model.parameters())
        assert kind == "plain" or stormo_torch.in_arena(weight.grad), "this has tested nothing"
    unchanged = [load(dataset) for dataset in [early, after_wrapping, Overwriting()]]
    if kind != "arena":
        train(model, 3)
    x = torch.full((MIB,), float(1 + dist.get_rank()))
    dist.all_reduce(x)
    dist.destroy_process_group()
    return unchanged, x[0].item(), [p.detach().clone() for p in model.parameters()]


def use_arena():
    """What is documented: a warning; and a worker's writes are seen here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stormo_torch.use_arena()
    dataset = Overwriting()
    in_arena, unchanged = stormo_torch.in_arena(dataset.values), load(dataset)
    return [str(one.message) for one in caught], in_arena, unchanged


class Counter(threading.Thread):
    """Counts in Python for as long as it lives."""

    def __init__(self):
        super().__init__(daemon=True)
        self.count = 0
        self.goes_on = True

    def run(self):
        while self.goes_on:
            self.count += 1

    def during(self, call):
        """Shares of the time of a call: in which this thread waited for the interpreter's lock, so had counted less
        than it could; and in which the caller's thread was running. What other programs take of the cores is left
        out."""
        count, running, begin, own = self.count, self.running(), time.monotonic(), time.thread_time()
        call()
        seconds = time.monotonic() - begin
        assert self.count > count
        return 1 - (self.running() - running) / seconds, (time.thread_time() - own) / seconds

    def running(self):
        """Seconds in which it had a core or was ready for one."""
        schedule = pathlib.Path(f"/proc/self/task/{self.native_id}/schedstat").read_text()
        return sum(int(part) for part in schedule.split()[:2]) / 1e9


def count_beside(waits, rounds, seconds):
    """The least shares of Counter.during by what the main thread does: a call that keeps the lock does so in every
    round. Rank 1 always comes late."""
    rank = dist.get_rank()
    counter = Counter()
    if rank == 0:
        counter.start()
    found = {wait: [] for wait in waits}
    for _ in range(rounds):
        for what, shares in found.items():
            dist.barrier()
            if rank == 0:
                shares.append(counter.during(lambda: meet(what)))
            else:
                time.sleep(seconds)
                meet(what)
    counter.goes_on = False
    return {what: [min(of) for of in zip(*shares)] for what, shares in found.items()} if rank == 0 else None


def meet(how):
    x = torch.ones(1000)
    if how == "barrier":
        dist.barrier()
    elif how == "all_reduce":
        dist.all_reduce(x)
    elif how == "wait":
        dist.all_reduce(x, async_op=True).wait()
    elif how == "recv":
        dist.recv(x, 1) if dist.get_rank() == 0 else dist.send(x, 0)


def bytes_of_all_reduce(in_arena, async_op):
    """Of two of 64 MiB: private memory is copied or read, by turns at first."""
    make = stormo_torch.empty if in_arena else torch.empty
    x = make(16 * MIB)
    assert stormo_torch.in_arena(x) == in_arena

    def reduce():
        x.fill_(1 + dist.get_rank())
        work = dist.all_reduce(x, async_op=async_op)
        if async_op:
            work.wait()
        assert x.eq(3).all()

    reduce()
    with counted_bytes() as bytes_of:
        dist.barrier()
        reduce()
        reduce()
        dist.barrier()
    return bytes_of


class WorkersTest(unittest.TestCase):
    def test_what_they_write_into_their_data_stays_theirs(self):
        for kind in ["plain", "arena", "average_gradients", "DistributedDataParallel"]:
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                results = JoinedRanks(train_with_workers, 2, f"{folder}/meet", kind, backend=None).wait()
                for unchanged, total, parameters in results:
                    self.assertEqual((unchanged, total), ([True, True, True], 3))
                if kind in ["average_gradients", "DistributedDataParallel"]:
                    for a, b in zip(*(parameters for _, _, parameters in results)):
                        self.assertTrue(torch.equal(a, b))

    def test_use_arena_warns_that_they_share_what_they_write(self):
        for said, in_arena, unchanged in JoinedRanks(use_arena, 2).wait():
            self.assertEqual(len(said), 1, said)
            self.assertRegex(said[0], "memory that forked children share.*DataLoader worker.*spawn")
            self.assertEqual((in_arena, unchanged), (True, False))


class ThreadsTest(unittest.TestCase):
    def test_python_goes_on_beside_a_blocked_call(self):
        waits = ["barrier", "all_reduce", "wait", "recv"]
        for what, (waited, busy) in JoinedRanks(count_beside, 2, waits, 3, 0.6).wait()[0].items():
            with self.subTest(what=what):
                self.assertLess(waited, 0.1, "share of the time in which the counting thread had no lock")
                self.assertLess(busy, 0.1, "share of the time in which the blocked thread was running")


class SystemCallsTest(unittest.TestCase):
    def test_no_byte_of_a_sum_in_the_arena_passes_one(self):
        for async_op in [False, True]:
            with self.subTest(async_op=async_op):
                for of_call in JoinedRanks(bytes_of_all_reduce, 2, True, async_op).wait():
                    self.assertLess(sum(of_call.values()), MIB // 4, of_call)

    def test_those_of_private_memory_are_counted(self):
        """Each rank reads half of the other's 64 MiB, once: else the test above would show nothing."""
        for of_call in JoinedRanks(bytes_of_all_reduce, 2, False, False).wait():
            self.assertGreaterEqual(sum(of_call.values()), 32 * MIB, of_call)


if __name__ == "__main__":
    unittest.main()
