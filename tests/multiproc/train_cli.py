"""What the tests of the built program share: small recipes and data, and a case that runs it.

Usage of each: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import contextlib
import faulthandler
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree

from small_data import write_mnist

FILE = pathlib.Path(sys.argv[0])
STORMO = sys.argv[1]
REPOSITORY = pathlib.Path(sys.argv[2])
DEADLINE_S = 120
LONG_FORM = "STORMO_LONG_TESTS" in os.environ  # ./check --full

MLP = """schema_version = 1
name = "small"
[model]
kind = "mlp"
sizes = [784, 16, 10]
[train]
steps = 6
global_batch = 8
log_every = 1
[checkpoint]
directory = "run"
"""

GPT = """schema_version = 1
name = "letters"
[model]
kind = "gpt"
layers = 1
heads = 2
width = 16
context = 16
[data]
kind = "text"
path = "text"
[train]
steps = 3
global_batch = 4
log_every = 1
[optimizer]
kind = "adamw"
lr = 1e-3
[sample]
length = 20
"""


def if_there(look, otherwise):
    """Threads and processes end while one looks at them."""
    try:
        return look()
    except (FileNotFoundError, ProcessLookupError):
        return otherwise


def need_mounts():
    """A test mounts something that only its own processes see."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("root: a mount of its own needs root")
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:  # in a chroot, whose root is no mount
        raise unittest.SkipTest(f"machine: a process cannot have mounts of its own: {probe.stderr.strip()}")


def open_terminal():
    """Both ends of a pseudo-terminal."""
    try:
        return pty.openpty()
    except OSError as error:
        raise unittest.SkipTest(f"machine: there are no terminals, /dev/pts is not mounted: {error}") from error


def children_of(pid):
    """All processes below one."""
    for listed in if_there(lambda: list(pathlib.Path(f"/proc/{pid}/task").glob("*/children")), []):
        for child in if_there(listed.read_bytes, b"").split():
            yield int(child)
            yield from children_of(int(child))


def ranks_of(process):
    """Rank -> process id of a running job."""
    found = {}
    for pid in children_of(process.pid):
        for entry in if_there(pathlib.Path(f"/proc/{pid}/environ").read_bytes, b"").split(b"\0"):
            if entry.startswith(b"STORMO_RANK="):
                found[int(entry.split(b"=")[1])] = pid
    return found


def kill_all_in(folder):
    """Processes that work there: ranks that go on without their launcher, when a test has failed."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ends meanwhile, or is another user's
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(folder)):
                os.kill(int(pid), signal.SIGKILL)


class TrainTest(unittest.TestCase):
    def setUp(self):
        self.refused_dry = False
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.addCleanup(kill_all_in, self.folder)
        (self.folder / "mlp.toml").write_text(MLP)
        (self.folder / "gpt.toml").write_text(GPT)
        write_mnist(self.folder / "data" / "mnist")
        (self.folder / "text").mkdir()
        (self.folder / "text" / "a.txt").write_text("to be or not to be, that is it\n" * 60)

    def stormo(self, *arguments, environment=None):
        process = self.start_program(*arguments, environment=environment)
        out, err = process.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, *arguments, **options):
        """A `stormo train` that runs, and is killed with its test. Its output is piped, as text, unless
        `options`, those of Popen, say otherwise."""
        return self.start_program("train", *arguments, **options)

    def start_program(self, *arguments, environment=None, **options):
        process = subprocess.Popen(
            [STORMO, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            **{"cwd": self.folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options})
        self.enterContext(process)  # waits for it
        self.addCleanup(process.kill)
        return process

    def outcome_of(self, process):
        """When it has ended: exit code, records and stderr."""
        records = [json.loads(line) for line in process.stdout]  # communicate() would lose what is read ahead
        _, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, records, err

    def read_until(self, process, event, step=0):
        """The first record of this kind, of this step or a later one."""
        for line in process.stdout:
            record = json.loads(line)
            if record["event"] == event and record.get("step", 0) >= step:
                return record
        self.fail(f"no '{event}': {process.stderr.read()}")

    def read_until_saved(self, run, step=1):
        """Until a checkpoint of this step or a later one. With servers it is the step of the slowest worker."""
        self.read_until(run, "step", 30)
        latest = self.folder / "run" / "latest"
        while not latest.exists() or int(latest.readlink().name.removeprefix("step-")) < step:
            self.read_until(run, "step")

    def assert_tf_config_is_refused(self, *arguments, servers):
        """For workers of several ranks: TF_CONFIG has one process for each worker."""
        ports = [f"127.0.0.1:{port}" for port in range(1, servers + 2)]
        config = {"cluster": {"chief": ports[:1], "ps": ports[1:]}, "task": {"type": "chief", "index": 0}}
        run = self.stormo("train", *arguments, environment={"TF_CONFIG": json.dumps(config)})
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("TF_CONFIG describes one process for each worker", run.stderr)

    def assert_lost_rank_ends_job(self, *arguments):
        """Rank 1 of a job that trains without an end is killed: the job ends at once and names it."""
        run = self.start(*arguments, "--json")
        self.read_until(run, "step", 5)
        self.assert_killed_rank_ends(run)
        self.assertNotEqual(run.returncode, 0)

    def assert_killed_rank_ends(self, run):
        """Kills rank 1 of a running job, which ends at once and names it."""
        os.kill(ranks_of(run)[1], signal.SIGKILL)
        begin = time.monotonic()
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertIn("rank 1", err)

    def lines(self, *arguments):
        done = self.stormo("train", *arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def accesses(self, recipe, *arguments):
        """What each rank, and "none" who is no rank, did to the files of data."""
        library, log = self.folder / "access.so", self.folder / "access.log"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library,
                        REPOSITORY / "tests/multiproc/access_log.c", "-ldl"], check=True)
        log.unlink(missing_ok=True)
        run = self.start(recipe, *arguments, "--overwrite", environment={
            "LD_PRELOAD": str(library), "ACCESS_LOG": str(log), "ACCESS_LOG_FOLDER": f"{self.folder.resolve()}/",
            "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"})
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 0, err)
        lines = [line.rsplit(" ", 4) for line in log.read_text().splitlines()]
        return [(rank, operation, path, int(offset), int(size)) for rank, operation, path, offset, size in lines
                if path.endswith((".csv", ".npy"))]

    def clock_ahead(self, rank):
        """An environment in which the wall clock of this rank is five seconds ahead."""
        library = self.folder / "clock_ahead.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, REPOSITORY / "tests/multiproc/clock_ahead.c"], check=True)
        return {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(rank)}

    def assert_causal(self, path, ranks=2, slack_us=100):
        """In a trace of two ranks that send to each other, nothing is received before it was sent, and no all_reduce
        ends before the other rank has begun it; to a tenth of a millisecond, or `slack_us`."""
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
        self.assertEqual({e["pid"] for e in events}, set(range(ranks)))

        def spans(rank, name, lane):
            """In their order among those of equal size: a receive may be called before that of an earlier message."""
            return sorted((e.get("args", {}).get("bytes", 0), e["ts"], e["ts"] + e["dur"]) for e in events
                          if (e["pid"], e["name"], e["cat"]) == (rank, name, lane))

        for mine, other in ((0, 1), (1, 0)):
            for begun, ended in (("send", "recv"), ("all_reduce", "all_reduce")):
                # in a host a rank first waits for the others, and may wake long after they have gone on
                begins = spans(mine, begun, "wait") or spans(mine, begun, "communication")
                self.assertGreater(len(begins), 0)
                for (_, start, _), (_, _, end) in zip(begins, spans(other, ended, "communication"), strict=True):
                    self.assertLessEqual(start, end + slack_us, f"{begun} of rank {mine}, {ended} of rank {other}")

    def refused(self, *arguments):
        """The messages of a command that must start nothing and write nothing. So must the first of a test with
        --dry-run, in the long form each."""
        before = sorted(self.folder.rglob("*"))
        ways = [[]] if self.refused_dry and not LONG_FORM else [[], ["--dry-run"]]
        self.refused_dry = True
        for process in [self.start(*arguments, *dry) for dry in ways]:  # side by side
            out, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 2, f"{arguments}: {out}{err}")
            self.assertEqual(out, "")
        self.assertEqual(before, sorted(self.folder.rglob("*")), arguments)
        return err


class Results(unittest.TextTestResult):
    """Also leaves skips, failures and times for tools/test_report, as GoogleTest does: in the folder of GTEST_OUTPUT."""

    def __init__(self, *arguments, **words):
        super().__init__(*arguments, **words)
        self.seconds = {}

    def startTest(self, test):
        super().startTest(test)
        self.seconds[test.id()] = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self.seconds[test.id()]

    def stopTestRun(self):
        super().stopTestRun()
        folder = os.environ.get("GTEST_OUTPUT", "").removeprefix("xml:")
        if folder:
            suite = xml.etree.ElementTree.Element("testsuite")
            marks = [("skipped", test.id(), reason) for test, reason in self.skipped]
            marks += [("failure", test.id(), trace) for test, trace in self.failures + self.errors]
            marked = {name for _, name, _ in marks}
            for kind, name, text in [*marks, *(("", name, "") for name in self.seconds if name not in marked)]:
                case = xml.etree.ElementTree.SubElement(suite, "testcase", classname=FILE.stem, name=name,
                                                        time=f"{self.seconds.get(name, 0):.3f}")
                if kind:
                    xml.etree.ElementTree.SubElement(case, kind, message=text)
            xml.etree.ElementTree.ElementTree(suite).write(pathlib.Path(folder) / f"{FILE.stem}.xml")


def tell_where_it_hangs():
    """Before ctest ends the test without a word: where it waits, and what processes of Stormo are in."""
    faulthandler.dump_traceback(all_threads=True)
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (process / "cmdline").read_text().split("\0")
            if not any("stormo" in word for word in words):
                continue
            state, parent = (process / "stat").read_text().rpartition(") ")[2].split()[:2]
            waits = [(thread / "wchan").read_text() for thread in process.glob("task/*")]
            print(process.name, "of", parent, state, *waits, *words, file=sys.stderr)
    os._exit(1)


def main():
    if limit := os.environ.get("STORMO_TEST_TIMEOUT"):
        watch = threading.Timer(float(limit) - 15, tell_where_it_hangs)
        watch.daemon = True
        watch.start()
    runner = unittest.TextTestRunner(resultclass=Results)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], testRunner=runner)
