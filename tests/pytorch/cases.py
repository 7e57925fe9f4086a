"""Many small tests in one job: starting torch takes seconds, a case milliseconds.

    cases = Cases()

    @cases
    def sums():                                   # in the test's module; runs on all ranks, and asserts
        ...

    def run_cases():                              # for JoinedRanks: a function of this module
        return cases.run()

    @cases.tests(run_cases, 2)
    class SumTest(unittest.TestCase): pass        # has test_sums
"""
import traceback

from forked_ranks import JoinedRanks


class Cases:
    def __init__(self):
        self._functions = {}

    def __call__(self, function):
        self._functions[function.__name__] = function
        return function

    def run(self):
        """On a rank: what has failed there, by name."""
        failures = {}
        for name, function in self._functions.items():
            try:
                function()
            except Exception:
                failures[name] = traceback.format_exc()
        return failures

    def tests(self, run, size, **how):
        """Gives a class of tests one for each case; the job starts with the first of the class."""

        def decorate(test_class):
            def set_up(cls):
                cls.failures = JoinedRanks(run, size, **how).wait()

            test_class.setUpClass = classmethod(set_up)
            for name in self._functions:
                setattr(test_class, f"test_{name}", _test_of(name))
            return test_class

        return decorate


def _test_of(name):
    def test(self):
        for rank, failures in enumerate(self.failures):
            if name in failures:
                self.fail(f"on rank {rank}:\n{failures[name]}")

    return test
