"""Runs a function of a test on ranks that are forked from a process which has imported the test, and so torch: they
start in a tenth of the time that those of ranks.py take, and end as the children of torch.multiprocessing do.

    ranks = ForkedRanks(function, 3, "argument", timeout=20, STORMO_HEARTBEAT="1s")
    results = ranks.wait()                        # what the function has returned on each rank

The function calls join() where it wants its default group; variables are set in its environment. While it runs, it may
note() what the test waits for. JoinedRanks is as Ranks of ranks.py; what torch itself reads of the environment when it
is imported, and how an interpreter ends, are to be tested with Ranks.
"""
import datetime
import json
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import pathlib
import signal
import sys
import threading
import time
import unittest.mock

import torch
import torch.distributed as dist

from ranks import Processes

_context = multiprocessing.get_context("forkserver")
_lock = threading.Lock()  # around what is of all processes
_imported = []  # what the process from which ranks are forked has
_me = None  # in a rank: its _Rank


class _Process(_context.Process):
    """Tests have several threads. Who starts a process looks after all others, too; of two threads that find the same
    end the second one would read it as 255."""

    def start(self):
        with _lock:
            super().start()

    def join(self, timeout=None):
        multiprocessing.connection.wait([self.sentinel], timeout)
        with _lock:
            super().join(0)

    def is_alive(self):
        with _lock:
            return super().is_alive()

    @property
    def exitcode(self):
        with _lock:
            return super().exitcode


class ForkedRanks(Processes):
    def __init__(self, function, size, *arguments, timeout=60, **variables):
        super().__init__()
        _import_once(function.__module__)
        variables = {k: str(v) for k, v in variables.items()}
        all_ranks = [_Rank(str(self.folder), rank, size, timeout) for rank in range(size)]
        self.processes = [_Process(target=self._run, args=(one, function, arguments, variables)) for one in all_ranks]
        for process in self.processes:
            process.start()

    @staticmethod
    def _run(me, function, arguments, variables):
        me.begin(variables)
        write("result", json.dumps(function(*arguments)))

    def result(self, rank):
        """What the function returned there; None if it has not, or nothing."""
        path = self.folder / f"result.{rank}"
        return json.loads(path.read_text()) if path.exists() else None

    def noted(self, name, rank, seconds=60):
        """When the rank called note(name), by time.monotonic(). It waits until then."""
        path = self.folder / f"{name}.{rank}"
        end = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > end or not self.processes[rank].is_alive() and not path.exists():
                raise AssertionError(f"rank {rank} never came to '{name}':\n{self.output(rank)}")
            time.sleep(0.005)
        return float(path.read_text())

    def wait_for_ends(self, seconds=120):
        """The exit statuses of all; None for those that had to be killed, because they were not ready in time."""
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(end - time.monotonic(), 0))
        codes = [process.exitcode for process in self.processes]
        self.kill()
        return codes

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()


class JoinedRanks(ForkedRanks):
    """backend=None leaves init_process_group to the function, which finds RANK and WORLD_SIZE in its environment."""

    def __init__(self, function, size, *arguments, backend="stormo", **how):
        super().__init__(function, size, backend, *arguments, WORLD_SIZE=size, **how)

    @staticmethod
    def _run(me, function, arguments, variables):
        me.begin({**variables, "RANK": str(me.rank), "LOCAL_RANK": str(me.rank)})
        backend, *arguments = arguments
        if backend is not None:
            join(backend=backend)
        torch.save(function(*arguments), f"{me.folder}/result.{me.rank}")
        if backend is not None:
            dist.destroy_process_group()

    def result(self, rank):
        return torch.load(self.folder / f"result.{rank}", weights_only=False)


def _import_once(module):
    """Starts the process from which ranks are forked, where this one is imported."""
    with _lock:
        if _imported:
            return
        file = pathlib.Path(sys.modules[module].__file__)
        _imported.append(file.stem)
        _context.set_forkserver_preload(_imported)
        path = os.pathsep.join(filter(None, [str(file.parent), os.environ.get("PYTHONPATH")]))
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=path):
            multiprocessing.forkserver.ensure_running()


class _Rank:
    def __init__(self, folder, rank, size, timeout):
        self.folder, self.rank, self.size, self.timeout = folder, rank, size, timeout

    def begin(self, variables):
        global _me
        _me = self
        output = os.open(f"{self.folder}/output.{self.rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(variables)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell starts tests in the background
        torch.set_num_threads(1)


def join(store=None, rank=None, size=None, backend="stormo"):
    """init_process_group; all ranks of the test meet, or those of a store."""
    how = {"init_method": f"file://{_me.folder}/meet"} if store is None else {"store": store}
    dist.init_process_group(backend, **how, rank=_me.rank if rank is None else rank, world_size=size or _me.size,
                            timeout=datetime.timedelta(seconds=_me.timeout))


def rank():
    return _me.rank


def folder():
    return _me.folder


def write(name, text):
    """A file of this rank, which is there when it is complete."""
    path = f"{_me.folder}/{name}.{_me.rank}"
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def note(name):
    write(name, repr(time.monotonic()))
