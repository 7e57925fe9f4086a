"""Elastic training of ranks that train on by themselves, with the built program: each of four is killed in turn, the
others average or mix on, and replacements come in with the state of one of them.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

from elastic_cli import AVERAGES, DILOCO, GOSSIP, STEPS_AFTER, ElasticTest, Job
from train_cli import LONG_FORM, main


class Averages(ElasticTest):
    def test_any_rank_may_be_killed(self):
        for words, some in ((DILOCO, range(4)), (AVERAGES, (0,)), (GOSSIP, (0, 3))):
            victims = list(range(4) if LONG_FORM else some)
            with self.subTest(words):
                job = Job(self, 4, *words, "--overwrite")
                for victim in victims:
                    job.lose(victim)
                    job.until_ranks(4)
                _, err = job.stop()
                for what in ("lost", "joined"):
                    self.assertEqual(job.names(what), victims, err)
                self.assertEqual(err.count("has the state: "), len(victims), err)
                self.assert_as_without_deaths(job, 4, *words)

    def test_the_last_rank_goes_on_alone(self):
        job = Job(self, 3, *DILOCO)
        job.lose(0)
        job.send(2, 9)
        job.until_ranks(3)
        job.until_step(job.step + STEPS_AFTER)
        job.stop()

    def test_a_run_that_is_stopped_between_averages_is_saved_and_goes_on(self):
        words = (*DILOCO, "strategy.period=1000000")
        job = Job(self, 2, *words)
        job.until_step(STEPS_AFTER)
        steps, _ = job.stop()
        again = Job(self, 2, *words, "--resume")
        again.until_step(steps + STEPS_AFTER)
        again.stop()

    def test_it_evaluates_and_saves_as_without_deaths(self):
        """At the ends of periods, whoever was lost."""
        (self.folder / "text/a.txt").write_text("to be or not to be, that is it\n" * 600)
        job = Job(self, 3, *AVERAGES, "train.eval_every=20", "checkpoint.every=20", "checkpoint.directory=run",
                  recipe="gpt.toml")
        job.lose(1)
        job.until_ranks(3)
        job.until(lambda: job.records[-1]["event"] == "eval" and job.records[-1]["step"] > job.epochs[-1][2] + 20)
        steps, _ = job.stop()
        evaluated = {r["step"] for r in job.records if r["event"] == "eval"}
        missing = set(range(20, steps, 20)) - evaluated
        self.assertLessEqual(len(missing), len(job.epochs), sorted(missing))

    def test_what_does_not_go_together_is_refused_at_once(self):
        for words, why in (((*DILOCO, "strategy.fragments=2"), "leave out strategy.fragments, delay and mixing"),
                           ((*DILOCO, "strategy.compression=bfloat16"), "leave out compression"),
                           ((*AVERAGES, "strategy.local_period=1"), "leave out strategy.local_period"),
                           ((*AVERAGES, "strategy.state_periods=[8, 8]"), "leave out strategy.state_periods"),
                           ((*AVERAGES, "strategy.max_distance=0.1"), "leave out strategy.max_distance"),
                           ((*AVERAGES, "strategy.tensor=2"), "with replicas of one rank"),
                           ((*GOSSIP, "strategy.topology=hypercube"), "ranks mix however many are left"),
                           ((*GOSSIP, "strategy.topology=edges:0-1"), "ranks mix however many are left"),
                           ((*AVERAGES, "elastic.register=log://run/membership.jsonl"), "only 'ddp' is replayed")):
            with self.subTest(words):
                done = self.stormo("train", "mlp.toml", "-n", "2", "elastic.enabled=true", *words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(why, done.stderr)


if __name__ == "__main__":
    main()
