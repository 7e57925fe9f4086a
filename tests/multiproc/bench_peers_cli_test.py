"""PyTorch's hooks, local SGD and DiLoCo beside Stormo in `stormo bench step` and `stormo bench async`."""

import importlib.util
import json
import sys
import unittest

from train_cli import TrainTest, main

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


if __name__ == "__main__":
    main()
