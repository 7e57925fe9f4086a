"""Elastic training with the built program: ranks are killed and stopped, the others go on, replacements join, and each
step is that of one process.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import signal
import time

from elastic_cli import STEPS_AFTER, ElasticTest, Job
from train_cli import main, ranks_of

class Elastic(ElasticTest):
    def test_any_rank_may_be_killed(self):
        job = Job(self, 3)
        for victim in range(3):
            job.lose(victim)
            job.until_ranks(3)
            self.assertNotIn(victim, [int(name.rpartition("/")[2]) for name in job.changes[-1]["donors"]])
            self.assertEqual(len(job.changes[-1]["members"]), 3)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)
        self.assertEqual([job.names(what) for what in ("lost", "left", "joined")], [[0, 1, 2], [], [0, 1, 2]])
        for change in job.changes:
            if change["lost"]:
                self.assertIn(change["cause"], ("ended", "unreachable"), job.changes)

    def test_a_stopped_rank_is_replaced(self):
        job = Job(self, 3)
        job.until_step(STEPS_AFTER)
        for victim in (1, 0):  # the others meet at rank 0
            job.send(victim, signal.SIGSTOP)
            job.until_ranks(3)
        steps, err = job.stop()
        self.assertIn("killed by signal 9", err)
        self.assertEqual(job.names("lost"), [1, 0])
        self.assert_as_one_process(job, steps)

    def test_a_short_pause_changes_nothing(self):
        job = Job(self, 3)
        for pause in range(3):
            job.until_step(job.step + STEPS_AFTER)
            job.send(pause, signal.SIGSTOP)
            time.sleep(0.5)  # what is tested: a pause of this length
            job.send(pause, signal.SIGCONT)
        job.until_step(job.step + STEPS_AFTER)
        steps, _ = job.stop()
        self.assertEqual(job.epochs, [])
        self.assert_as_one_process(job, steps)

    def test_the_last_rank_goes_on_alone(self):
        job = Job(self, 3)
        job.lose(0)
        job.send(2, signal.SIGKILL)
        job.until_ranks(3)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)

    def test_a_replacement_is_killed_while_it_joins(self):
        job = Job(self, 2)
        job.lose(1)
        job.until(lambda: job.epochs and job.epochs[-1][1] == 2)
        job.send(1, signal.SIGKILL)  # it has just become a member, and gets the state
        job.until_ranks(2)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)

    def test_a_replacement_evaluates_and_saves_what_the_others_have(self):
        """Also while it gets the state, which takes some steps. Each rank has batches of the evaluation."""
        (self.folder / "text/a.txt").write_text("to be or not to be, that is it\n" * 6000)
        words = ("train.eval_every=1", "checkpoint.every=1", "model.width=32", "model.layers=2")
        for parameters in ("auto", "replicated"):
            with self.subTest(parameters):
                job = Job(self, 2, *words, f"strategy.parameters={parameters}", f"checkpoint.directory={parameters}",
                          recipe="gpt.toml")
                job.lose(1)
                job.until_ranks(2)
                steps, _ = job.stop()
                self.assert_as_one_process(job, steps, "gpt.toml", words)
                self.assert_evaluated_as_one_process(job, steps, "gpt.toml", words)

    def test_too_few_ranks_wait(self):
        job = Job(self, 2, "elastic.min_ranks=2")
        job.until_step(STEPS_AFTER)
        for _ in range(3):  # it may return at once after the first two
            job.send(0, signal.SIGKILL)
            job.until_ranks(2)
        self.assertEqual([ranks for _, ranks, _ in job.epochs], [2] * 3, "it went on with one rank")
        steps, err = job.stop()
        self.assertIn("fewer than 2 members", err)
        self.assert_as_one_process(job, steps)

    def test_without_anybody_who_has_the_state(self):
        job = Job(self, 2, "checkpoint.every=10")
        job.until_step(3 * STEPS_AFTER)
        ranks = ranks_of(job.process)
        for pid in ranks.values():
            os.kill(pid, signal.SIGKILL)
        code, _, err = self.outcome_of(job.process)
        self.assertEqual(code, 75, err)
        self.assertIn("none is left that has the state", err)
        again = Job(self, 2, "--resume")
        again.until_step(again.step + 1)
        first = again.step
        again.until_step(first + STEPS_AFTER)
        self.assertGreater(first, STEPS_AFTER)
        again.stop()

    def test_the_last_one_with_the_state_dies_while_another_gets_it(self):
        # of its steps one to three carry the state
        job = Job(self, 2, "model.sizes=[784, 2048, 10]", "optimizer.kind=adamw", "checkpoint.every=10")
        self.assert_ends_without_the_state(job)

    def test_the_launcher_is_killed(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        job = Job(self, 3, environment={"TMPDIR": str(temporary), "STORMO_OUTLIVES_LAUNCHER": "1"})
        job.until_step(STEPS_AFTER)
        job.kill_launcher()
        job.until_step(job.step + STEPS_AFTER)
        for left, victim in ((2, 1), (1, 0)):  # the register and the groups do without it, too
            job.send(victim, signal.SIGKILL)
            job.until_ranks(left)
        steps = job.stop_rank(2)
        self.assertIn("the launcher has ended", next(self.folder.glob("run/rank-*-2.err")).read_text())
        self.assertTrue((self.folder / "run/latest").exists(), "it has saved nothing at its end")
        self.assertEqual(list(temporary.iterdir()), [])
        self.assert_as_one_process(job, steps)

    def test_ranks_of_one_host_end_with_the_launcher(self):
        job = Job(self, 2)
        job.until_step(STEPS_AFTER)
        job.kill_launcher()
        job.until_gone()
        self.assertEqual(list(self.folder.glob("run/rank-*")), [])

    def test_the_end_is_that_of_every_run(self):
        def weights(*words):
            done = self.stormo("train", "mlp.toml", "-n", "2", "--json", "--overwrite", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            end = json.loads(done.stdout.splitlines()[-1])
            self.assertEqual((end["event"], end["steps"]), ("end", 6))
            return end["weights_hash"]

        # a copy that ranks share, and copies of their own; rules that need norms have these
        for words in ((), ("strategy.parameters=replicated",), ("optimizer.kind=lamb", "strategy.parameters=replicated")):
            with self.subTest(words=words):
                elastic = ("optimizer.kind=lamb",) if "optimizer.kind=lamb" in words else words
                self.assertEqual(weights("elastic.enabled=true", *elastic), weights(*words))

    def test_what_does_not_go_together_is_refused_at_once(self):
        done = self.stormo("train", "mlp.toml", "-n", "2", "elastic.enabled=true", "strategy.kind=fsdp",
                           "strategy.parameters=host_shared", "optimizer.kind=lbfgs", "train.patience=3")
        self.assertEqual(done.returncode, 2, done.stderr)
        for text in ("strategy 'ddp'", "leave out parameters", "lbfgs", "patience"):
            self.assertIn(text, done.stderr)

    def test_a_wrong_register_is_told_before_ranks_start(self):
        for address, why in (("consul://a:1", "write quorum://HOST:PORT"), ("quorum://a,b:x", "'a' has no port"),
                             ("quorum://", "it has no host")):
            done = self.stormo("train", "mlp.toml", "-n", "3", "elastic.enabled=true", f"elastic.register={address}")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(done.stderr.count(f"elastic.register: the register '{address}': "), 1, done.stderr)
            self.assertIn(why, done.stderr)
            self.assertNotIn("rank ", done.stderr)


if __name__ == "__main__":
    main()
