"""What PyTorch's tools say of operations: torchfrtrace of the flight records, and the profiler."""
import datetime
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import stormo_torch
from forked_ranks import JoinedRanks

# as what the analyser knows operations
LIBRARY, BARRIER = ("nccl", "all_reduce_barrier") if torch.__version__ < "2.12" else ("gloo", "barrier")


def every_operation(folder):
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(4)
    parts = [torch.ones(4) for _ in range(size)]
    whole = torch.ones(4 * size)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    dist.broadcast(x, 1)
    dist.reduce(x, 2)
    dist.all_gather(parts, x)
    dist.all_gather_into_tensor(whole, x)
    dist.gather(x, parts if rank == 1 else None, dst=1)
    dist.scatter(x, parts if rank == 0 else None, src=0)
    dist.reduce_scatter(x, parts)
    dist.reduce_scatter_tensor(x, whole)
    dist.all_to_all([torch.empty(4) for _ in range(size)], parts)
    dist.all_to_all_single(torch.empty(3 * (rank + 1)), torch.ones(6), [rank + 1] * size, [1, 2, 3])
    dist.all_reduce(torch.ones(4).to_sparse())
    for done in functional.all_reduce_coalesced([x, torch.ones(2)], "sum", dist.group.WORLD):
        functional.wait_tensor(done)
    for done in functional.all_gather_into_tensor_coalesced([x, torch.ones(2)], dist.group.WORLD):
        functional.wait_tensor(done)
    messages(rank, size)
    group = dist.new_group([0, 2])
    if rank != 1:
        dist.all_reduce(x, group=group)
        dist.send(x, 2, group) if rank == 0 else dist.recv(x, 0, group)
    dist.barrier()
    dist.group.WORLD.monitored_barrier()
    pathlib.Path(folder, f"rank_{rank}").write_bytes(stormo_torch.flight_records())


def messages(rank, size):
    """Around the ring, the second before the first, and from any source."""
    after, before = (rank + 1) % size, (rank - 1) % size
    works = [dist.irecv(torch.empty(2), before, tag=1), dist.irecv(torch.empty(1), before),
             dist.isend(torch.ones(1), after), dist.isend(torch.ones(2), after, tag=1)]
    for work in works:
        work.wait()
    if rank == 0:
        for _ in range(2 * (size - 1)):
            dist.recv(torch.empty(3), tag=2)
    else:
        for _ in range(2):
            dist.send(torch.ones(3), 0, tag=2)


def leave_out_a_reduction():
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        wait_for(own_file())  # busy elsewhere
    else:
        expect_failure(dist.all_reduce, torch.ones(4))


def leave_out_a_message():
    if dist.get_rank() == 1:
        expect_failure(dist.recv, torch.ones(4), 2, tag=7)
    wait_for(own_file())


def leave_out_a_monitored_barrier(folder):
    if dist.get_rank() != 1:
        expect_failure(dist.group.WORLD.monitored_barrier, datetime.timedelta(seconds=1))
    pathlib.Path(folder, f"rank_{dist.get_rank()}").write_bytes(stormo_torch.flight_records())


def sum_of_another_size():
    dist.all_reduce(torch.ones(4))
    expect_failure(dist.all_reduce, torch.ones(5 if dist.get_rank() == 2 else 4))


def without_records():
    expect_failure(dist.all_reduce, torch.ones(4 + dist.get_rank()))
    try:
        stormo_torch.flight_records()
    except RuntimeError as error:
        return str(error)


def expect_failure(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except (RuntimeError, ValueError):
        return
    raise AssertionError("the operation has succeeded")


def own_file():
    return pathlib.Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(dist.get_rank()))


def wait_for(file):
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, f"{file} does not come"
        time.sleep(0.05)


def profiled(folder):
    group = dist.new_group([0, 1], group_desc="pair")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(4), group=group)
        dist.all_gather_into_tensor(torch.empty(6), torch.ones(3))
        dist.send(torch.ones(2), 1) if dist.get_rank() == 0 else dist.recv(torch.empty(2), 0)
    file = pathlib.Path(folder, f"trace_{dist.get_rank()}")
    profile.export_chrome_trace(str(file))
    return json.loads(file.read_text())["traceEvents"]


class FlightTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="stormo_flight_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_recorded(self, function, *arguments, **how):
        return JoinedRanks(function, 3, *arguments, TORCH_FR_BUFFER_SIZE=200,
                     TORCH_FR_DUMP_TEMP_FILE=self.folder / "rank_", **how).wait()

    def analyse(self):
        """What torchfrtrace prints, and the operations that it has found."""
        with tempfile.NamedTemporaryFile() as found:
            run = subprocess.run(
                [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(self.folder), "-o",
                 found.name],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
            self.assertEqual(run.returncode, 0, run.stdout)
            _, database = pickle.load(found)
        return run.stdout, database.collectives

    def test_all_matches_after_every_operation(self):
        self.run_recorded(every_operation, str(self.folder))
        text, operations = self.analyse()
        for complaint in ("Not all ranks", "errors", "mismatch", "cannot decide", "empty op list"):
            self.assertNotIn(complaint, text)
        for operation in operations:
            self.assertTrue(operation.pass_check and not operation.missing_ranks, operation)
            self.assertEqual(operation.collective_state, "completed", operation)
        names = Counter(operation.collective_name.split()[0] for operation in operations)
        names["messages"] = names.pop(f"{LIBRARY}:send") + names.pop(f"{LIBRARY}:recv")
        once = ("broadcast", "reduce", "all_gather", "_all_gather_base", "gather", "scatter", "reduce_scatter",
                "_reduce_scatter_base", "allreduce_coalesced", "all_gather_into_tensor_coalesced")
        more = {"all_reduce": 4, "all_to_all": 2, BARRIER: 2}
        self.assertEqual(names, {**{f"{LIBRARY}:{name}": n for name, n in (dict.fromkeys(once, 1) | more).items()},
                                 "messages": 6 + 4 + 1})
        self.assertIn("every_operation", str(operations[0].collective_frames))

    def test_names_the_rank_that_has_left_out_a_reduction(self):
        self.run_recorded(leave_out_a_reduction, timeout=3)
        text, operations = self.analyse()
        self.assertIn("Not all ranks joining collective, sequence number: 2", text)
        self.assertEqual([operation.missing_ranks for operation in operations], [None, {1}])
        self.assertEqual([operation.collective_state for operation in operations], ["completed", "started"])

    def test_names_the_rank_that_has_left_out_a_message(self):
        self.run_recorded(leave_out_a_message, timeout=3)
        text, operations = self.analyse()
        self.assertIn("2->1 tag 7", text)
        self.assertEqual([operation.missing_ranks for operation in operations], [{2}])

    def test_names_the_rank_that_has_left_out_a_monitored_barrier(self):
        self.run_recorded(leave_out_a_monitored_barrier, str(self.folder))
        text, operations = self.analyse()
        self.assertEqual([operation.missing_ranks for operation in operations], [{1}])

    def test_names_the_rank_with_another_size(self):
        self.run_recorded(sum_of_another_size)
        text, operations = self.analyse()
        self.assertRegex(text, "Culprit rank .; Error type: SIZE_OR_SYNTAX_MISMATCH")
        self.assertEqual([operation.pass_check for operation in operations], [True, False])
        others = {rank: found.input_sizes for rank, found in operations[1].mismatch_collectives.items()}
        # compared with whichever rank's file was read first
        self.assertIn((operations[1].input_sizes, others), [([[4]], {2: [[5]]}), ([[5]], {0: [[4]], 1: [[4]]})])

    def test_nothing_is_recorded_or_written_unless_it_is_asked_for(self):
        errors = JoinedRanks(without_records, 3, TORCH_FR_DUMP_TEMP_FILE=self.folder / "rank_").wait()
        for error in errors:
            self.assertIn("set TORCH_FR_BUFFER_SIZE", error)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_the_profiler_shows_names_and_groups(self):
        for rank, events in enumerate(JoinedRanks(profiled, 2, str(self.folder)).wait()):
            names = [event["name"] for event in events if event["name"].startswith("stormo:")]
            message = ["send", "recv"][rank]
            self.assertEqual(names, ["stormo:all_reduce", "stormo:_all_gather_base", f"stormo:{message}"])
            groups = [event["args"] for event in events if event["name"] == "record_param_comms"]
            shown = [(a["Collective name"], a["Process Group Description"], a["In msg nelems"], a["Out msg nelems"])
                     for a in groups]
            self.assertEqual(shown[:2], [("all_reduce", "pair", 4, 4), ("_all_gather_base", "default_pg", 3, 6)])
            self.assertEqual(shown[2][:2], (message, "default_pg"))
            self.assertEqual([a["Group size"] for a in groups], [2, 2, 2])


if __name__ == "__main__":
    unittest.main()
