"""How long a process waits for stormo_torch before it can train: at import, and in init_process_group.

Usage: start_times.py [ROUNDS]    medians and ranges of 11 rounds, one way after the other in each

Run by the Python of an environment that has the wheel, on a machine that does nothing else.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def import_time(autoload):
    """Milliseconds of `import torch` in a process of its own, with or without what other packages add to it."""
    code = "import time; start = time.monotonic(); import torch; print(1000 * (time.monotonic() - start))"
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    return [float(done.stdout)]


def on_rank(backend, rank, folder):
    """Prints the milliseconds of init_process_group and of the first all_reduce, from when both ranks are there."""
    import torch
    import torch.distributed as dist

    folder = pathlib.Path(folder)
    (folder / f"here{rank}").touch()
    while not (folder / f"here{1 - rank}").exists():
        time.sleep(0.001)
    start = time.monotonic()
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=2)
    made = time.monotonic()
    dist.all_reduce(torch.ones(1))
    print(1000 * (made - start), 1000 * (time.monotonic() - made))
    dist.barrier()
    dist.destroy_process_group()


def init_times(backend):
    """Of the slower one of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, backend, str(rank), folder], stdout=subprocess.PIPE,
                                  text=True, env=dict(os.environ, OMP_NUM_THREADS="1")) for rank in range(2)]
        return [max(times) for times in zip(*([float(word) for word in rank.communicate(timeout=100)[0].split()]
                                              for rank in ranks))]


def main(rounds):
    ways = {
        "import torch, without stormo_torch": lambda: import_time("0"),
        "import torch, with stormo_torch": lambda: import_time("1"),
        "gloo: init_process_group, first all_reduce": lambda: init_times("gloo"),
        "stormo: init_process_group, first all_reduce": lambda: init_times("stormo"),
    }
    measured = [[way() for way in ways.values()] for _ in range(rounds)]
    for name, of_way in zip(ways, zip(*measured)):
        print(f"{name}:", ", ".join(f"{statistics.median(values):.1f} ms ({min(values):.1f} to {max(values):.1f})"
                                    for values in zip(*of_way)))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        on_rank(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 11)
