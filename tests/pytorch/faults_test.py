"""A rank dies, is stopped, ends or fails at each point of a program: the others get a DistBackendError that names it, in
time. A rank that has ended in order is no fault for those that do not need it.
"""
import atexit
import concurrent.futures
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import threading
import time
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

import stormo_torch  # noqa: F401  (where it is not installed)
from forked_ranks import ForkedRanks, join, note, rank
from ranks import Ranks

RANKS = 3
AT_ONCE = 4
MESSAGE_BYTES = 64 << 10
PROMISED = 3.0  # seconds
# A stopped rank is found by its silence. By default that takes 2.5 s, which leaves little for a busy machine.
HEARTBEAT = {"STORMO_HEARTBEAT": "1s"}
JOIN_TIMEOUT = 4.0


# What a rank does again and again until it fails. Each returns the function that is called.

def wait_for_one_that_computes(victim):
    x = torch.ones(1000)
    if rank() != victim:
        return lambda: dist.all_reduce(x, async_op=True).wait()
    calls = iter(range(2))  # all is well at first
    return lambda: dist.all_reduce(x) if next(calls, None) is not None else time.sleep(0.05)


def large_all_reduce(victim):
    x = torch.ones(16 << 20)
    return lambda: dist.all_reduce(x)


def _model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))


def _backward_of(model):
    x = torch.randn(8, 64)

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    return step


def backward_of_ddp(victim):
    return _backward_of(torch.nn.parallel.DistributedDataParallel(_model()))


def backward_of_stormo_ddp(victim):
    return _backward_of(stormo_torch.DistributedDataParallel(_model()))


def backward_of_average_gradients(victim):
    model = _model()
    step = _backward_of(model)
    step.averaged = stormo_torch.average_gradients(model)
    return step


def messages(victim):
    others = [r for r in range(RANKS) if r != rank()]
    sent = torch.ones(MESSAGE_BYTES)
    received = {r: torch.empty(MESSAGE_BYTES) for r in others}

    def step():
        works = [dist.irecv(received[r], r) for r in others] + [dist.isend(sent, r) for r in others]
        for work in works:
            work.wait()

    return step


def new_groups(victim):
    def step():
        group = dist.new_group(list(range(RANKS)))
        dist.barrier(group)
        dist.destroy_process_group(group)

    return step


def wait_for_one_that_leaves(victim):
    x = torch.ones(1000)
    if rank() != victim:
        return lambda: dist.all_reduce(x)
    calls = iter(range(2))
    return lambda: dist.all_reduce(x) if next(calls, None) is not None else leave()


def leave():
    if dist.is_initialized():
        dist.destroy_process_group()
    time.sleep(0.001)


PHASES = [wait_for_one_that_computes, large_all_reduce, backward_of_ddp, backward_of_stormo_ddp,
          backward_of_average_gradients, messages, new_groups, wait_for_one_that_leaves]


def throw():
    raise ValueError("as the test wants it")


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "_exit": lambda: os._exit(7),
    "exit": lambda: sys.exit(0),
    "exception": throw,
}
OF_PYTHON = {"exit", "exception"}  # of the main thread, between two operations; the others come at any time
CODES = {"kill": -signal.SIGKILL, "stop": -signal.SIGKILL, "_exit": 7, "exit": 0, "exception": 1}


def commit(fault, after):
    time.sleep(after)
    note("fault")
    FAULTS[fault]()


def commit_soon(fault, most):
    after = random.uniform(0, most)
    if fault in OF_PYTHON:
        commit(fault, after)
    threading.Thread(target=commit, args=(fault, after), daemon=True).start()


def fail_while_running(phase, fault, victim):
    join()
    step = globals()[phase](victim)
    for _ in range(2):
        step()
    try:
        if rank() == victim:
            if phase == "wait_for_one_that_leaves" and fault in OF_PYTHON:
                leave()
            commit_soon(fault, 0.002 if phase == "wait_for_one_that_leaves" else 0.2)
        while True:
            step()
    except dist.DistBackendError as e:
        return time.monotonic(), str(e)


def fail_while_joining(fault, victim):
    """The others cannot know of a rank that was never there; they wait for it until their timeout."""
    try:
        if rank() == victim:
            commit_soon(fault, 0.03)
        join()
        while True:
            dist.barrier()
    except dist.DistBackendError as e:
        return time.monotonic(), str(e)


def fail_at_the_end(folder, fault, victim):
    me = int(os.environ["RANK"])
    dist.init_process_group("stormo", init_method=f"file://{folder}/meet", rank=me, world_size=2)
    dist.barrier()
    try:
        while me != victim:
            dist.barrier()
    except dist.DistBackendError as e:
        return time.monotonic(), str(e)

    def at_the_end():
        with open(f"{folder}/fault", "w") as file:
            file.write(repr(time.monotonic()))
        if fault not in OF_PYTHON:
            FAULTS[fault]()

    atexit.register(at_the_end)  # is called before Stormo leaves
    if fault == "exception":
        throw()


def work_alone(seconds):
    join()
    x = torch.ones(1000)
    for _ in range(20):  # the limits of stalls are longer at first
        dist.all_reduce(x)
    alone = dist.new_group([0])
    if rank() == 1:
        return dist.destroy_process_group()
    end = time.monotonic() + seconds
    while rank() == 0 and time.monotonic() < end:
        dist.all_reduce(x, group=alone)
        time.sleep(0.01)


class FaultsTest(unittest.TestCase):
    def check(self, ranks, fault, victim, seconds):
        """The others have named the victim in time, and ended in order; it has ended as it wanted."""
        for r, process in enumerate(ranks.processes):
            process.join(30 if r != victim else 0)
        if fault == "stop":
            ranks.processes[victim].kill()  # the others do it only where it might still write into their memory
        codes = ranks.wait_for_ends(10)
        began = ranks.noted("fault", victim)
        causes = set()
        for r in range(len(codes)):
            text = f"rank {r} ended with {codes[r]}:\n{ranks.output(r)}"
            if r == victim:
                self.assertEqual(codes[r], CODES[fault], text)
                continue
            self.assertEqual(codes[r], 0, text)
            at, error = ranks.result(r)
            self.assertRegex(error, rf"\brank {victim}\b")
            self.assertLess(at - began, seconds, error)
            causes.add(error[re.search(rf"\brank {victim}\b", error).start():])
        self.assertEqual(len(causes), 1, causes)

    def run_trials(self, trials, function, seconds=0, timeout=60):
        """trials: the arguments of the function on each rank, without the victim: rank 0, which serves the job's Store,
        and another one. The last is the fault."""
        def run(trial):
            ranks = ForkedRanks(function, RANKS, *trial, timeout=timeout, **HEARTBEAT)
            self.check(ranks, *trial[-2:], seconds + PROMISED)

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            runs = {(*trial, victim): pool.submit(run, (*trial, victim))
                    for i, trial in enumerate(trials) for victim in (0, 1 + i % 2)}
            for trial, done in runs.items():
                with self.subTest(trial):
                    done.result()

    def test_others_name_the_rank_whatever_it_was_doing(self):
        self.run_trials([(phase.__name__, fault) for phase in PHASES for fault in FAULTS], fail_while_running)

    def test_others_name_a_rank_that_does_not_join(self):
        self.run_trials([(fault,) for fault in FAULTS], fail_while_joining, JOIN_TIMEOUT, JOIN_TIMEOUT)

    def test_others_name_a_rank_whose_interpreter_ends(self):
        """Without destroy_process_group(). Real processes: children of multiprocessing never come to this end."""
        for victim in (0, 1):
            with tempfile.TemporaryDirectory() as folder:
                runs = {}
                for fault in FAULTS:
                    os.mkdir(f"{folder}/{fault}")
                    runs[fault] = Ranks(fail_at_the_end, 2, f"{folder}/{fault}", fault, victim, backend=None,
                                        **HEARTBEAT)
                for fault, ranks in runs.items():
                    with self.subTest(fault, victim=victim):
                        codes = ranks.wait_for_ends(60)
                        ends = [CODES[fault], 0] if victim == 0 else [0, CODES[fault]]
                        self.assertEqual(codes, ends, ranks.output(0) + ranks.output(1))
                        at, error = ranks.result(1 - victim)
                        self.assertRegex(error, rf"\brank {victim}\b")
                        began = float(pathlib.Path(folder, fault, "fault").read_text())
                        self.assertLess(at - began, PROMISED, error)

    def test_rank_0_works_alone_when_the_others_have_left(self):
        """For longer than all limits; STORMO_TEST_ALONE=90 makes it 90 s with those that users have."""
        seconds = int(os.environ.get("STORMO_TEST_ALONE", "0"))
        limits = {} if seconds else {"timeout": 2, "STORMO_HEARTBEAT": "500ms"}
        ranks = ForkedRanks(work_alone, RANKS, seconds or 10, **limits)
        ranks.wait(120)
        self.assertEqual([ranks.output(r) for r in range(RANKS)], ["", "", ""])


if __name__ == "__main__":
    unittest.main()
