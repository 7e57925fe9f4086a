"""`stormo bench async` beside the parameter servers of other systems."""

import importlib.util
import json
import sys
import xml.etree.ElementTree

from train_cli import LONG_FORM, TrainTest, main

import unittest


class BenchAsyncTest(TrainTest):
    def bench(self, *flags):
        done = self.stormo("bench", "async", "--model", "mlp", "--steps", "40", "--rounds", "1", "--json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(done.stdout)
        self.assertNotIn("not_available", record)
        return record

    def same_work(self, opponent, *flags):
        """One worker waits for nobody: every system must have the losses of plain SGD."""
        record = self.bench("-n", "1", "--against", f"no_communication,{opponent}", *flags)
        for name in ("no_communication", opponent):
            theirs = record["against"][name]
            self.assertTrue(theirs["verified"], theirs)
            for which in ("first", "last"):
                self.assertAlmostEqual(theirs["losses"][which], record["losses"][which],
                                       delta=1e-3 * record["losses"]["first"])

    @unittest.skipUnless(importlib.util.find_spec("torch"), "set-up: this Python has no torch")
    def test_torch_rpc_does_the_same_work(self):
        self.same_work("torch_rpc", "--python", sys.executable)

    @unittest.skipUnless(importlib.util.find_spec("tensorflow"), "optional: this Python has no tensorflow")
    def test_tensorflow_does_the_same_work(self):
        for opponent in ("tensorflow_ps", "tensorflow_mirrored"):
            self.same_work(opponent, "--tensorflow", sys.executable)

    if LONG_FORM:  # many processes that import torch; the picture, of a slow worker: tests/unit/cli/bench_async_test.cc
        @unittest.skipUnless(importlib.util.find_spec("torch"), "set-up: this Python has no torch")
        def test_several_workers_of_torch_rpc_learn_beside_a_slow_one(self):
            done = self.stormo("bench", "async", "--svg", "-n", "2", "--steps", "40", "--rounds", "1", "--slow", "1:3x",
                               "--against", "torch_rpc", "--python", sys.executable)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = list(xml.etree.ElementTree.fromstring(done.stdout).iter("{http://www.w3.org/2000/svg}polyline"))
            self.assertEqual(len(lines), 2 * 2, "two contenders, over steps and over time")
            for line in lines:
                heights = [float(point.split(",")[1]) for point in line.get("points").split()]
                self.assertGreater(len(heights), 10)
                self.assertGreater(heights[-1], heights[0], "the loss falls")

    def test_a_picture_is_for_one_model(self):
        refused = self.stormo("bench", "async", "--svg", "--model", "mlp,wide")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("give one --model", refused.stderr)

    def test_all_wrong_numbers_are_in_one_message(self):
        for flags in (["servers", "--servers", "0", "--processes", "-1", "--rounds", "few", "-n", "0", "--time", "soon"],
                      ["all_reduce", "--rounds", "0", "--ranks-per-host", "x", "-n", "0", "--time", "soon"],
                      ["async", "--batch", "0", "--steps", "1", "--rounds", "0", "--slow", "soon"]):
            refused = self.stormo("bench", *flags)
            self.assertEqual(refused.returncode, 2)
            self.assertEqual(refused.stderr.count("must be a whole number"), sum(f in ("0", "-1", "few", "x", "1") for f in flags))
            self.assertIn("soon", refused.stderr)


if __name__ == "__main__":
    main()
