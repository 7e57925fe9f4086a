"""The tests' own tool: what it reports must be what happened."""
import os
import time
import unittest

import torch
import torch.distributed as dist

from forked_ranks import JoinedRanks
from ranks import Ranks


def sum_of_ranks(start):
    x = torch.full((2,), float(start + dist.get_rank()))
    dist.all_reduce(x)
    return x


def fail_on_one():
    if os.environ["RANK"] == "1":
        raise ValueError("as the test wants it")


def sleep():
    time.sleep(60)


class RanksTest(unittest.TestCase):
    Ranks = Ranks

    def test_returns_the_results_of_all(self):
        for result in self.Ranks(sum_of_ranks, 3, 10).wait():
            self.assertEqual(result.tolist(), [33, 33])

    def test_gives_the_backend_that_is_asked_for(self):
        self.assertEqual(len(self.Ranks(sum_of_ranks, 2, 0, backend="gloo").wait()), 2)

    def test_a_rank_that_fails_fails_the_test_with_its_output(self):
        with self.assertRaisesRegex(AssertionError, "rank 1 ended with 1:(.|\n)*as the test wants it"):
            self.Ranks(fail_on_one, 2, backend=None).wait()

    def test_a_rank_that_is_not_ready_in_time_is_killed(self):
        ranks = self.Ranks(sleep, 1, backend=None)
        self.assertEqual(ranks.wait_for_ends(0.5), [None])


class JoinedRanksTest(RanksTest):
    Ranks = JoinedRanks


if __name__ == "__main__":
    unittest.main()
