"""Elastic training on two hosts and on three, which are network namespaces: ranks, whole hosts and the launcher are lost.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import contextlib
import os
import pathlib
import signal

from elastic_cli import STEPS_AFTER, ElasticTest, Job
from hosts_cli import HostsTest
from train_cli import children_of, main, ranks_of


class ElasticHostsTest(HostsTest, ElasticTest):
    RANKS = 2  # on each host

    def job(self, *words, **options):
        hosts = ",".join(f"{self.name}-{host}:{self.RANKS}" for host in range(1, self.COUNT + 1))
        return Job(self, None, "-H", hosts, "--interface", f"{self.name}br,eth0",
                   "--remote-shell", f"{self.on_host} {{host}}", *words, **options)

    @staticmethod
    def agents(job, *ranks):
        """The launcher's shell to the host of these ranks, and its agent."""
        there = {ranks_of(job.process)[rank] for rank in ranks}
        return [pid for pid in children_of(job.process.pid) if there <= set(children_of(pid))]

    @staticmethod
    def parent_of(rank):
        """The agent, which has started it."""
        stat = pathlib.Path(f"/proc/{rank}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    @staticmethod
    def kill(processes):
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):  # some end with others
                os.kill(pid, signal.SIGKILL)

    def processes_of(self, job, *ranks):
        """All of the job on the host of these ranks."""
        agents = self.agents(job, *ranks)
        return [*agents, *(pid for agent in agents for pid in children_of(agent))]

    def kill_host(self, job, *ranks):
        self.kill(self.processes_of(job, *ranks))


class ElasticHosts(ElasticHostsTest):
    def test_a_rank_of_each_host_may_be_killed(self):
        job = self.job()
        for victim in (0, 3):
            job.lose(victim)
            job.until_ranks(4)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)

    def test_the_state_comes_from_the_replacements_host(self):
        job = self.job()
        job.lose(3)
        job.until_ranks(4)
        _, err = job.stop()
        self.assertRegex(err, r"-2/1: has the state: it shares that of its host")

    def test_else_it_comes_from_others(self):
        job = Job(self, None, "-H", f"{self.name}-1:1,{self.name}-2:1", "--interface", f"{self.name}br,eth0",
                  "--remote-shell", f"{self.on_host} {{host}}")
        job.lose(1)
        job.until_ranks(2)
        _, err = job.stop()
        self.assertRegex(err, r"-2/0: has the state: 0 B from its host, [\d.]+ [KM]iB from others")

    def test_the_state_and_the_checkpoints_are_lost(self):
        job = Job(self, None, "-H", f"{self.name}-1:1,{self.name}-2:1", "--interface", f"{self.name}br,eth0",
                  "--remote-shell", f"{self.on_host} {{host}}", "model.sizes=[784, 512, 10]", "optimizer.kind=adamw",
                  "checkpoint.directory=private/run", "checkpoint.every=10")  # which the other host does not see
        self.assert_ends_without_the_state(job)

    def test_a_host_is_lost(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        self.kill_host(job, 2, 3)
        job.until_ranks(2)
        steps, err = job.stop()
        self.assertIn(f"{self.name}-2", err)
        self.assert_as_one_process(job, steps)

    def test_peers_on_another_host_do_the_work_of_a_rank_of_a_pipeline(self):
        words = ("strategy.pipeline=2", "train.micro_batches=2")  # a pipeline on each host
        job = self.job(*words)
        job.lose(1)
        job.until_ranks(4)
        self.kill_host(job, 2, 3)
        job.until_ranks(2)
        steps, err = job.stop()
        self.assertRegex(err, r"-1/1: has the state: 0 B from its host, [\d.]+ [KM]iB from others")
        self.assert_as_one_process(job, steps)

    def test_the_launcher_is_lost(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        job.kill_launcher()
        job.until_step(job.step + STEPS_AFTER)
        for victim in (3, 0):  # a majority of the register is on the two hosts
            job.send(victim, signal.SIGKILL)
            job.until_ranks(4)
        steps = job.stop_rank(3)  # also one that was started again asks all to stop
        self.assertEqual((job.names("lost"), job.names("joined")), ([1, 0], [1, 0]))
        self.assert_as_one_process(job, steps)

    def test_an_agent_is_killed(self):
        """And the launcher, whose shell to the host lives, has lost the host."""
        job = self.job()
        job.until_step(STEPS_AFTER)
        os.kill(self.parent_of(ranks_of(job.process)[3]), signal.SIGKILL)
        job.until_step(job.step + STEPS_AFTER)
        job.send(3, signal.SIGKILL)
        job.until_ranks(4)
        steps, err = job.stop()
        self.assertRegex(err, rf"rank 3 \(host {self.name}-2, pid \d+\) lost with its host")
        self.assert_as_one_process(job, steps)

    def test_an_agent_is_lost(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        self.kill(self.agents(job, 2, 3))
        job.until_step(job.step + 2 * STEPS_AFTER)
        steps, err = job.stop()
        self.assertEqual(job.epochs, [], "its ranks were lost")
        self.assertIn(f"{self.name}-2", err)
        self.assertEqual(len(list(self.folder.glob(f"run/rank-{self.name}-2-*.err"))), 2)
        self.assert_as_one_process(job, steps)

    def test_a_host_is_taken_away(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        ranks = ranks_of(job.process)
        os.kill(self.parent_of(ranks[2]), signal.SIGTERM)
        job.until_ranks(2)
        steps, err = job.stop()
        self.assertIn(f"host {self.name}-2 is taken away", err)
        for rank in (2, 3):
            self.assertIn(f"rank {rank} (host {self.name}-2, pid {ranks[rank]}) has left", err)
        self.assertNotIn("lost", err)
        self.assert_edges_only(job, steps)
        self.assert_as_one_process(job, steps)

    def test_another_rank_on_the_other_host(self):
        job = self.job("-n", "3")
        job.until_step(STEPS_AFTER)
        for ranks in (4, 3, 4):
            done = self.stormo("resize", str(job.process.pid), "-n", str(ranks))
            self.assertEqual(done.returncode, 0, done.stderr)
            job.until_ranks(ranks)
        self.assertEqual(self.stormo("resize", str(job.process.pid), "-n", "5").returncode, 2)
        steps, err = job.stop()
        self.assertRegex(err, rf"rank 3 \(host {self.name}-2, pid \d+\) is started\n")
        self.assert_as_one_process(job, steps)


class ElasticThreeHosts(ElasticHostsTest):
    COUNT = 3
    RANKS = 1

    def test_a_host_is_added(self):
        job = Job(self, None, "-H", f"{self.name}-1:1,{self.name}-2:1", "--interface", f"{self.name}br,eth0",
                  "--remote-shell", f"{self.on_host} {{host}}")
        job.until_step(STEPS_AFTER)
        done = self.stormo("resize", str(job.process.pid), "--add-host", f"{self.name}-3:1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^3 ranks train since epoch \d+ instead of 2, ")
        job.until_ranks(3)
        self.assertEqual(job.changes[-1]["joined"], [f"{self.name}-3/0"])
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)

    def test_a_host_of_the_register_and_the_launcher_are_lost(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        self.kill_host(job, 0)
        job.until_ranks(2)
        job.kill_launcher()
        job.until_step(job.step + STEPS_AFTER)
        job.send(1, signal.SIGKILL)  # what is left of the register has to say so
        job.until_ranks(1)
        steps = job.stop_rank(2)
        self.assert_as_one_process(job, steps)


if __name__ == "__main__":
    main()
