"""Runs a function of a test on several ranks, each a process of its own. They meet over a file.

    def sum_of_ranks(start):                      # in the test's module
        x = torch.full((4,), float(start + dist.get_rank()))
        dist.all_reduce(x)
        return x

    results = Ranks(sum_of_ranks, 3, 10).wait()   # [tensor, tensor, tensor]

The module of the function is run once more on each rank, under another name: `if __name__ == "__main__"` protects what
only the test shall do. Results and arguments are what torch.save takes.
"""
import datetime
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import weakref

import torch
import torch.distributed as dist


class Processes:
    """What ways to start ranks have in common: a folder with their files, and their ends."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="stormo_test_"))
        weakref.finalize(self, shutil.rmtree, self.folder, True)
        self.processes = []

    def output(self, rank):
        return (self.folder / f"output.{rank}").read_text(errors="replace")

    def wait(self, seconds=120):
        """The results of all ranks. Whoever fails, or is not ready in time, fails the test with its output."""
        codes = self.wait_for_ends(seconds)
        wrong = [rank for rank, code in enumerate(codes) if code != 0]
        if wrong:
            raise AssertionError("".join(f"\nrank {rank} ended with {codes[rank]}:\n{self.output(rank)}"
                                         for rank in wrong))
        return [self.result(rank) for rank in range(len(codes))]


class Ranks(Processes):
    """Starts them. backend=None leaves init_process_group to the function; timeout is that of the group, in seconds."""

    def __init__(self, function, size, *arguments, backend="stormo", timeout=60, **variables):
        super().__init__()
        torch.save(arguments, self.folder / "arguments")
        command = [sys.executable, __file__, sys.modules[function.__module__].__file__, function.__name__]
        for rank in range(size):
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(size),
                           "LOCAL_RANK": str(rank), **{k: str(v) for k, v in variables.items()}}
            with open(self.folder / f"output.{rank}", "wb") as output:
                self.processes.append(subprocess.Popen(
                    [*command, str(self.folder), backend or "-", str(timeout)], env=environment, stdout=output,
                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))

    def result(self, rank):
        """What the function returned there."""
        return torch.load(self.folder / f"result.{rank}", weights_only=False)

    def wait_for_ends(self, seconds=120):
        """Their exit statuses; None for those that had to be killed, because they were not ready in time."""
        end = time.monotonic() + seconds
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(end - time.monotonic(), 0)))
            except subprocess.TimeoutExpired:
                codes.append(None)
        for process in self.processes:
            process.kill()
            process.wait()
        return codes


def main():
    module, function, folder, backend, timeout = sys.argv[1:]
    folder = pathlib.Path(folder)
    sys.path.insert(0, os.path.dirname(module))
    spec = importlib.util.spec_from_file_location("test_on_rank", module)
    test = importlib.util.module_from_spec(spec)
    sys.modules["test_on_rank"] = test
    spec.loader.exec_module(test)
    rank = int(os.environ["RANK"])
    if backend != "-":
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank,
                                world_size=int(os.environ["WORLD_SIZE"]),
                                timeout=datetime.timedelta(seconds=float(timeout)))
    result = getattr(test, function)(*torch.load(folder / "arguments", weights_only=False))
    torch.save(result, folder / f"result.{rank}")
    if backend != "-":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
