"""Ranks that end with something pending, and timeouts: what the others see."""
import datetime
import os
import pathlib
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist

from forked_ranks import ForkedRanks, JoinedRanks, folder, join, rank, write
from ranks import Ranks


def go_on(group, seconds):
    end = time.monotonic() + seconds
    more = torch.ones(1)
    while more.item() > 0:
        time.sleep(0.01)  # other tests want the cores, too
        more.fill_(1 if time.monotonic() < end else 0)
        dist.all_reduce(more, op=dist.ReduceOp.MIN, group=group)


def end_with(what, destroys):
    """Rank 1 ends while something is pending; the others go on for longer than that has."""
    rest = dist.new_group([0, 2], use_local_synchronization=True)
    if dist.get_rank() != 1:
        return go_on(rest, 4)
    x = torch.ones(1 << 18)
    start = {"isend": lambda: dist.isend(x, 0), "irecv": lambda: dist.irecv(x, 0),
             "all_reduce": lambda: dist.all_reduce(x, async_op=True)}
    work = start[what]()
    if not destroys:
        raise SystemExit(0)
    begin = time.monotonic()
    dist.destroy_process_group()
    took = time.monotonic() - begin
    assert took < 8, took
    try:
        work.wait()
    except dist.DistBackendError as error:
        assert "cancelled" in str(error), error
    else:
        raise AssertionError("it cannot have ended well")
    dist.init_process_group("stormo", store=dist.HashStore(), rank=0, world_size=1)  # a fresh one is possible


def end_in_a_function_of_a_future(folder_of_test):
    """It needs the interpreter until it has returned."""
    begun = threading.Event()

    def take_long(_):
        begun.set()
        time.sleep(0.5)
        pathlib.Path(folder_of_test, f"returned.{dist.get_rank()}").touch()

    dist.all_reduce(torch.ones(3), async_op=True).get_future().then(take_long)
    begun.wait()


def come_late(seconds, timeout):
    """In a group that has a timeout of its own."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=timeout))
    if dist.get_rank() == 1:
        time.sleep(seconds)
    x = torch.ones(3)
    dist.all_reduce(x, group=group, async_op=True).get_future().wait()
    return x


def error_of(call):
    """And after how many seconds."""
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    return "nothing", time.monotonic() - begin


def wait_for_rank_0(seconds):
    """Until it has its result, and for so long at most."""
    end = time.monotonic() + seconds
    while not os.path.exists(f"{folder()}/result.0") and time.monotonic() < end:
        time.sleep(0.05)


def come_not(timeout):
    """What rank 0 is told of an operation that rank 1 never calls."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=timeout))
    for _ in range(17):
        dist.barrier(group=group)  # its first steps are over
    if dist.get_rank() == 1:
        return wait_for_rank_0(15)
    return error_of(lambda: dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future().wait())


def join_not():
    if os.environ["RANK"] == "1":
        return wait_for_rank_0(5)
    return error_of(lambda: dist.init_process_group("stormo", init_method=f"file://{folder()}/meet", rank=0,
                                                    world_size=2))


def join_late(seconds):
    """Over a server that is there before the ranks join, as torchrun's."""
    if rank() == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        write("port", str(store.port))
    else:
        port = pathlib.Path(folder(), "port.0")
        while not port.exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(port.read_text()), wait_for_workers=False)
        time.sleep(seconds)  # what is tested: a rank that is so much later
    join(store)
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x.tolist()


class LateTest(unittest.TestCase):
    def test_who_waits_for_a_late_rank_says_nothing(self):
        ranks = ForkedRanks(join_late, 2, 1.5)
        self.assertEqual(ranks.wait(), [[2, 2, 2]] * 2)
        self.assertEqual([ranks.output(0), ranks.output(1)], ["", ""])


class LeavingTest(unittest.TestCase):
    def test_what_is_pending_when_a_rank_ends_is_no_failure(self):
        runs = {(what, destroys): (JoinedRanks if destroys else Ranks)(end_with, 3, what, destroys)
                for what in ("isend", "irecv", "all_reduce") for destroys in (True, False)}
        for (what, destroys), ranks in runs.items():
            with self.subTest(what=what, destroys=destroys):
                codes = ranks.wait_for_ends(60)
                self.assertEqual(codes, [0, 0, 0], "".join(map(ranks.output, range(3))))


    def test_functions_of_futures_return_before_the_interpreter_ends(self):
        with tempfile.TemporaryDirectory() as folder_of_test:
            ranks = Ranks(end_in_a_function_of_a_future, 2, folder_of_test)
            self.assertEqual(ranks.wait_for_ends(60), [0, 0], "".join(map(ranks.output, range(2))))
            self.assertEqual(sorted(os.listdir(folder_of_test)), ["returned.0", "returned.1"])


class TimeoutTest(unittest.TestCase):
    def test_of_a_group_may_be_longer_than_that_of_its_world(self):
        for result in JoinedRanks(come_late, 2, 4, 60, timeout=2).wait():
            self.assertEqual(result.tolist(), [2, 2, 2])

    def check_end(self, ranks, text, least, most):
        ranks.wait_for_ends(30)
        error, seconds = ranks.result(0)
        self.assertRegex(error, text)
        self.assertGreater(seconds, least)
        self.assertLess(seconds, most)

    def test_of_a_group_may_be_shorter_than_that_of_its_world(self):
        self.check_end(JoinedRanks(come_not, 2, 3, timeout=300), "the timeout has passed(.|\n)*rank 1:", 2.5, 10)

    def test_of_stalls_acts_if_it_is_set(self):
        self.check_end(JoinedRanks(come_not, 2, 300, STORMO_STALL_TIMEOUT="1s", STORMO_STALL_WARNING="0s"),
                       "rank 1(.|\n)*has not reached all_reduce", 0.9, 12)

    def test_of_joining_acts_if_it_is_set(self):
        self.check_end(JoinedRanks(join_not, 2, backend=None, STORMO_JOIN_TIMEOUT="1s"),
                       "rank 1(.|\n)*has not joined", 0.9, 4.5)


if __name__ == "__main__":
    unittest.main()
