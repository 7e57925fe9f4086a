"""What does not fit into the memory of one rank trains on four: a large model that is cut, also one whose parameters
alone are too large, long samples whose positions they share, or large images whose places they share.

Each rank has a memory control group of its own, whose limit the kernel enforces. Needs the right to make such groups
(cgroup v1, as root); skipped elsewhere.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import pathlib
import unittest

from small_data import npy
from train_cli import STORMO, TrainTest, main

GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
LIMIT = 430 << 20
# 25 million parameters: 400 MiB with gradients and two moments
GPT = ("gpt.toml", "model.layers=8", "model.heads=8", "model.width=512", "steps=2", "train.global_batch=4",
       "sample.length=0")
# 826 MiB of parameters; a quarter of them, its gradients and a segment fit into LARGE_LIMIT
LARGE = ("mlp.toml", "model.sizes=[784" + 24 * ", 3000" + ", 10]", "steps=1", "optimizer.momentum=0",
         "train.global_batch=8")
LARGE_BYTES = 4 * (784 * 3000 + 23 * 3000 * 3000 + 30000)
LARGE_LIMIT = 760 << 20
# a step of one rank keeps 550 MiB of activations
LONG = ("gpt.toml", "model.layers=4", "model.heads=4", "model.width=128", "model.context=2048", "steps=2",
        "train.global_batch=8", "sample.length=0")
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
ENTER = 'echo $$ > "$GROUP$STORMO_RANK/cgroup.procs" && exec "$@"'


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
    def train(self, job, ranks, *keys, limit=LIMIT):
        """Trains in groups; the exit code, and what was said."""
        name = f"stormo_{os.getpid()}_"
        groups = make_groups(name, ranks, limit)
        try:
            process = self.start_program("run", "-n", str(ranks), "--", "sh", "-c", ENTER, "sh", STORMO, "train", *job,
                                         *keys, environment={"GROUP": str(GROUPS / name)})
            _, err = process.communicate(timeout=200)
            used = max(int((g / "memory.max_usage_in_bytes").read_text()) for g in groups)
        finally:
            remove(groups)
        print(f"{ranks} rank(s) {' '.join(keys)}: exit code {process.returncode}, {used >> 20} MiB", flush=True)
        self.used = used
        return process.returncode, err

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
        ways = (("strategy.tensor=4",), ("strategy.pipeline=4", "train.micro_batches=4"),
                ("strategy.kind=fsdp", "strategy.parameters=sharded"))
        # outside of the groups, to which the pages of the program's files do not count then
        predicted = [self.predicted(GPT, "-n", "4", *way) for way in ways]
        code, err = self.train(("gpt.toml",), 4)
        self.assertEqual(code, 0, err)
        small = self.used  # a process that has almost no model
        self.assert_one_rank_is_killed(GPT)
        for way, bytes_of_plan in zip(ways, predicted):
            code, err = self.train(GPT, 4, *way)
            self.assertEqual(code, 0, err)
            print(f"predicted: {(small + bytes_of_plan) >> 20} MiB", flush=True)
            self.assertAlmostEqual(small + bytes_of_plan, self.used, delta=0.1 * self.used)

    def test_parameters_that_one_rank_has_no_memory_for_train_on_four(self):
        """No rank ever has all of them: not at the start, in the evaluation, when replicas are checked, or at the end;
        nor where a run goes on from a checkpoint."""
        self.assertGreater(LARGE_BYTES, LARGE_LIMIT)
        for way in (("strategy.tensor=4",), ("strategy.pipeline=4", "train.micro_batches=4"),
                    ("strategy.tensor=2", "strategy.kind=fsdp"), ("strategy.kind=fsdp", "strategy.parameters=sharded")):
            with self.subTest(way=way):
                keys = (*way, "train.eval_every=1", "train.verify_every=1", "--overwrite")
                code, err = self.train(LARGE, 4, *keys, limit=LARGE_LIMIT)
                self.assertEqual(code, 0, err)
        code, err = self.train(LARGE, 4, *way, "--resume", "steps=2", limit=LARGE_LIMIT)
        self.assertEqual(code, 0, err)

    def test_samples_too_long_for_one_rank_train_on_four(self):
        (self.folder / "text" / "a.txt").write_text("to be or not to be, that is it\n" * 2000)
        self.assert_one_rank_is_killed(LONG)
        for form in ("ring", "heads"):
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


if __name__ == "__main__":
    main()
