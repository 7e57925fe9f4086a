"""An opponent of `stormo bench`: torch.distributed, one process per rank.

Started by `stormo run`; arguments: RENDEZVOUS_FILE BACKEND BUFFERS OPERATION DTYPE SECONDS_PER_SIZE PAUSE BYTES...
BUFFERS are private, or lie in the Arena of the backend stormo. Measures as bench/measure.h says: inputs rewritten in
every iteration, ranks start together, results verified before and after. Rank 0 prints one JSON object per size.
"""
import json
import math
import os
import resource
import sys
import time

import torch
import torch.distributed as dist

PERIOD, ITERATIONS = 4093, 7
BUS = {"all_reduce": lambda n: 2 * (n - 1) / n, "reduce": lambda n: 1, "broadcast": lambda n: 1, "barrier": lambda n: 0}
REDUCES = {"all_reduce", "reduce", "reduce_scatter"}
MEETS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
PARTS = {"all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"}


class Subject:
    def __init__(self, empty, operation, dtype, size, pause):
        self.pause = pause
        self.operation, self.n, self.rank = operation, dist.get_world_size(), dist.get_rank()
        self.modulus = min(max(127 // self.n, 2), 16) if operation in REDUCES else 100
        elements = size // dtype.itemsize
        self.part = -(-elements // self.n)
        self.whole = self.part * self.n if operation in PARTS else elements
        root = self.rank == 0
        count_in = {"all_gather": self.part, "gather": self.part, "barrier": 0}.get(operation, self.whole)
        self.input = empty(count_in, dtype=dtype)
        count_out = {"reduce_scatter": self.part, "scatter": self.part, "gather": self.whole if root else 0}
        in_place = operation in ("all_reduce", "reduce", "broadcast", "barrier")
        self.output = self.input if in_place else empty(count_out.get(operation, self.whole), dtype=dtype)
        self.writes = root or operation not in ("broadcast", "scatter")
        self.own = [self.pattern(self.rank, i, count_in) for i in range(ITERATIONS)]
        self.call = getattr(self, operation)

    def pattern(self, rank, iteration, count, offset=0):
        """Small integers, whose sums are exact in every type, made from a period of them."""
        generator = torch.Generator().manual_seed(rank * ITERATIONS + iteration % ITERATIONS + 1)
        period = torch.randint(0, self.modulus, (PERIOD,), generator=generator).to(self.input.dtype)
        return period.repeat(-(-(offset + count) // PERIOD))[offset:offset + count]

    def all_reduce(self):
        dist.all_reduce(self.input)

    def reduce(self):
        dist.reduce(self.input, 0)

    def broadcast(self):
        dist.broadcast(self.input, 0)

    def all_gather(self):
        dist.all_gather_into_tensor(self.output, self.input)

    def reduce_scatter(self):
        dist.reduce_scatter_tensor(self.output, self.input)

    def gather(self):
        dist.gather(self.input, list(self.output.split(self.part)) if self.rank == 0 else None, 0)

    def scatter(self):
        dist.scatter(self.output, list(self.input.split(self.part)) if self.rank == 0 else None, 0)

    def all_to_all(self):
        dist.all_to_all_single(self.output, self.input)

    def barrier(self):
        dist.barrier()

    def iterate(self, index):
        if self.writes:
            self.input.copy_(self.own[index % ITERATIONS])
        if self.pause > 0:
            time.sleep(self.pause)
        dist.barrier()
        start = time.perf_counter()
        self.call()
        end = time.perf_counter()
        dist.barrier()
        return start, end

    def expected(self, index):
        parts = lambda offset: torch.cat([self.pattern(s, index, self.part, offset) for s in range(self.n)])
        total = lambda count, offset=0: sum(self.pattern(s, index, count, offset) for s in range(self.n))
        mine = self.rank * self.part
        made = {"all_reduce": lambda: total(self.whole), "broadcast": lambda: self.pattern(0, index, self.whole),
                "reduce": lambda: total(self.whole) if self.rank == 0 else self.output,
                "reduce_scatter": lambda: total(self.part, mine), "all_gather": lambda: parts(0),
                "gather": lambda: parts(0) if self.rank == 0 else self.output,
                "scatter": lambda: self.pattern(0, index, self.part, mine), "all_to_all": lambda: parts(mine)}
        return made.get(self.operation, lambda: self.output)()

    def verify(self, index):
        self.output.fill_(101)
        self.iterate(index)
        return over_ranks([0.0 if torch.equal(self.output, self.expected(index)) else 1.0]) == [0.0]


def over_ranks(values, how=dist.ReduceOp.MAX):
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, how)
    return tensor.tolist()


def sample(subject, at_least, seconds):
    times, elapsed = [], 0.0
    while len(times) < at_least or elapsed < 0.9 * seconds:
        wanted = int((seconds - elapsed) * len(times) / max(elapsed, 1e-9)) if times else 10
        block = max(1, at_least - len(times) if times else 10, min(wanted, 10 * len(times)))
        start = time.perf_counter()
        times.extend(subject.iterate(i) for i in range(block))
        elapsed += over_ranks([time.perf_counter() - start])[0]
    if subject.operation in MEETS or os.environ["STORMO_LOCAL_SIZE"] != os.environ["STORMO_WORLD_SIZE"]:
        return over_ranks([end - begin for begin, end in times])
    return [a + b for a, b in zip(over_ranks([-begin for begin, _ in times]), over_ranks([end for _, end in times]))]


def usage():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime, u.ru_nvcsw + u.ru_nivcsw


def measure(empty, operation, dtype, size, seconds, pause):
    subject = Subject(empty, operation, getattr(torch, dtype), size, pause)
    n, verified = subject.n, subject.verify(1)
    for i in range(3):
        subject.iterate(i)
    before = usage()
    times = sample(subject, 200 if size <= 64 << 10 else 10, seconds)
    used = over_ranks([(b - a) / len(times) for a, b in zip(before, usage())], dist.ReduceOp.SUM)
    verified = subject.verify(2) and verified
    times.sort()
    p50, p90, p99 = (times[max(math.ceil(p * len(times)), 1) - 1] for p in (0.5, 0.9, 0.99))
    bandwidth = subject.whole * subject.input.itemsize / p50
    return {"op": operation, "ranks": n, "bytes": size, "dtype": dtype, "p50_s": p50, "p90_s": p90, "p99_s": p99,
            "algbw": bandwidth, "busbw": bandwidth * BUS.get(operation, lambda n: (n - 1) / n)(n), "cpu_s": used[0],
            "switches": used[1], "verified": verified, "iterations": len(times)}


def main():
    file, backend, buffers, operation, dtype, seconds, pause, *sizes = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{file}", rank=int(os.environ["STORMO_RANK"]),
                            world_size=int(os.environ["STORMO_WORLD_SIZE"]))
    empty = torch.empty
    if buffers == "arena":
        import stormo_torch
        empty = stormo_torch.empty
    right = True
    for size in sizes:
        found = measure(empty, operation, dtype, int(size), float(seconds), float(pause))
        right = right and found["verified"]
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
