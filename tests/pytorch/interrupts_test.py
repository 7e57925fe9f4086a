"""Ctrl-C ends a rank within a second, whatever it waits for."""
import datetime
import os
import pathlib
import signal
import time
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

import stormo_torch
from forked_ranks import ForkedRanks, folder, join, note, rank

SECONDS = 1.0


def _backward(model, wrapped):
    return lambda: wrapped(torch.ones(2, 8)).sum().backward()


# What rank 0 waits in; each returns the function that waits. Rank 1 only comes to what is before.

def blocking_call():
    return lambda: dist.all_reduce(torch.ones(4))


def blocking_call_after_signal():
    """asyncio.run() and notebooks install Python's own handler again."""
    dist.barrier()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return lambda: dist.all_reduce(torch.ones(4))


def wait_of_work():
    return lambda: dist.all_reduce(torch.ones(4), async_op=True).wait()


def wait_of_future():
    return lambda: dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()


def receive():
    return lambda: dist.recv(torch.ones(4), 1)


def backward_of_ddp():
    model = torch.nn.Linear(8, 8)
    return _backward(model, torch.nn.parallel.DistributedDataParallel(model))


def backward_of_stormo_ddp():
    model = torch.nn.Linear(8, 8)
    return _backward(model, stormo_torch.DistributedDataParallel(model))


def backward_of_average_gradients():
    model = torch.nn.Linear(8, 8)
    model.averaged = stormo_torch.average_gradients(model)
    return _backward(model, model)


def monitored_barrier():
    return lambda: dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=60))


def new_group():
    return lambda: dist.new_group([0, 1])


PLACES = [blocking_call, blocking_call_after_signal, wait_of_work, wait_of_future, receive, backward_of_ddp,
          backward_of_stormo_ddp, backward_of_average_gradients, monitored_barrier, new_group]


def wait_in(place):
    """Returns when rank 0 was interrupted, and what the other rank is told."""
    join()
    wait = globals()[place]()
    dist.barrier()
    if rank() == 1:
        while not pathlib.Path(folder(), "interrupted.0").exists():
            time.sleep(0.01)
        try:
            dist.barrier()
        except dist.DistBackendError as e:
            return str(e)
    return interrupted_in(wait)


def interrupted_in(wait):
    try:
        note("waits")
        try:
            wait()
        except dist.DistBackendError:
            while True:  # a Future has the failure; KeyboardInterrupt comes at once
                time.sleep(0.01)
    except KeyboardInterrupt:
        note("interrupted")


def wait_in_join():
    return interrupted_in(join) if rank() == 0 else time.sleep(60)


def ignore_in_a_child():
    """The other rank comes late. Nobody has interrupted this one."""
    join()
    if rank() == 1:
        time.sleep(1)
        return dist.barrier()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        os._exit(0)
    dist.barrier()
    return os.waitpid(child, 0)[1]


def handle(seconds):
    came = []
    signal.signal(signal.SIGINT, lambda *_: came.append(1))
    join()
    note("waits")
    if rank() == 1:
        time.sleep(seconds)
    dist.barrier()
    return came


class InterruptsTest(unittest.TestCase):
    def interrupt(self, ranks):
        """How long rank 0 takes to end what it is in."""
        ranks.noted("waits", 0)
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(ranks.processes[0].pid, signal.SIGINT)
        return ranks.noted("interrupted", 0, 20) - began

    def test_ends_what_a_rank_waits_in(self):
        runs = {place.__name__: ForkedRanks(wait_in, 2, place.__name__) for place in PLACES}
        for place, ranks in runs.items():
            with self.subTest(place):
                try:
                    self.assertLess(self.interrupt(ranks), SECONDS)
                    self.assertRegex(ranks.wait(30)[1], r"\brank 0\b")
                finally:
                    ranks.kill()

    def test_ends_init_process_group(self):
        ranks = ForkedRanks(wait_in_join, 2)
        try:
            self.assertLess(self.interrupt(ranks), SECONDS)
        finally:
            ranks.kill()

    def test_of_a_forked_child_is_its_own(self):
        ranks = ForkedRanks(ignore_in_a_child, 2)
        self.assertEqual(ranks.wait()[1], None)

    def test_a_handler_of_the_program_decides(self):
        ranks = ForkedRanks(handle, 2, 1.5)
        ranks.noted("waits", 0)
        time.sleep(0.2)
        os.kill(ranks.processes[0].pid, signal.SIGINT)
        self.assertEqual(ranks.wait()[0], [1])


if __name__ == "__main__":
    unittest.main()
