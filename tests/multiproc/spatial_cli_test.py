"""stormo train with images whose places ranks share, and with locally connected layers whose units they share.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import random
import shutil
import struct
import unittest

from small_data import npy
from train_cli import REPOSITORY, TrainTest, main

CNN = ("mlp.toml", "model.kind=cnn", "precision=float64", "eval_every=3")
RESNET = ("images.toml", "precision=float64", "train.global_batch=4", "eval_every=3")
LOCAL = ("mlp.toml", "model.kind=local", "precision=float64", "eval_every=3")
IMAGES = """schema_version = 1
name = "images"
[model]
kind = "resnet20"
classes = 3
[data]
kind = "npy"
path = "."
train = "images"
[train]
steps = 6
log_every = 1
[checkpoint]
directory = "run"
"""


class SpatialTest(TrainTest):
    def setUp(self):
        super().setUp()
        numbers = random.Random(1)
        (self.folder / "images").mkdir()
        (self.folder / "images" / "images.npy").write_bytes(
            npy("<f4", (8, 2, 16, 24),
                struct.pack(f"<{8 * 2 * 16 * 24}f", *(numbers.random() for _ in range(8 * 2 * 16 * 24)))))
        (self.folder / "images" / "labels.npy").write_bytes(
            npy("<i8", (8,), struct.pack("<8q", *(i % 3 for i in range(8)))))
        (self.folder / "images.toml").write_text(IMAGES)

    def losses_of(self, *arguments):
        records = self.lines(*arguments)
        return [r["loss"] for r in records if r["event"] in ("step", "eval")]

    def assert_near(self, a, b, what):
        self.assertEqual(len(a), len(b), what)
        for x, y in zip(a, b):
            self.assertAlmostEqual(x, y, delta=1e-9 * abs(y), msg=what)

    def test_trains_as_one_process_does(self):
        for job, ways in ((CNN, (("2", "strategy.spatial=1,2"), ("4", "strategy.spatial=2,2"),
                                 ("4", "strategy.spatial=2,1", "train.micro_batches=2"))),
                          (RESNET, (("2", "strategy.spatial=2,1"), ("4", "strategy.spatial=1,4", "train.clip_norm=1"))),
                          (LOCAL, (("2", "strategy.tensor=2"), ("4", "strategy.tensor=4")))):
            alone = {}
            for ranks, *keys in ways:
                rest = tuple(k for k in keys if not k.startswith("strategy."))
                if rest not in alone:
                    alone[rest] = self.losses_of(*job, *rest, "checkpoint.directory=")
                cut = self.losses_of(*job, "-n", ranks, *keys, "checkpoint.directory=")
                self.assert_near(cut, alone[rest], (job, keys))

    def test_any_mesh_reads_its_checkpoint(self):
        for job, first, *ways in ((RESNET, ("-n", "2", "strategy.spatial=1,2"), ("-n", "1"),
                                   ("-n", "4", "strategy.spatial=2,2")),
                                  (LOCAL, ("-n", "2", "strategy.tensor=2"), ("-n", "1"),
                                   ("-n", "4", "strategy.tensor=4"))):
            whole = self.losses_of(*job, "checkpoint.directory=whole", "--overwrite")
            self.lines(*job, *first, "steps=3", "checkpoint.directory=cut", "--overwrite")
            for way in ways:
                shutil.rmtree(self.folder / "copy", ignore_errors=True)
                shutil.copytree(self.folder / "cut", self.folder / "copy", symlinks=True)
                losses = self.losses_of(*job, *way, "steps=6", "checkpoint.directory=copy", "--resume")
                self.assert_near(losses[-3:], whole[-3:], way)

    def test_a_lost_rank_ends_the_job_with_its_cause(self):
        for job in (("mlp.toml", "model.kind=cnn", "strategy.spatial=1,2"),
                    ("mlp.toml", "model.kind=local", "strategy.tensor=2")):
            self.assert_lost_rank_ends_job(*job, "-n", "2", "steps=100000")

    def test_what_cannot_be_is_refused_before_anything_starts(self):
        cases = ((CNN, ("-n", "3", "strategy.spatial=1,2"), ("spatial 1 x 2", "start a multiple of 2")),
                 (CNN, ("-n", "2", "strategy.spatial=2"), ("write e.g. spatial=2,2",)),
                 (CNN, ("-n", "5", "strategy.spatial=1,5", "train.global_batch=5"),
                  ("'dense1' has a map of 4 x 4 places, fewer than the grid of 1 x 5 ranks", "use a smaller grid")),
                 (CNN, ("-n", "2", "strategy.spatial=1,2", "strategy.kind=fsdp"), ("does not use strategy.spatial",)),
                 (CNN, ("-n", "4", "strategy.spatial=1,2", "strategy.tensor=2"), ("spatial goes with 'ddp'",)),
                 (("mlp.toml",), ("-n", "2", "strategy.spatial=1,2"), ("no segment adds up over the places",)),
                 (LOCAL, ("-n", "2", "strategy.spatial=1,2"), ("no segment adds up over the places",)),
                 (LOCAL, ("-n", "8", "strategy.tensor=8"), ("can be cut into 7 parts, not into 8",)))
        for job, keys, messages in cases:
            err = self.refused(*job, *keys)
            for message in messages:
                self.assertIn(message, err, keys)

    def cost(self, *arguments):
        done = self.stormo("plan", "cost", *arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_plan_says_what_crosses(self):
        recipe = (*CNN, "-n", "2", "strategy.spatial=2,1", "precision=float32")
        # 8 samples: of 28 rows with 28 numbers, then of 12 rows with 12 x 16, each rank reads two rows of the other
        first, second = 8 * 4 * 2 * 28, 8 * 4 * 2 * 12 * 16
        crossings = self.cost(*recipe)["crossings"]
        self.assertEqual(sorted((c["from"], c["to"]) for c in crossings), [(0, 1), (1, 0)])
        for crossing in crossings:
            self.assertEqual((crossing["values"], crossing["gradients"]), (first + second, second))
        self.assertIn("what it reads", self.stormo("plan", "cost", *recipe).stdout)

    def test_a_plan_says_which_states_cross(self):
        recipe = (str(REPOSITORY / "recipes" / "mnist_local.toml"), "-n", "2", "data.path=data/mnist",
                  "train.global_batch=8")
        # 8 samples, maps of 14, 14 and 7 rows with 14 x 8, 14 x 8 and 7 x 16 numbers. 14 rows are cut at 7, and 7 at 3.
        # With stride 1 each rank reads a row of the other. With stride 2 row 3 of the output reads rows 5 to 7
        row = 8 * 4 * 14 * 8
        crossings = {(c["from"], c["to"]): c for c in self.cost(*recipe, "--hosts", "2")["crossings"]}
        self.assertEqual(sorted(crossings), [(0, 1), (1, 0)])
        down, up = crossings[0, 1], crossings[1, 0]
        self.assertEqual(down["values"], row + 2 * row + row)
        self.assertEqual(up["values"], row + row)
        self.assertEqual((down["gradients"], up["gradients"]), (up["values"], down["values"]))
        self.assertIn("what it reads", self.stormo("plan", "cost", *recipe).stdout)
        shown = self.stormo("plan", "show", *recipe)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("split_window 8,14,14 kernel 3 padding 1", shown.stdout)

    def test_a_simulation_divides_what_is_computed(self):
        for recipe, part in ((CNN, "strategy.spatial=2,1"), (LOCAL, "strategy.tensor=2")):
            times = []
            for way in (("-n", "1", "strategy.tensor=1"), ("-n", "2", part)):
                done = self.stormo("plan", "simulate", *recipe, *way, "--gflops", "0.01", "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
                times.append(json.loads(done.stdout.splitlines()[-1])["seconds"])
            self.assertLess(times[1], 0.7 * times[0], recipe)

    def test_a_search_compares_ways_without_a_grid(self):
        memory = []
        for keys in ((), ("strategy.spatial=2,1",)):
            done = self.stormo("plan", "search", "mlp.toml", "model.kind=cnn", "-n", "2", "--json", *keys)
            self.assertEqual(done.returncode, 0, done.stderr)
            ways = [json.loads(line) for line in done.stdout.splitlines()[:-1]]
            memory.append({way["plan"]: way["memory"] for way in ways})
        both = memory[0].keys() & memory[1].keys()  # the times, and so the best ten, differ
        self.assertTrue(both, memory)
        # apart from the program itself, which is one number of each search
        apart = {memory[0][plan] - memory[1][plan] for plan in both}
        self.assertEqual(len(apart), 1, memory)
        self.assertLess(abs(apart.pop()), 1 << 20)


if __name__ == "__main__":
    main()
