"""stormo train with portions of a batch, and with L-BFGS.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import os
import shutil
import signal

from train_cli import DEADLINE_S, TrainTest, main, ranks_of

# all 96 samples are the batch
LBFGS = ("batch=96", "model.sizes=[784,10]", "optimizer.kind=lbfgs", "optimizer.lr=1", "optimizer.weight_decay=1e-2")
PORTIONS = ("strategy.kind=parameter_server", "strategy.policy=portions", "strategy.portions=8",
            "strategy.server_processes=1")


class PortionsTest(TrainTest):
    def run_of(self, *arguments):
        """The last record, and the loss of the last evaluation."""
        records = self.lines("mlp.toml", *arguments)
        self.assertEqual(records[-1]["event"], "end")
        batch = int(arguments[0].removeprefix("batch="))
        # steps of milliseconds: one record says little
        steps = [r for r in records if r["event"] == "step" and r["samples_per_s"] > 0]
        left = [(r["steps"] - r["step"]) * batch / r["samples_per_s"] for r in steps]
        self.assertGreaterEqual(sum(r["eta_s"] for r in steps), 0.2 * sum(left), steps)
        self.step_losses = [r["loss"] for r in records if r["event"] == "step"]
        return records[-1], [r["loss"] for r in records if r["event"] == "eval"][-1]

    def test_lbfgs_of_workers_is_that_of_one_process(self):
        alone_end, alone = self.run_of(*LBFGS, "steps=12")
        *_, before, last = self.step_losses
        self.assertEqual(last, alone_end["train_loss"])
        _, sgd = self.run_of("batch=96", "model.sizes=[784,10]", "steps=12", "--overwrite")
        self.assertLess(alone, 0.2 * sgd)
        for ranks, servers in ((2, 1), (5, 2)):
            end, loss = self.run_of(*LBFGS, *PORTIONS, "steps=12", "-n", str(ranks), "--overwrite",
                                    f"strategy.server_processes={servers}", "strategy.servers=2")
            self.assertAlmostEqual(loss, alone, delta=1e-3 * alone)
            # portions of the step before may be in it
            self.assertLess(end["train_loss"], 1.01 * before)
            self.assertEqual((end["steps"], end["samples"]), (12, 12 * 96))
            self.assertEqual(sum(worker["gradients"] for worker in end["staleness"]), 2 * 12 * 8)

    def test_a_batch_is_one_update_of_other_optimizers(self):
        _, alone = self.run_of("batch=24", "steps=20", "optimizer.momentum=0.9")
        _, portions = self.run_of("batch=24", "steps=20", "optimizer.momentum=0.9", *PORTIONS, "-n", "3", "--overwrite")
        self.assertAlmostEqual(portions, alone, delta=1e-4)

    def test_ends_when_nothing_changes_any_more(self):
        # each step is at the minimum along one direction: of 96 samples that is soon the best in float32
        end, _ = self.run_of(*LBFGS, *PORTIONS, "-n", "2", "steps=5000", "optimizer.weight_decay=10")
        self.assertLess(end["steps"], 5000)
        self.assertTrue(end["converged"])

        end, _ = self.run_of(*LBFGS, "steps=5000", "optimizer.weight_decay=10", "--overwrite")
        self.assertLess(end["steps"], 5000)
        self.assertTrue(end["converged"])

    def test_a_lost_worker_costs_no_portion(self):
        run = self.start("mlp.toml", "--json", *LBFGS, *PORTIONS, "-n", "4", "steps=400", "optimizer.weight_decay=0",
                         "strategy.servers=1", "optimizer.kind=sgd", "optimizer.lr=0.01")
        self.read_until(run, "step", 20)
        os.kill(ranks_of(run)[2], signal.SIGKILL)
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 0, err)
        end = records[-1]
        self.assertEqual(end["steps"], 400)
        self.assertEqual(sum(worker["gradients"] for worker in end["staleness"]), 400 * 8)

    def weights(self, step):
        """Of a checkpoint, bit for bit."""
        exported = self.folder / "w.safetensors"
        exported.unlink(missing_ok=True)
        done = self.stormo("checkpoint", "export", f"run/step-{step:08}", exported)
        self.assertEqual(done.returncode, 0, done.stderr)
        return exported.read_bytes()

    def test_a_run_that_resumes_has_the_bits_of_one_that_was_not_cut(self):
        # one worker: gradients are summed in one order
        for way in ((), (*PORTIONS, "-n", "2"), (*PORTIONS, "-n", "3", "strategy.server_processes=2")):
            self.run_of(*LBFGS, *way, "steps=14", "checkpoint.every=5", "--overwrite")
            whole = self.weights(14)
            shutil.rmtree(self.folder / "run" / "step-00000014")
            self.run_of(*LBFGS, *way, "steps=14", "--resume")  # from a step in between
            self.assertEqual(self.weights(14), whole, way)
            self.run_of(*LBFGS, *way, "steps=6", "--overwrite")
            end, _ = self.run_of(*LBFGS, *way, "steps=14", "--resume")  # from the end of a shorter run
            self.assertEqual(self.weights(14), whole, way)
            self.assertEqual(end["steps"], 14)

    def test_a_run_goes_on_in_another_way_with_its_history(self):
        _, whole = self.run_of(*LBFGS, "steps=14")
        self.run_of(*LBFGS, "steps=8", "--overwrite")
        _, loss = self.run_of(*LBFGS, *PORTIONS, "-n", "3", "steps=14", "--resume")
        self.assertAlmostEqual(loss, whole, delta=1e-3 * whole)

    def test_refuses_the_state_of_another_optimizer(self):
        self.run_of(*LBFGS, "steps=4")
        for way in ((), (*PORTIONS, "-n", "2")):
            done = self.stormo("train", "mlp.toml", *LBFGS, *way, "steps=8", "optimizer.history=5", "--resume")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("optimizer.history=10", done.stderr)
        self.run_of("batch=96", "model.sizes=[784,10]", "optimizer.kind=adam", "steps=4", "--overwrite")
        for way in ((), (*PORTIONS, "-n", "2")):
            done = self.stormo("train", "mlp.toml", *LBFGS, *way, "steps=8", "--resume")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("the state of another optimizer", done.stderr)

    def test_what_cannot_be_is_refused_with_all_reasons(self):
        served = ("-n", "3", "strategy.kind=parameter_server")
        cases = (
            ((*LBFGS, "-n", "2"), ("lbfgs needs the gradient of a whole batch", "policy=portions")),
            ((*LBFGS, *served, "strategy.policy=sync"), ("lbfgs needs the gradient of a whole batch",)),
            ((*LBFGS, "train.clip_norm=1"), ("leave out train.clip_norm",)),
            ((*served, "strategy.policy=portions"), ("strategy.server_processes=1",)),
            ((*PORTIONS, "-n", "4", "strategy.server_processes=2", "strategy.server_backups=true",
              "data.balance_by_speed=true"), ("leave out strategy.server_backups", "leave out data.balance_by_speed")),
            ((*PORTIONS, "-n", "2", "batch=7"), ("a batch of 7 has no 8 portions",)),
            ((*PORTIONS, "-n", "2", "strategy.portions=1000"), ("strategy.portions", "512")),
            (("optimizer.kind=lbfgs", "optimizer.history=0"), ("optimizer.history",)),
        )
        for arguments, parts in cases:
            message = self.refused("mlp.toml", *arguments)
            for part in parts:
                self.assertIn(part, message)


if __name__ == "__main__":
    main()
