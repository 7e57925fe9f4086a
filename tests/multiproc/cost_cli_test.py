"""What a run of `stormo train` says that it has cost, also after a fault.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json

from train_cli import DEADLINE_S, TrainTest, main

RUN = ("mlp.toml", "steps=12", "log_every=4", "--json")


class CostTest(TrainTest):
    def test_a_price_is_no_debt(self):
        done = self.stormo("train", *RUN, "--price", "-1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--price", done.stderr)

    def test_a_run_says_what_it_has_cost(self):
        done = self.stormo("train", *RUN, "--price", "3600", "-n", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        *_, cost, end = map(json.loads, done.stdout.splitlines())
        self.assertEqual((cost["event"], end["event"]), ("cost", "end"))
        self.assertAlmostEqual(cost["price"], cost["wall_s"], delta=1e-9 + 1e-6 * cost["wall_s"])  # one host
        self.assertEqual(cost["faults"], 0)
        self.assertNotEqual(cost["joules"] is None, cost["no_energy"] is None)

    def test_what_a_fault_has_wasted_is_counted_at_the_resume(self):
        run = self.start("mlp.toml", "steps=1000000", "checkpoint.every=50", "--cost", "--json")
        self.read_until_saved(run)
        ledger = self.folder / "run" / "cost.json"
        while not ledger.exists():
            self.read_until(run, "step")
        run.kill()
        run.communicate(timeout=DEADLINE_S)
        left = json.loads(ledger.read_text())
        # as if it had gone on for so long after it had saved
        left["wall_s"] = left["saved_wall_s"] + 100
        ledger.write_text(json.dumps(left))
        steps = int((self.folder / "run" / "latest").readlink().name.removeprefix("step-")) + 10
        done = self.stormo("train", "mlp.toml", f"steps={steps}", "checkpoint.every=50", "--json", "--cost", "--auto-resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        *_, cost, _ = map(json.loads, done.stdout.splitlines())
        self.assertEqual((cost["faults"], round(cost["wasted_s"])), (1, 100))
        self.assertGreater(cost["wall_s"], 100)


if __name__ == "__main__":
    main()
