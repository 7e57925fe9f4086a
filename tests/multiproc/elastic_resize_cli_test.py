"""`stormo resize` with the built program: an elastic job gets fewer ranks and more, and ranks leave that somebody else
asks to; each step is that of one process.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import signal

from elastic_cli import STEPS_AFTER, Job, ResizableTest
from train_cli import DEADLINE_S, main, ranks_of


class Resize(ResizableTest):
    def resized(self, *words):
        done = self.resize(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refused(self, *words):
        done = self.resize(*words)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        return done.stderr

    def test_fewer_ranks_then_more(self):
        job = Job(self, 4)
        job.until_step(STEPS_AFTER)
        fewer = self.resized(job.process.pid, "-n", 2)
        self.assertEqual((fewer["job"], fewer["before"], fewer["ranks"], fewer["training"], fewer["done"]),
                         (job.process.pid, 4, 2, 2, True))
        self.assertEqual(set(ranks_of(job.process)), {0, 1})
        job.until_ranks(2)
        more = self.resized(job.process.pid, "-n", 3)
        self.assertEqual((more["before"], more["training"]), (2, 3))
        self.assertGreater(more["epoch"], fewer["epoch"])
        job.until_ranks(3)
        steps, err = job.stop()
        self.assertIn("the job is to have 2 ranks instead of 4", err)
        for rank in (2, 3):
            self.assertRegex(err, rf"rank {rank} \(host \S+, pid \d+\) has left")
        self.assertRegex(err, r"rank 2 \(host \S+, pid \d+\) is started again")
        self.assertNotIn("lost", err)
        self.assertEqual([sorted(job.names(what)) for what in ("lost", "left", "joined")], [[], [2, 3], [2]])
        self.assertEqual({record["cause"] for record in job.changes}, {"left", "joined"})
        self.assert_edges_only(job, steps)
        self.assert_as_one_process(job, steps)

    def test_more_ranks_than_at_first(self):
        job = Job(self, 2)
        job.until_step(STEPS_AFTER)
        done = self.resize(job.process.pid, "-n", 3)
        self.assertRegex(done.stdout, r"^3 ranks train since epoch \d+ instead of 2, after \d+\.\d\d s\n$", done.stderr)
        job.until_ranks(3)
        job.send(2, signal.SIGKILL)  # as every other rank
        job.until_ranks(3)
        steps, err = job.stop()
        self.assertRegex(err, r"rank 2 \(host \S+, pid \d+\) is started\n")
        self.assertRegex(err, r"rank 2 \(host \S+, pid \d+\) is started again\n")
        self.assert_as_one_process(job, steps)

    def test_what_a_job_cannot_have(self):
        job = Job(self, None, "-H", "localhost:3", "-n", "2", "elastic.min_ranks=2", "train.logical_shards=6",
                  "threads=1")
        job.until_step(STEPS_AFTER)
        me = job.process.pid
        self.assertIn("at least 1", self.refused(me, "-n", 0))
        self.assertIn("elastic.min_ranks=2", self.refused(me, "-n", 1))
        self.assertIn("3 slots", self.refused(me, "-n", 4))
        self.assertIn("at most 6", self.refused(me, "-n", 7))  # logical shards
        self.assertIn("process 1 is no launcher of an elastic job", self.refused(1, "-n", 3))
        self.assertIn("is at 127.0.0.1:1", self.refused("127.0.0.1:1", "-n", 3))
        self.assertIn("--timeout", self.refused(me, "-n", 3, "--timeout", "soon"))
        self.assertEqual(self.resize(me, "-n", 2).stdout, "the job has 2 ranks already\n")
        self.assertEqual(job.epochs, [])
        asked = self.resized(me, "-n", 3, "--no-wait")
        self.assertEqual((asked["before"], asked["ranks"]), (2, 3))
        job.until_ranks(3)
        job.stop()

    def test_a_job_that_is_starting(self):
        job = Job(self, 2)
        while "no " in (asked := self.resize(job.process.pid, "-n", 1)).stderr:
            pass  # its launcher does not listen yet
        job.until_step(STEPS_AFTER)
        if asked.returncode == 0:
            self.assertEqual(set(ranks_of(job.process)), {0})
        else:
            self.assertIn("does not train yet", asked.stderr)
        job.stop()

    def test_by_the_name_that_top_shows(self):
        recipe = ("mlp.toml", "-n", "2", "--json", "train.steps=1000000", "--metrics", "127.0.0.1:0")

        def address_of(run):
            self.read_until(run, "step", 5)
            files = (self.folder / "login" / "stormo").glob("job-*.json")
            pids = set(ranks_of(run).values())
            return next(place["address"] for place in map(json.loads, (f.read_text() for f in files))
                        if place["process"] in pids)

        fixed = self.start(*recipe)
        self.assertIn("elastic.enabled=true", self.refused(address_of(fixed), "-n", 1))
        jobs = [self.start(*recipe, "elastic.enabled=true", f"checkpoint.directory=job{i}") for i in range(2)]
        addresses = [address_of(run) for run in jobs]
        several = self.refused("-n", 1)
        for run in jobs:
            self.assertIn(f"\n  {run.pid}  2 ranks", several)
        self.assertEqual(self.resized(addresses[1], "-n", 1)["job"], jobs[1].pid)
        self.assertEqual([len(ranks_of(run)) for run in jobs], [2, 1])

    def test_a_rank_dies_meanwhile(self):
        for victim in (0, 3):  # 3 is the one that leaves
            with self.subTest(victim=victim):
                job = Job(self, 4, f"checkpoint.directory=died{victim}")
                job.until_step(STEPS_AFTER)
                command = self.start_program("resize", str(job.process.pid), "-n", "3", environment=self.login)
                job.send(victim, signal.SIGKILL)
                job.until_ranks(3)
                _, err = command.communicate(timeout=DEADLINE_S)
                self.assertEqual(command.returncode, 0, err)
                self.assertEqual(set(ranks_of(job.process)), {0, 1, 2})
                steps, _ = job.stop()
                self.assert_as_one_process(job, steps)

    def test_a_newcomer_leaves_while_it_gets_the_state(self):
        job = Job(self, 3)
        job.lose(2)
        job.until(lambda: job.epochs and job.epochs[-1][1] == 3)  # it has just become a member
        self.assertEqual(self.resized(job.process.pid, "-n", 2)["training"], 2)
        self.assertEqual(self.resized(job.process.pid, "-n", 3)["training"], 3)
        job.until_ranks(3)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)

    def test_another_one_leaves_while_a_newcomer_gets_the_state(self):
        job = Job(self, 3)
        job.lose(0)
        job.until(lambda: job.epochs and job.epochs[-1][1] == 3)
        self.assertEqual(self.resized(job.process.pid, "-n", 2)["training"], 2)
        self.assertEqual(set(ranks_of(job.process)), {0, 1})
        job.until_step(job.step + STEPS_AFTER)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)

    def test_a_signal_for_one_rank_is_a_notice(self):
        job = Job(self, 3)
        job.until_step(STEPS_AFTER)
        for left, rank in ((2, 0), (1, 2)):
            job.send(rank, signal.SIGTERM)
            job.until_ranks(left)
            job.until(lambda rank=rank: rank not in ranks_of(job.process))
            job.until_step(job.step + 10 * STEPS_AFTER)  # the launcher has seen its end
        steps, err = job.stop()
        for rank in (0, 2):
            self.assertRegex(err, rf"rank {rank} \(host \S+, pid \d+\) has left")
        self.assertNotIn("started again", err)
        self.assert_as_one_process(job, steps)

    def test_a_signal_for_every_rank_ends_the_job(self):
        job = Job(self, 3)
        job.until_step(STEPS_AFTER)
        for pid in ranks_of(job.process).values():
            os.kill(pid, signal.SIGTERM)
        code, _, err = self.outcome_of(job.process)
        self.assertEqual(code, 143, err)
        self.assertTrue((self.folder / "run" / "latest").exists())

    def test_a_launcher_that_is_killed_leaves_nothing_that_is_found(self):
        job = Job(self, 2)
        job.until_step(STEPS_AFTER)
        job.process.kill()
        job.process.wait()
        self.assertRegex(self.refused(job.process.pid, "-n", 3), "no (launcher of an )?elastic job")


if __name__ == "__main__":
    main()
