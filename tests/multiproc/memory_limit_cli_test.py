"""What does not fit into the memory of one rank trains on four: a large model that is cut, also one whose parameters
alone are too large, long samples whose positions they share, or large images whose places they share. Data that are
larger than the memory train as if they were in it.

Each rank has a memory control group of its own, whose limit the kernel enforces. Needs the right to make such groups
(cgroup v1, as root); skipped elsewhere.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import pathlib
import random
import struct
import unittest

from small_data import npy
from train_cli import LONG_FORM, STORMO, TrainTest, main

GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
LIMIT = 430 << 20
# 25 million parameters: 400 MiB with gradients and two moments
GPT = ("gpt.toml", "model.layers=8", "model.heads=8", "model.width=512", "steps=2", "train.global_batch=4",
       "sample.length=0")
# 471 MiB of parameters; a quarter of them, its gradients and a segment fit into LARGE_LIMIT
LARGE = ("mlp.toml", "model.sizes=[784" + 24 * ", 2300" + ", 10]", "steps=1", "optimizer.momentum=0",
         "train.global_batch=8")
LARGE_BYTES = 4 * (784 * 2300 + 23 * 2300 * 2300 + 23000)
LARGE_LIMIT = 450 << 20
# a step of one rank keeps 550 MiB of activations
LONG = ("gpt.toml", "model.layers=4", "model.heads=4", "model.width=128", "model.context=2048", "steps=1",
        "train.global_batch=8", "sample.length=0")
# 62 MiB of parameters, with which no process stays below PLANNED_LIMIT
PLANNED = ("mlp.toml", "model.sizes=[784" + 6 * ", 1728" + ", 10]", "steps=2", "optimizer.momentum=0",
           "train.global_batch=2", "checkpoint.directory=")
PLANNED_LIMIT = 115 << 20
SIDE, IMAGE_COUNT = 256, 6
GRID = "strategy.spatial=2,2"
IMAGES = """schema_version = 1
name = "images"
[model]
kind = "resnet20"
[data]
kind = "npy"
path = "."
train = "images"
[train]
steps = 1
global_batch = 6
[checkpoint]
directory = "run"
"""
DATA_LIMIT = 300 << 20
LARGE_DATA = """schema_version = 1
[model]
kind = "mlp"
sizes = [65536, 10]
[data]
kind = "npy"
path = "large"
[train]
epochs = 1
global_batch = 32
log_every = 1
[optimizer]
lr = 0.01
"""
ENTER = ("sh", "-c", 'echo $$ > "$GROUP$STORMO_RANK/cgroup.procs" && exec "$@"', "sh")


def make_groups(name, count, limit):
    made = []
    try:
        for rank in range(count):
            group = GROUPS / f"{name}{rank}"
            group.mkdir()
            made.append(group)
            (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        remove(made)
        raise unittest.SkipTest(f"root: cannot limit the memory of processes: {error}")
    return made


def remove(groups):
    for group in groups:
        group.rmdir()


class MemoryLimitTest(TrainTest):
    def in_groups(self, count, limit, *words, program=STORMO, group=""):
        """Runs `program`, of which processes enter one of `count` groups by ENTER: that of their rank, or number
        `group`. What it wrote."""
        name = f"stormo_{os.getpid()}_"
        groups = make_groups(name, count, limit)
        try:
            process = self.start_program(*words, executable=program,
                                         environment={"GROUP": str(GROUPS / name) + group})
            out, err = process.communicate(timeout=200)
            self.used = max(int((g / "memory.max_usage_in_bytes").read_text()) for g in groups)
        finally:
            remove(groups)
        return process.returncode, out, err

    def alone_in_group(self, limit, *words):
        """A command and all its processes in one group."""
        code, out, err = self.in_groups(1, limit, *ENTER[1:], STORMO, *words, program="/bin/sh", group="0")
        print(f"{words[0]} in one group: {self.used >> 20} MiB", flush=True)
        self.assertEqual(code, 0, err)
        return out, err

    def train(self, job, ranks, *keys, limit=LIMIT):
        """Trains with a group for each rank; the exit code, and what was said."""
        code, _, err = self.in_groups(ranks, limit, "run", "-n", str(ranks), "--", *ENTER, STORMO, "train", *job, *keys)
        print(f"{ranks} rank(s) {' '.join(keys)}: exit code {code}, {self.used >> 20} MiB", flush=True)
        return code, err

    def assert_one_rank_is_killed(self, job):
        code, err = self.train(job, 1)
        self.assertNotEqual(code, 0)
        self.assertIn("killed by signal 9", err)
        self.assertIn("out of memory", err)

    def predicted(self, job, *way):
        """The bytes of the peak of a rank."""
        cost = self.stormo("plan", "cost", *job, *way, "--measured", "--json")
        self.assertEqual(cost.returncode, 0, cost.stderr)
        return json.loads(cost.stdout)["memory_peak"]["total"]

    def test_what_one_rank_has_no_memory_for_trains_on_four(self):
        ways = (("strategy.tensor=4",), ("strategy.kind=fsdp", "strategy.parameters=sharded"),
                ("strategy.pipeline=4", "train.micro_batches=4"))
        ways = ways if LONG_FORM else ways[:2]
        # outside of the groups, to which the pages of the program's files do not count then
        predictions = [self.predicted(GPT, "-n", "4", *way) for way in ways]
        self.assert_one_rank_is_killed(GPT)
        for way, predicted in zip(ways, predictions):
            code, err = self.train(GPT, 4, *way)
            self.assertEqual(code, 0, err)
            print(f"predicted: {predicted >> 20} MiB", flush=True)
            self.assertAlmostEqual(predicted, self.used, delta=0.1 * self.used)

    def test_a_process_plans_what_it_has_no_memory_for(self):
        self.stormo("plan", "list")  # the program's pages
        out, _ = self.alone_in_group(PLANNED_LIMIT, "plan", "search", *PLANNED, "-n", "4", "--memory", "105MiB",
                                     "--json")
        ways = [json.loads(line) for line in out.splitlines()]
        self.assertGreater(ways[-1]["too_large"], 0)
        code, err = self.train(PLANNED, 4, *ways[0]["keys"], limit=PLANNED_LIMIT)
        self.assertEqual(code, 0, err)
        # ranks that share a group, which has no memory for a replica on each of them
        _, err = self.alone_in_group(320 << 20, "train", *PLANNED, "strategy.kind=auto", "-n", "4")
        self.assertRegex(err, "strategy.kind=auto: .*(tensor|pipeline|fsdp)")

    def test_parameters_that_one_rank_has_no_memory_for_train_on_four(self):
        """No rank ever has all of them: not at the start, in the evaluation, when replicas are checked, or at the end;
        nor where a run goes on from a checkpoint."""
        self.assertGreater(LARGE_BYTES, LARGE_LIMIT)
        pipeline = ("strategy.pipeline=4", "train.micro_batches=4")
        ways = [("strategy.kind=fsdp", "strategy.parameters=sharded")]
        if LONG_FORM:
            ways = [("strategy.tensor=4",), ("strategy.tensor=2", "strategy.kind=fsdp"), pipeline, *ways]
        for way in ways:
            with self.subTest(way=way):
                keys = (*way, "train.eval_every=1", "train.verify_every=1", "--overwrite")
                code, err = self.train(LARGE, 4, *keys, limit=LARGE_LIMIT)
                self.assertEqual(code, 0, err)
        code, err = self.train(LARGE, 4, *(way if LONG_FORM else pipeline), "--resume", "steps=2", limit=LARGE_LIMIT)
        self.assertEqual(code, 0, err)

    def test_samples_too_long_for_one_rank_train_on_four(self):
        (self.folder / "text" / "a.txt").write_text("to be or not to be, that is it\n" * 2000)
        self.assert_one_rank_is_killed(LONG)
        for form in ("ring", "heads") if LONG_FORM else ("ring",):
            code, err = self.train(LONG, 4, "strategy.context=4", f"strategy.attention={form}")
            self.assertEqual(code, 0, err)

    def test_images_too_large_for_one_rank_train_on_four(self):
        (self.folder / "images").mkdir()
        (self.folder / "images" / "images.npy").write_bytes(
            npy("|u1", (IMAGE_COUNT, 3, SIDE, SIDE), bytes(i * 7 % 251 for i in range(IMAGE_COUNT * 3 * SIDE * SIDE))))
        (self.folder / "images" / "labels.npy").write_bytes(npy("|u1", (IMAGE_COUNT,), bytes(range(IMAGE_COUNT))))
        (self.folder / "images.toml").write_text(IMAGES)
        # activations of one image; those of all are as many times that
        for way, fits in ((("-n", "1"), False), (("-n", "4", GRID), True)):
            cost = self.stormo("plan", "cost", "images.toml", *way, "train.global_batch=1", "--measured", "--json")
            self.assertEqual(cost.returncode, 0, cost.stderr)
            predicted = IMAGE_COUNT * json.loads(cost.stdout)["memory_peak"]["activations"]
            print(f"{' '.join(way)}: {predicted >> 20} MiB of activations", flush=True)
            self.assertEqual(predicted < LIMIT / 2, fits)
            self.assertEqual(predicted > LIMIT, not fits)
        self.assert_one_rank_is_killed(("images.toml",))
        code, err = self.train(("images.toml",), 4, GRID)
        self.assertEqual(code, 0, err)

    def write_large_data(self, mebibytes):
        """The same samples as a .npy file and as a safetensors file, which is read into memory: rows of bytes that
        are mostly 0, which the file system does not store, and begin with numbers of their own. Returns the rows."""
        width, rows = 1 << 16, mebibytes << 4
        (self.folder / "large").mkdir()
        labels = struct.pack(f"<{rows}q", *(row * row % 10 for row in range(rows)))
        (self.folder / "large" / "labels.npy").write_bytes(npy("<i8", (rows,), labels))
        tensors = {"inputs": {"dtype": "U8", "shape": [rows, width], "data_offsets": [0, rows * width]},
                   "targets": {"dtype": "I64", "shape": [rows],
                               "data_offsets": [rows * width, rows * width + 8 * rows]}}
        header = json.dumps(tensors).encode()
        header += b" " * (-len(header) % 8)
        rng = random.Random(2)
        for path, front, end in (("large/images.npy", npy("|u1", (rows, width), b""), b""),
                                 ("large.safetensors", struct.pack("<Q", len(header)) + header, labels)):
            rng.seed(2)
            with open(self.folder / path, "wb") as file:
                for row in range(rows):
                    file.seek(len(front) + row * width)
                    file.write(rng.randbytes(64))
                file.seek(0)
                file.write(front)
                file.truncate(len(front) + rows * width)
                file.seek(0, os.SEEK_END)
                file.write(end)
        return rows

    def test_data_larger_than_the_memory_train_as_in_memory(self):
        """STORMO_LARGE_DATA_MIB=4096 makes it 4 GiB."""
        rows = self.write_large_data(int(os.environ.get("STORMO_LARGE_DATA_MIB", "320")))
        (self.folder / "large.toml").write_text(LARGE_DATA)
        keys = ("large.toml", "--json")
        records = {}
        for n in ("1", "2") if LONG_FORM else ("2",):
            out, _ = self.alone_in_group(DATA_LIMIT, "train", *keys, "-n", n)
            self.assertLess(self.used, DATA_LIMIT + 1)
            in_memory = self.lines(*keys[:-1], "-n", n, "data.kind=safetensors", "data.path=large.safetensors")
            records[n] = [json.loads(line) for line in out.splitlines()], in_memory
        for from_file, in_memory in records.values():
            losses = [[r["loss"] for r in run if r["event"] == "step"] for run in (from_file, in_memory)]
            self.assertEqual(losses[0], losses[1])  # each depends on which samples a step has
            self.assertGreater(len(set(losses[0])), 60)
            self.assertEqual(from_file[-1]["samples"], rows)
            self.assertEqual(from_file[-1]["weights_hash"], in_memory[-1]["weights_hash"])


if __name__ == "__main__":
    main()
