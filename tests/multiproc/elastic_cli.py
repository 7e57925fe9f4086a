"""Elastic jobs for tests of the built program: run, watched record by record, and compared with one process.

Usage of each: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import re
import signal

from train_cli import TrainTest, ranks_of

STEPS_AFTER = 20  # that show that a job trains
MANY = 1_000_000  # steps: the test ends the run


class Job:
    """A running elastic job, read record by record."""

    def __init__(self, test, ranks, *words):
        self.test = test
        here = () if ranks is None else ("-n", str(ranks))  # else `words` say where
        self.process = test.start("mlp.toml", *here, "--json", "precision=float64", "elastic.enabled=true",
                                  f"train.steps={MANY}", *words)
        self.records = []
        self.losses = {}
        self.step = 0
        self.epochs = []  # (number, ranks, step)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the job ended: {self.process.wait()}\n{self.process.stderr.read()}")
        record = json.loads(line)
        self.records.append(record)
        if record["event"] == "step":
            self.test.assertEqual(self.losses.setdefault(record["step"], record["loss"]), record["loss"],
                                  "a step was reported twice, with other losses")
            self.step = record["step"]
        if record.get("kind") == "membership":
            epoch, ranks, step = map(int, re.match(r"epoch (\d+): (\d+) ranks? .* after step (\d+)",
                                                   record["message"]).groups())
            self.epochs.append((epoch, ranks, step))

    def until(self, condition):
        while not condition():
            self.read()

    def until_step(self, step):
        self.until(lambda: self.step >= step)

    def until_ranks(self, ranks):
        """Until so many train in an epoch that has not been seen before, and have done some steps."""
        seen = len(self.epochs)
        self.until(lambda: self.epochs[seen:] and self.epochs[-1][1] == ranks)
        self.until_step(self.epochs[-1][2] + STEPS_AFTER)

    def send(self, rank, number):
        os.kill(ranks_of(self.process)[rank], number)

    def stop(self):
        """By a scheduler's signal. Returns the last step, and stderr."""
        self.process.send_signal(signal.SIGTERM)
        code, records, err = self.test.outcome_of(self.process)
        for record in records:
            if record["event"] == "step":
                self.losses[record["step"]] = record["loss"]
        self.test.assertEqual((records[-1]["event"], code), ("end", 143), err)
        return records[-1]["steps"], err


class ElasticTest(TrainTest):
    def assert_as_one_process(self, job, steps):
        """Whoever came and went: each step had the samples and the weights of a run of one process."""
        done = self.stormo("train", "mlp.toml", "--json", "precision=float64", f"train.steps={steps}",
                           "checkpoint.directory=one", "--overwrite")
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = {r["step"]: r["loss"] for r in map(json.loads, done.stdout.splitlines()) if r["event"] == "step"}
        # only a fault leaves steps without a report; who lets others in has reported the step before
        faults = sum(1 for before, after in zip([(0, MANY, 0), *job.epochs], job.epochs) if after[1] <= before[1])
        self.assertGreater(len(job.losses), steps - 2 - 2 * faults, "steps without a report")
        for step, loss in job.losses.items():
            self.assertAlmostEqual(loss, expected[step], delta=1e-9 * max(1, abs(expected[step])), msg=f"step {step}")
