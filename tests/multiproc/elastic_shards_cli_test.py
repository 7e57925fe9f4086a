"""Elastic training with logical shards: whoever comes and goes, losses and weights have the bits of one process. And
the log of who was there.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import signal

from elastic_cli import STEPS_AFTER, ElasticTest, Job
from train_cli import LONG_FORM, main


class Shards(ElasticTest):
    def assert_bits_of_one_process(self, job, steps, recipe, *words):
        done = self.stormo("train", recipe, "--json", *words, f"train.steps={steps}", "checkpoint.directory=one",
                           "--overwrite")
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [json.loads(line) for line in done.stdout.splitlines()]
        expected = {r["step"]: r["loss"] for r in records if r["event"] == "step"}
        for step, loss in job.losses.items():
            self.assertEqual(loss, expected[step], f"step {step}")
        self.assertEqual(job.end["weights_hash"], records[-1]["weights_hash"])

    def come_and_go(self, job):
        """4 -> 3 -> 2 -> 4 ranks, or fewer, as replacements come; whoever reports is lost, and whoever sends a newcomer
        the state."""
        job.until_step(STEPS_AFTER)
        for victims in ((0,), (0, 1), (0, 2)):  # who is lost for the third time has to wait
            job.until(lambda: job.epochs == [] or job.epochs[-1][1] == 4)
            seen = len(job.epochs)
            for victim in victims:
                job.send(victim, signal.SIGKILL)
            job.until(lambda: len(job.epochs) > seen)
        self.assertLess(min(ranks for _, ranks, _ in job.epochs), 4)
        job.until(lambda: job.epochs[-1][1] == 4)
        # perhaps it alone had the state: the others get it in three steps, and compare it in the fourth
        job.until_step(job.epochs[-1][2] + 5)
        job.send(3, signal.SIGKILL)
        job.until_ranks(4)
        return job.stop()

    def test_deaths_leave_the_bits_of_one_process(self):
        cases = (("float32", 7), ("float64", 4))
        for precision, shards in cases if LONG_FORM else cases[:1]:
            with self.subTest(precision=precision, shards=shards):
                words = (f"train.logical_shards={shards}", "threads=1", f"precision={precision}")
                folder = f"checkpoint.directory={precision}"
                job = Job(self, 4, *words, folder)
                steps, _ = self.come_and_go(job)
                self.assert_bits_of_one_process(job, steps, "mlp.toml", *words)

    def test_those_of_a_transformer_too(self):
        words = ("train.logical_shards=4", "threads=1", "precision=float32")
        job = Job(self, 4, *words, recipe="gpt.toml")
        steps, _ = self.come_and_go(job)
        self.assert_bits_of_one_process(job, steps, "gpt.toml", *words)

    def test_more_ranks_than_shards_are_refused(self):
        done = self.stormo("train", "mlp.toml", "-n", "3", "elastic.enabled=true", "train.logical_shards=2", "threads=1")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("each rank computes at least one, and there are 3 ranks", done.stderr)

    def replayed(self, steps, *words):
        return self.stormo("train", "mlp.toml", "-n", "4", "--json", "elastic.enabled=true", f"train.steps={steps}",
                           "elastic.register=log://run/membership.jsonl", *words)

    def test_a_run_is_replayed_from_its_log(self):
        """Without logical shards: the bits depend on who was there in which step."""
        job = Job(self, 4, "precision=float32")
        steps, _ = self.come_and_go(job)
        done = self.replayed(steps, "checkpoint.directory=again")
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [json.loads(line) for line in done.stdout.splitlines()]
        losses = {r["step"]: r["loss"] for r in records if r["event"] == "step"}
        self.assertGreater(len(losses), steps - 2 * len(job.epochs))  # an epoch's last one has no report
        for step in losses.keys() & job.losses.keys():
            self.assertEqual(losses[step], job.losses[step], f"step {step}")
        self.assertEqual(records[-1]["weights_hash"], job.end["weights_hash"])
        log = [(folder / "membership.jsonl").read_text() for folder in (self.folder / "run", self.folder / "again")]
        self.assertEqual(log[0].splitlines()[-1], log[1].splitlines()[-1])

    def test_of_a_replay_no_rank_may_be_lost(self):
        job = Job(self, 3)
        job.lose(1)
        job.until_ranks(3)
        job.stop()
        again = Job(self, 3, "elastic.register=log://run/membership.jsonl", "checkpoint.directory=again")
        again.until_step(job.step + STEPS_AFTER)
        again.send(1, signal.SIGKILL)
        code, _, err = self.outcome_of(again.process)
        self.assertEqual(code, 1, err)
        self.assertIn("a replay needs all of them", err)

    def test_a_log_of_another_run_is_refused(self):
        job = Job(self, 2)
        job.until_step(STEPS_AFTER)
        steps, _ = job.stop()
        self.assertIn("began with 2 ranks, and this one has 4", self.replayed(steps, "checkpoint.directory=x").stderr)
        self.assertIn("write another checkpoint.directory", self.replayed(steps, "--overwrite").stderr)

    def test_a_log_says_who_was_there(self):
        job = Job(self, 3)
        job.lose(1)
        job.until_ranks(3)
        job.stop()
        lines = [json.loads(line) for line in (self.folder / "run" / "membership.jsonl").read_text().splitlines()]
        self.assertEqual([(r["epoch"], r["ranks"], r["step"]) for r in lines], [(1, 3, 0), *job.epochs])
        last = lines[-1]
        members = sorted((m["name"].rpartition("/")[2], m["start"]) for m in last["members"])
        self.assertEqual(members, [("0", 1), ("1", 2), ("2", 1)])
        self.assertEqual([name.rpartition("/")[2] for name in last["donors"]], ["0", "2"])
        self.assertIn("state_hash", last)


if __name__ == "__main__":
    main()
