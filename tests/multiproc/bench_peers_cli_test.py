"""PyTorch's hooks, local SGD and DiLoCo beside Stormo: in `stormo bench step` and `async`, and in `bench/decentralised`."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

from hosts_cli import HOSTS
from small_data import write_mnist
from train_cli import REPOSITORY, STORMO, TrainTest, main

PARAMETERS = 4 * 80202  # bytes
needs_torch = unittest.skipUnless(importlib.util.find_spec("torch"), "set-up: this Python has no torch")


@needs_torch
class PeersTest(TrainTest):
    def bench(self, *flags):
        done = self.stormo("bench", *flags, "-n", "2", "--model", "mlp", "--rounds", "1", "--json", "--python",
                           sys.executable)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_hooks_train_from_the_same_weights(self):
        names = ["pytorch_fp16_hook", "pytorch_powersgd"]
        record = self.bench("step", "--strategy", "ddp_int8", "--steps", "3", "--against", ",".join(names))
        self.assertNotIn("left_out", record)
        self.assertTrue(record["verified"])
        for name in names:
            self.assertTrue(record["against"][name]["verified"], record["against"][name])
        first, compared = ([record["against"][name]["losses"][which] for name in names]
                           for which in ("first", "compared"))
        for loss in first:
            self.assertAlmostEqual(loss, record["losses"]["first"], delta=1e-3 * loss)
        self.assertNotEqual(*compared, "each hook takes part")

    def test_loops_that_meet_have_the_losses_of_the_same_rule(self):
        """Workers have the same batches, so losses do not depend on timing."""
        pairs = {"parameter_averaging": "pytorch_local_sgd", "diloco": "pytorch_diloco"}
        record = self.bench("async", "--strategy", ",".join(pairs), "--steps", "60", "--against",
                            ",".join(pairs.values()))
        self.assertNotIn("not_available", record)
        losses = {"parameter_averaging": record["losses"],
                  **{name: theirs["losses"] for name, theirs in record["against"].items()}}
        for own, peer in pairs.items():
            for which in ("first", "last"):
                self.assertAlmostEqual(losses[own][which], losses[peer][which], delta=1e-3 * losses[own]["first"])
        self.assertNotAlmostEqual(losses["diloco"]["last"], losses["parameter_averaging"]["last"], delta=1e-3)


class DecentralisedTest(TrainTest):
    def setUp(self):
        super().setUp()
        write_mnist(self.folder / "small", train=160, test=64)

    def decentralised(self, *flags):
        command = [sys.executable, REPOSITORY / "bench/decentralised", pathlib.Path(STORMO).parent, "--recipe", "mnist",
                   "--data", self.folder / "small", "--python", sys.executable, *flags]
        return subprocess.run(command, capture_output=True, text=True)

    def trained(self, *flags):
        if os.geteuid() != 0:
            self.skipTest("root: network namespaces need root")
        done = self.decentralised("--rates", "1gbit", "--rounds", "1", "--period", "2", "--steps", "4", "--loss", "0",
                                  "--json", *flags)
        if done.returncode == 1 and str(HOSTS) in done.stderr and "hosts up" not in done.stdout:
            self.skipTest(f"root: cannot make network namespaces: {done.stderr}")
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(done.stdout)
        ways = {way["name"]: way for way in record["ways"]}
        for name, way in ways.items():
            self.assertEqual([p["step"] for p in way["runs"][0]["points"]], [2, 4], name)
            self.assertGreater(way["runs"][0]["points"][0]["seconds"], 0, name)
            self.assertFalse(way["reached"])
            self.assertNotIn("times_as_fast", way)
        return ways

    def test_the_kernel_has_counted_what_the_job_has(self):
        ways = self.trained("--ways", "ddp,int8,gossip_ring,diloco")
        # a sum sends all parameters twice, rank 0 sends its own at the start once; gossip also averages once in two steps
        for name, times in (("ddp", 4 * 2), ("int8", 4 * 2 * (256 + 4) / 1024), ("gossip_ring", 4 * 2 + 2 * 2),
                            ("diloco", 2 * 2)):
            self.assertAlmostEqual(ways[name]["job_bytes"][0] / PARAMETERS, times + 1, delta=0.1, msg=name)
            self.assertGreaterEqual(ways[name]["links_over_job"][0], 1, name)

    @needs_torch
    def test_peers_of_pytorch_train_the_same_recipe(self):
        # DistributedDataParallel sends parameters at the start; post-local SGD is synchronous here, and averages at the end
        peers = {"pytorch_ddp": 4 * 2 + 1, "pytorch_post_local_sgd": 4 * 2 + 1 + 2, "pytorch_diloco": 2 * 2}
        ways = self.trained("--ways", "ddp", "--against", ",".join(peers))
        for name, times in peers.items():
            self.assertNotIn("job_bytes", ways[name], "PyTorch does not count")
            self.assertAlmostEqual(ways[name]["bytes"][0] / PARAMETERS, times, delta=0.5, msg=name)

    def test_a_run_is_ended_at_the_loss(self):
        if os.geteuid() != 0:
            self.skipTest("root: network namespaces need root")
        done = self.decentralised("--rates", "1gbit", "--rounds", "1", "--period", "2", "--steps", "100000", "--loss", "99",
                                  "--ways", "diloco,often", "--way", "often",
                                  "strategy.kind=parameter_averaging strategy.period=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in done.stdout.splitlines() if row.count("|") == 11}
        self.assertEqual(rows["diloco"][1], "2")
        self.assertEqual(rows["diloco"][4], "1.00", "of itself")
        self.assertNotEqual(rows["often"][4], "")
        self.assertIn("- often: 2: ", done.stdout)

    def test_what_is_unknown_is_named_before_anything_starts(self):
        done = self.decentralised("--ways", "ddp,gosip", "--against", "pytorch_sgd")
        self.assertEqual(done.returncode, 2)
        self.assertIn("gosip, pytorch_sgd: unknown; there are ddp, bfloat16", done.stderr)
        self.assertEqual(self.decentralised("--rounds", "0").returncode, 2)
        done = self.decentralised("--way", "often", "strategy.kind=ddp train.eval_every=1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("train.eval_every=1: seconds are counted from one evaluation to the next", done.stderr)


if __name__ == "__main__":
    main()
