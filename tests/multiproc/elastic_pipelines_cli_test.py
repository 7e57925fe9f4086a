"""Elastic training of pipelines with the built program: peers do the work of a lost rank, a replacement gets its stage
from them, and each step is that of one process.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import signal

from elastic_cli import STEPS_AFTER, Job, ResizableTest
from train_cli import main

# ranks 0 and 2 have the first stage, 1 and 3 the second one
PIPELINES = ("strategy.pipeline=2", "train.micro_batches=2")


class ElasticPipelines(ResizableTest):
    def job(self, *words, **options):
        return Job(self, 4, *PIPELINES, *words, **options)

    def resize_to(self, job, ranks):
        done = self.resize(job.process.pid, "-n", ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        job.until_ranks(ranks)

    def test_any_rank_may_be_killed(self):
        job = self.job()
        for victim in range(4):
            job.lose(victim)
            job.until_ranks(4)
        steps, _ = job.stop()
        self.assertEqual(job.names("lost"), [0, 1, 2, 3])
        self.assert_as_one_process(job, steps)

    def test_a_rank_of_each_pipeline_is_killed(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        for joined, victims in ((2, (0, 3)), (4, (2, 1))):
            for victim in victims:
                job.send(victim, signal.SIGKILL)
            job.until_joined(joined, 4)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)

    def test_a_gpt_with_a_weight_that_two_stages_have(self):
        words = ("model.layers=3", "train.clip_norm=0.5")
        job = self.job(*words, recipe="gpt.toml", environment={"OMP_NUM_THREADS": "1"})
        for victim in (1, 0):
            job.lose(victim)
            job.until_ranks(4)
        self.resize_to(job, 3)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps, "gpt.toml", words)

    def test_with_fewer_ranks_it_evaluates_and_saves(self):
        words = ("train.eval_every=5", "checkpoint.every=5")
        job = self.job(*words, recipe="gpt.toml")
        job.until_step(STEPS_AFTER)
        for ranks in (3, 2, 4):
            self.resize_to(job, ranks)
        steps, err = job.stop()
        self.assertNotIn("lost", err)
        self.assert_as_one_process(job, steps, "gpt.toml", words)
        self.assert_evaluated_as_one_process(job, steps, "gpt.toml", words)

    def test_what_fewer_ranks_have_saved_is_the_whole_state(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        self.resize_to(job, 3)
        steps, _ = job.stop()
        last = steps + STEPS_AFTER
        again = self.lines("mlp.toml", "precision=float64", f"train.steps={last}", "--resume")
        one = self.lines("mlp.toml", "precision=float64", f"train.steps={last}", "checkpoint.directory=one")
        losses = {r["step"]: r["loss"] for r in one if r["event"] == "step"}
        resumed = [r for r in again if r["event"] == "step"]
        self.assertEqual([r["step"] for r in resumed], list(range(steps + 1, last + 1)))
        for r in resumed:
            self.assertAlmostEqual(r["loss"], losses[r["step"]], delta=1e-9 * abs(r["loss"]))

    def test_without_a_stage_it_ends_and_is_resumed(self):
        job = self.job("checkpoint.every=10")
        job.until_step(3 * STEPS_AFTER)
        for victim in (1, 3):
            job.send(victim, signal.SIGKILL)
        code, _, err = self.outcome_of(job.process)
        self.assertEqual(code, 75, err)
        self.assertIn("a part of it", err)
        again = self.job("--resume")
        again.until_step(again.step + 1)
        self.assertGreater(again.step, STEPS_AFTER)
        again.until_step(again.step + STEPS_AFTER)
        again.stop()

    def test_what_peers_cannot_do_is_refused_at_once(self):
        for ranks, words, why in ((2, (), "start at least 4 ranks, not 2"),
                                  (4, ("strategy.schedule=pipedream",), "steps overlap"),
                                  (4, ("strategy.tensor=2",), "pipelines of single ranks"),
                                  (4, ("strategy.kind=fsdp",), "strategy 'ddp'")):
            with self.subTest(why=why):
                done = self.stormo("train", "mlp.toml", "-n", str(ranks), "elastic.enabled=true", *PIPELINES, *words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(why, done.stderr)
                self.assertNotIn("rank 0", done.stderr)


if __name__ == "__main__":
    main()
