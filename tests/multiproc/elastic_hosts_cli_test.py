"""Elastic training on two hosts, which are network namespaces: ranks, and a whole host, are lost.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import contextlib
import os
import signal

from elastic_cli import STEPS_AFTER, ElasticTest, Job
from hosts_cli import HostsTest
from train_cli import children_of, main, ranks_of


class ElasticHosts(HostsTest, ElasticTest):
    def job(self, *words):
        return Job(self, None, "-H", f"{self.name}-1:2,{self.name}-2:2", "--interface", f"{self.name}br,eth0",
                   "--remote-shell", f"{self.on_host} {{host}}", *words)

    def test_a_rank_of_each_host_may_be_killed(self):
        for victim in (0, 3):
            with self.subTest(victim=victim):
                job = self.job(f"checkpoint.directory=killed{victim}")
                job.until_step(STEPS_AFTER)
                job.send(victim, signal.SIGKILL)
                job.until_ranks(4)
                steps, _ = job.stop()
                self.assert_as_one_process(job, steps)

    def test_a_host_is_lost(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        lost = [ranks_of(job.process)[rank] for rank in (2, 3)]
        agents = [pid for pid in children_of(job.process.pid) if set(lost) <= set(children_of(pid))]
        started = [pid for agent in agents for pid in children_of(agent)]
        for pid in (*agents, *started):  # the launcher's shell to it, and all that it has started
            with contextlib.suppress(ProcessLookupError):  # they end with the agent
                os.kill(pid, signal.SIGKILL)
        job.until_ranks(2)
        steps, err = job.stop()
        self.assertIn(f"{self.name}-2", err)
        self.assert_as_one_process(job, steps)

    def test_the_launcher_is_lost(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        job.kill_launcher()
        job.until_step(job.step + STEPS_AFTER)
        for left, victim in ((3, 3), (2, 0)):  # a majority of the register is on the two hosts
            job.send(victim, signal.SIGKILL)
            job.until_ranks(left)
        steps = job.stop_rank(2)
        self.assert_as_one_process(job, steps)

    def test_an_agent_is_lost(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        there = [ranks_of(job.process)[rank] for rank in (2, 3)]
        for pid in [pid for pid in children_of(job.process.pid) if set(there) <= set(children_of(pid))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.until_step(job.step + 2 * STEPS_AFTER)
        steps, err = job.stop()
        self.assertEqual(job.epochs, [], "its ranks were lost")
        self.assertIn(f"{self.name}-2", err)
        self.assertEqual(len(list(self.folder.glob(f"run/rank-{self.name}-2-*.err"))), 2)
        self.assert_as_one_process(job, steps)


if __name__ == "__main__":
    main()
