"""PyTorch's own tests of torch.distributed, from the installed wheel of torch, over a backend.

Usage: run.py BACKEND [--ranks N] [--as-gloo] [--loopback] [--record] [TEST ...]

BACKEND is stormo or gloo. --as-gloo puts Stormo in Gloo's place, so that tests which ask for "gloo" run over it.
The tests run in a network namespace of their own with no interface that is up, where Gloo cannot start;
--loopback gives it a loopback interface. BACKEND.txt beside this file lists the tests that run on CPUs; a line
may go on with why its test fails over Stormo. The result must be that of the list, to the name. --record runs all
tests of the module and writes a new list; with 4 ranks, because some tests want exactly 4.
"""

import argparse
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

MODULE = "torch.testing._internal.distributed.distributed_test"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backend", choices=["stormo", "gloo"])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--as-gloo", action="store_true", help="Stormo in Gloo's place")
    parser.add_argument("--loopback", action="store_true", help="with a loopback interface")
    parser.add_argument("--record", action="store_true", help="write the list of tests")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("tests", nargs="*", help="only these")
    return parser.parse_intermixed_args()


def in_namespace(options):
    """Runs this script again, in a network namespace of its own; its exit status."""
    inside = ("ip link set lo up && " if options.loopback else "") + 'exec "$@"'
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    return subprocess.call(
        ["unshare", "--net", *rights, "sh", "-c", inside, "sh", sys.executable, *sys.argv, "--inside"]
    )


def read_list(path):
    """Name of each test, and why it fails; "" where it must pass."""
    tests = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, reason = line.partition(" ")
            tests[name] = reason.strip()
    return tests


def test_class(options):
    """Those of the wheel, with ranks that are forked: each would otherwise import torch anew for each test."""
    os.environ.update(BACKEND=options.backend, WORLD_SIZE=str(options.ranks), TEMP_DIR=tempfile.gettempdir())
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "100")
    import importlib

    import torch
    from torch.testing._internal import common_distributed

    common_distributed.logger.setLevel("ERROR")  # and not what it starts
    # It skips the tests of groups below 8 ranks; their groups need 3.
    common_distributed.skip_if_small_worldsize = lambda test: test
    if options.backend == "stormo":
        import stormo_torch  # noqa: F401  (registers the backend)

        for feature in ("plugin", "ddp", "subgroup"):
            common_distributed.DistTestCases.backend_feature[feature].add("stormo")
    if options.as_gloo:
        import stormo_torch.testing

        stormo_torch.testing.as_gloo()
    upstream = importlib.import_module(MODULE)

    class Upstream(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Upstream


class Result(unittest.TextTestResult):
    """Keeps what passed, and how long each test took."""

    def __init__(self, *arguments, **words):
        super().__init__(*arguments, **words)
        self.passed = []

    def startTest(self, test):
        self.started = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test):
        self.passed.append(test)
        if self.showAll:
            self.stream.write(f"{time.monotonic() - self.started:.1f} s ")
        super().addSuccess(test)


def names(tests):
    return {test.id().rsplit(".", 1)[1] for test in tests}


def of_other_sizes(result):
    """The tests that want another number of ranks; all others must run."""
    return names(test for test, reason in result.skipped if "world size" in reason)


def differences(expected, passed, failed):
    """What is not as the list says, a line each."""
    for name in sorted(failed):
        if name not in expected:
            yield f"{name} fails and is not in the list"
        elif not expected[name]:
            yield f"{name} fails"
    for name in sorted(passed):
        if name not in expected:
            yield f"{name} passes and is not in the list: add it"
        elif expected[name]:
            yield f"{name} passes; the list says that it fails ({expected[name]}): correct the list"
    for name in sorted(expected.keys() - passed - failed):
        yield f"{name} did not run"


def main():
    options = arguments()
    if not options.inside:
        return in_namespace(options)
    list_file = pathlib.Path(__file__).with_name(f"{options.backend}.txt")
    expected = read_list(list_file) if list_file.exists() else {}
    if options.backend == "gloo" and not options.as_gloo:  # the reasons are those of Stormo in its place
        expected = dict.fromkeys(expected, "")
    if options.tests:
        expected = {name: expected.get(name, "") for name in options.tests}
    tests = test_class(options)
    loader = unittest.TestLoader()
    chosen = loader.getTestCaseNames(tests) if options.record else sorted(expected)
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(
        unittest.TestSuite(tests(name) for name in chosen)
    )
    passed = names(result.passed)
    failed = names(test for test, _ in result.failures + result.errors)
    if options.record:
        known = {name: expected.get(name, "") or "FAILS, AND NOBODY SAYS WHY" for name in failed}
        lines = [f"{name} {known.get(name, '')}".strip() for name in sorted(passed | failed)]
        list_file.write_text("\n".join(lines) + "\n")
        return 0
    for name in of_other_sizes(result):
        expected.pop(name, None)
    wrong = list(differences(expected, passed, failed))
    for line in wrong:
        print(line)
    known = sum(1 for name in failed if expected.get(name))
    print(
        f"upstream: {options.backend}{' (stormo in its place)' if options.as_gloo else ''}, {options.ranks} ranks: "
        f"{len(passed)} of {len(expected)} tests of PyTorch passed, {known} failed as known, {len(wrong)} differ"
    )
    for rank in multiprocessing.active_children():  # of a test that failed; this process would wait for them
        rank.kill()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
