"""Elastic training of ranks that train on by themselves, on hosts that are network namespaces: the launcher is killed,
hosts are lost, that of the Store among them, and the others average or mix on.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import signal

from elastic_cli import AVERAGES, DILOCO, GOSSIP, STEPS_AFTER
from elastic_hosts_cli_test import ElasticHostsTest
from train_cli import main

WAYS = (AVERAGES, DILOCO, GOSSIP)
AT_REST = 10 * STEPS_AFTER  # the loss falls no more by a bound of the comparison


class TwoHosts(ElasticHostsTest):
    """The register is on both, and on that of the launcher."""

    def test_the_launcher_is_lost(self):
        """And then a rank of each host, rank 0 among them: both come back with the state of one that is left."""
        for words in WAYS:
            with self.subTest(words):
                job = self.job(*words, "--overwrite")
                job.until_step(STEPS_AFTER)
                job.kill_launcher()
                job.until_step(job.step + STEPS_AFTER)
                for victim in (3, 0):
                    job.send(victim, signal.SIGKILL)
                    job.until_ranks(4)
                job.until_step(AT_REST)
                job.stop_rank(2)
                self.assertEqual((job.names("lost"), job.names("joined")), ([1, 0], [1, 0]))
                self.assert_as_without_deaths(job, self.COUNT * self.RANKS, *words)

    def test_the_host_of_the_store_is_lost(self):
        """That of rank 0, in whose process the ranks of an epoch meet, in the middle of a period or of an average."""
        for words in WAYS:
            with self.subTest(words):
                job = self.job(*words, "--overwrite")
                job.until_step(STEPS_AFTER)
                self.kill_host(job, 0, 1)
                job.until_ranks(2)
                job.until_step(AT_REST)
                job.stop()
                self.assertEqual(job.names("lost"), [0, 1])
                self.assert_as_without_deaths(job, self.COUNT * self.RANKS, *words)


class ThreeHosts(ElasticHostsTest):
    """Each has a part of the register."""

    COUNT = 3
    RANKS = 1

    def test_the_launcher_and_the_host_of_the_store_are_lost(self):
        for words in WAYS:
            with self.subTest(words):
                job = self.job(*words, "--overwrite")
                job.until_step(STEPS_AFTER)
                host = self.processes_of(job, 0)
                job.kill_launcher()
                job.until_step(job.step + STEPS_AFTER)
                self.kill(host)
                job.until_ranks(2)
                job.until_step(AT_REST)
                job.stop_rank(1)
                self.assert_as_without_deaths(job, self.COUNT * self.RANKS, *words)


if __name__ == "__main__":
    main()
