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

    def test_the_state_comes_from_the_replacements_host(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        job.send(3, signal.SIGKILL)
        job.until_ranks(4)
        _, err = job.stop()
        self.assertRegex(err, r"-2/1: has the state: [\d.]+ [KM]iB from its host, 0 B from others")

    def test_else_it_comes_from_others(self):
        job = Job(self, None, "-H", f"{self.name}-1:1,{self.name}-2:1", "--interface", f"{self.name}br,eth0",
                  "--remote-shell", f"{self.on_host} {{host}}")
        job.until_step(STEPS_AFTER)
        job.send(1, signal.SIGKILL)
        job.until_ranks(2)
        _, err = job.stop()
        self.assertRegex(err, r"-2/0: has the state: 0 B from its host, [\d.]+ [KM]iB from others")

    def test_a_host_is_lost(self):
        job = self.job()
        job.until_step(STEPS_AFTER)
        lost = [ranks_of(job.process)[rank] for rank in (2, 3)]
        agents = [pid for pid in children_of(job.process.pid) if set(lost) <= set(children_of(pid))]
        for pid in (*agents, *lost):  # the launcher's shell to it, and all that it has started
            with contextlib.suppress(ProcessLookupError):  # they end with the agent
                os.kill(pid, signal.SIGKILL)
        job.until_ranks(2)
        steps, err = job.stop()
        self.assertIn(f"{self.name}-2", err)
        self.assert_as_one_process(job, steps)


if __name__ == "__main__":
    main()
