"""Worlds one after the other in a process: nothing of an earlier one stays. And torchft's Manager over them."""
import datetime
import gc
import importlib.util
import os
import random
import signal
import time
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

from stormo_torch import _load
from forked_ranks import ForkedRanks, folder, join, rank

ROUNDS = 100
WARM_UP = 10  # the Arena, the first threads and malloc's arenas come and stay
FT_STEPS, FT_LAST = 12, 4  # steps of all replicas, and of the one that dies


def resources():
    """What a world could leave behind in this process."""
    gc.collect()
    with open("/proc/self/maps") as file:
        maps = file.read().splitlines()
    files = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            pass  # that of the list itself
    return {
        "descriptors": len(files),
        "memory files": sum("memfd:" in f for f in files),
        "mappings of memory files": sum("memfd:" in m for m in maps),
        "threads": len(os.listdir("/proc/self/task")),
        "sockets": sum(f.startswith("socket:") for f in files),
    }


def settled(wanted, seconds=10):
    """The resources, as soon as they are those that are wanted; what is left of them then."""
    end = time.monotonic() + seconds
    while (now := resources()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return now


def steady():
    """The resources, when they do not change any more."""
    now = None
    while now is None or settled(None, 0.3) != now:
        now = resources()
    return now


def init_and_destroy():
    store = dist.FileStore(f"{folder()}/store", -1)
    for i in range(ROUNDS):
        if i == WARM_UP:
            before = steady()
        join(dist.PrefixStore(str(i), store))
        x = torch.full((100_000,), float(rank()))
        dist.all_reduce(x)
        group = dist.new_group([0, 1])
        if rank() < 2:
            dist.all_reduce(x, group=group, async_op=True).wait()
        assert x[-1] == (2 * 3 if rank() < 2 else 3), x[-1]
        dist.destroy_process_group()
    return before, settled(before)


def group_of(store, me, size):
    """As torchft makes it: no default group, and a new store each time."""
    terms = dist.distributed_c10d._DistributedBackendOptions()
    terms.store, terms.group_rank, terms.group_size = store, me, size
    terms.timeout = datetime.timedelta(seconds=30)
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group = dist.ProcessGroup(store, me, size)
    group._set_default_backend(custom)
    group._register_backend(torch.device("cpu"), custom, _load.extension().create_backend(terms, None))
    return group


def members_of(round, size):
    chosen = random.Random(round)
    return chosen.sample(range(size), chosen.randint(1, size))  # in any order


def all_have(store, what, size):
    store.add(what, 1)
    while store.add(what, 0) < size:
        time.sleep(0.001)


def reconfigure(size):
    store = dist.FileStore(f"{folder()}/store", -1)
    group = None
    for i in range(ROUNDS):
        if i == WARM_UP:
            group = None
            all_have(store, "warmed up", size)
            before = steady()
        members = members_of(i, size)
        if rank() not in members:
            continue
        if group is not None and i % 2:
            group.abort()
        group = None  # others may have it until they are members again
        group = group_of(dist.PrefixStore(str(i), store), members.index(rank()), len(members))
        x = torch.full((100_000,), float(rank()))
        group.allreduce([x]).wait()
        assert x[-1] == sum(members), (i, x[-1])
        all_have(store, f"ended {i}", len(members))  # nobody aborts it before
    group = None
    all_have(store, "ended", size)
    return before, settled(before)


def train_with_torchft(lighthouse):
    """Each replica is one process. The last one dies; the others go on."""
    import torchft
    from stormo_torch.torchft import ProcessGroupStormo

    everybody = dist.FileStore(f"{folder()}/store", -1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(rank())  # replicas get the parameters of one of them
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = torchft.Manager(
        pg=ProcessGroupStormo(timeout=datetime.timedelta(seconds=10)), min_replica_size=2,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optim"])),
        state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        replica_id=f"replica_{rank()}", store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1,
        lighthouse_addr=lighthouse, timeout=datetime.timedelta(seconds=10), use_async_quorum=False)
    model_of_all = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, optimizer)
    members = []
    all_have(everybody, "a manager", 3)  # the lighthouse hears of all, so it waits for the slowest
    while manager.current_step() < FT_STEPS:
        if rank() == 2 and manager.current_step() == FT_LAST:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model_of_all(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        members.append(manager.num_participants())
    manager.shutdown(wait=False)
    return members, model.weight.flatten().tolist()


class WorldsTest(unittest.TestCase):
    def check(self, ranks):
        for r, (before, after) in enumerate(ranks.wait(120)):
            self.assertEqual(after, before, f"rank {r}")
            self.assertGreater(before["memory files"], 0, "the Arena stays")

    def test_a_hundred_worlds_leave_nothing(self):
        self.check(ForkedRanks(init_and_destroy, 3))

    def test_a_hundred_worlds_of_other_members_leave_nothing(self):
        self.check(ForkedRanks(reconfigure, 4, 4))

    @unittest.skipUnless(importlib.util.find_spec("torchft"), "optional: torchft is not installed")
    def test_torchft_goes_on_without_a_replica_that_died(self):
        from torchft.coordination import LighthouseServer

        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60_000)
        try:
            ranks = ForkedRanks(train_with_torchft, 3, lighthouse.address())
            codes = ranks.wait_for_ends(60)
            text = "".join(ranks.output(r) for r in range(3))
            self.assertEqual(codes, [0, 0, -signal.SIGKILL], text)
            (members, weight), (_, other) = ranks.result(0), ranks.result(1)
            self.assertEqual((max(members), members[-1]), (3, 2), members)
            self.assertEqual(weight, other)
        finally:
            lighthouse.shutdown()


if __name__ == "__main__":
    unittest.main()
