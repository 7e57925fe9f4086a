"""Elastic jobs for tests of the built program: run, watched record by record, and compared with one process.

Usage of each: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import contextlib
import json
import os
import pathlib
import signal
import time

from train_cli import DEADLINE_S, TrainTest, children_of, if_there, ranks_of

STEPS_AFTER = 20  # that show that a job trains
MANY = 1_000_000  # steps: the test ends the run
SILENCE = "elastic.silence=5"  # who lives is not lost on a busy machine, either

# Ranks that train on by themselves.
AVERAGES = ("strategy.kind=parameter_averaging", "strategy.period=4")
DILOCO = (*AVERAGES, "strategy.outer=nesterov")
GOSSIP = ("strategy.kind=gossip", "strategy.topology=ring")


class Job:
    """A running elastic job, read record by record."""

    def __init__(self, test, ranks, *words, recipe="mlp.toml", **options):
        self.test = test
        here = () if ranks is None else ("-n", str(ranks))  # else `words` say where
        self.process = test.start(recipe, *here, "--json", "precision=float64", "elastic.enabled=true",
                                  SILENCE, f"train.steps={MANY}", *words, **options)
        self.records = []
        self.losses = {}
        self.step = 0
        self.epochs = []  # (number, ranks, step)
        self.changes = []  # the records of them
        self.end = None  # the last record
        self.unread = range(0)  # steps whose reports may be lost with the launcher
        self.left = {}  # what a killed launcher leaves: the ranks, by number
        self.processes = []  # and all of its processes
        self.outputs = {}  # files of its ranks -> how far they were read

    def line(self):
        if not self.left:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"the job ended: {self.process.wait()}\n{self.process.stderr.read()}")
            return line
        by = time.monotonic() + DEADLINE_S
        while time.monotonic() < by:
            for path in self.test.folder.glob("run/rank-*.out"):
                begin = self.outputs.get(path, 0)
                line, end, _ = path.read_bytes()[begin:].partition(b"\n")
                if not end:
                    continue
                self.outputs[path] = begin + len(line) + 1
                if begin > 0 or line.startswith(b'{"event"'):  # else the launcher has read the beginning of it
                    return line.decode()
            time.sleep(0.01)
        raise AssertionError("the ranks have said nothing more:\n" + "\n".join(
            path.read_text() for path in self.test.folder.glob("run/rank-*.err")))

    def read(self):
        self.note(json.loads(self.line()))

    def note(self, record):
        self.records.append(record)
        if record["event"] == "step":
            self.test.assertEqual(self.losses.setdefault(record["step"], record["loss"]), record["loss"],
                                  "a step was reported twice, with other losses")
            self.step = record["step"]
        if record.get("kind") == "membership":
            self.changes.append(record)
            self.epochs.append((record["epoch"], record["ranks"], record["step"]))

    def until(self, condition):
        while not condition():
            self.read()

    def until_step(self, step):
        self.until(lambda: self.step >= step)

    def until_ranks(self, ranks):
        """Until so many train in an epoch that has not been seen before, and have done some steps."""
        seen = len(self.epochs)
        self.until(lambda: self.epochs[seen:] and self.epochs[-1][1] == ranks)
        self.until_step(self.epochs[-1][2] + STEPS_AFTER)

    def until_joined(self, count, ranks):
        """Until so many have joined in all, and so many train; as above."""
        self.until(lambda: len(self.names("joined")) == count and self.epochs[-1][1] == ranks)
        self.until_step(self.epochs[-1][2] + STEPS_AFTER)

    def send(self, rank, number):
        os.kill((self.left or ranks_of(self.process))[rank], number)

    def kill_launcher(self):
        """From now on its ranks are looked for among what it has left."""
        for path in self.test.folder.glob("run/rank-*"):
            path.unlink()  # of a job before
        left, self.processes = ranks_of(self.process), list(children_of(self.process.pid))
        self.process.kill()
        for line in self.process.stdout:  # what it had written
            if line.endswith("\n"):
                self.note(json.loads(line))
        self.process.wait()
        self.left = left
        self.unread = range(self.step + 1, self.step + 101)

    def stop_rank(self, rank):
        """By a person's signal to a rank of a job without launcher. Returns the last step."""
        self.left.update(self.ranks_left())
        self.send(rank, signal.SIGTERM)
        self.until(lambda: self.records[-1]["event"] == "end")
        self.until_gone()
        return self.records[-1]["steps"]

    def ranks_left(self):
        """Those that run, started by whomever: rank -> process id."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ends meanwhile, or is another user's
                if os.readlink(entry / "cwd").startswith(str(self.test.folder)):
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    found.update((int(v.split(b"=")[1]), int(entry.name)) for v in variables
                                 if v.startswith(b"STORMO_RANK="))
        return found

    def names(self, what):
        """Of all epochs so far: the local ranks that were lost, have left, or have joined, in order."""
        return [int(name.rpartition("/")[2]) for record in self.changes for name in record[what]]

    def until_gone(self):
        """Until nothing is left of a job whose launcher was killed."""
        by = time.monotonic() + DEADLINE_S
        while any(self.lives(pid) for pid in self.processes):
            self.test.assertLess(time.monotonic(), by, f"processes are left: {self.processes}")
            time.sleep(0.01)

    @staticmethod
    def lives(pid):
        """A zombie that nobody waits for does not."""
        state = if_there(pathlib.Path(f"/proc/{pid}/stat").read_text, "")
        return state != "" and state.rpartition(")")[2].split()[0] != "Z"

    def lose(self, rank):
        """Kills it, once the job trains."""
        self.until_step(STEPS_AFTER)
        self.send(rank, signal.SIGKILL)

    def stop(self):
        """By a scheduler's signal. Returns the last step, and stderr."""
        self.process.send_signal(signal.SIGTERM)
        code, records, err = self.test.outcome_of(self.process)
        for record in records:
            self.note(record)
        self.end = records[-1]
        self.test.assertEqual((self.end["event"], code), ("end", 143), err)
        return records[-1]["steps"], err


class ElasticTest(TrainTest):
    def assert_ends_without_the_state(self, job):
        """Of two ranks, one of which dies while the other one gets the state. If that one is late it has the state
        already, and their parts change."""
        job.lose(1)
        for victim in (0, 1, 0, 1):
            seen = len(job.epochs)
            job.until(lambda seen=seen: job.epochs[seen:] and job.epochs[-1][1] == 2)
            job.send(victim, signal.SIGKILL)
            for line in iter(job.process.stdout.readline, ""):
                job.note(json.loads(line))
                if job.epochs[-1][1] == 1:
                    break
            else:
                break
        code, _, err = self.outcome_of(job.process)
        self.assertEqual(code, 75, err)
        self.assertRegex(err, r"/[01]: all members that had the state, or a part of it, have ended; resume from the last "
                              r"checkpoint\n")

    def assert_edges_only(self, job, steps):
        """Epochs have ended without a fault: only of their last steps there is perhaps no report."""
        silent = set(range(1, steps + 1)) - set(job.losses)
        self.assertLessEqual(silent, {step for _, _, step in job.epochs})

    def assert_as_one_process(self, job, steps, recipe="mlp.toml", words=()):
        """Whoever came and went: each step had the samples and the weights of a run of one process."""
        done = self.stormo("train", recipe, "--json", "precision=float64", f"train.steps={steps}",
                           "checkpoint.directory=one", "--overwrite", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = {r["step"]: r["loss"] for r in map(json.loads, done.stdout.splitlines()) if r["event"] == "step"}
        # only the last ones before an epoch or the end have perhaps no report: who is killed has not written all
        silent = set(range(1, steps + 1)) - set(job.losses) - set(job.unread)
        self.assertLess(len(silent), steps // 2, sorted(silent))
        edges = {steps, *(base for _, _, base in job.epochs)}
        for step in silent:
            self.assertTrue(any(silent.issuperset(range(step, edge + 1)) for edge in edges if edge >= step),
                            f"step {step} has no report; epochs: {job.epochs}, silent: {sorted(silent)}")
        for step, loss in job.losses.items():
            self.assertAlmostEqual(loss, expected[step], delta=1e-9 * max(1, abs(expected[step])), msg=f"step {step}")

    def assert_as_without_deaths(self, job, ranks, *words):
        """The last losses of ranks that train on by themselves: those of a run of so many, of whom none is lost."""
        done = self.stormo("train", "mlp.toml", "-n", str(ranks), "--json", "precision=float64",
                           f"train.steps={job.step}", "checkpoint.directory=undisturbed", "--overwrite", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = {r["step"]: r["loss"] for r in map(json.loads, done.stdout.splitlines()) if r["event"] == "step"}
        last = sorted(job.losses)[-STEPS_AFTER:]
        of_job, without = (sum(losses[step] for step in last) / len(last) for losses in (job.losses, expected))
        self.assertAlmostEqual(of_job, without, delta=0.03, msg=f"steps {last[0]} to {last[-1]}")

    def assert_evaluated_as_one_process(self, job, steps, recipe, words):
        """Likewise its evaluations."""
        one = self.lines(recipe, "precision=float64", f"train.steps={steps}", "checkpoint.directory=one",
                         "--overwrite", *words)
        expected = {r["step"]: r["loss"] for r in one if r["event"] == "eval"}
        found = {r["step"]: r["loss"] for r in job.records if r["event"] == "eval" and r["step"] < steps}
        self.assertGreater(len(found), len(expected) // 2)
        for step, loss in found.items():
            self.assertAlmostEqual(loss, expected[step], delta=1e-9 * abs(loss), msg=f"after step {step}")


class ResizableTest(ElasticTest):
    """Its jobs are found by `stormo resize`, in a login of their own."""

    def setUp(self):
        super().setUp()
        login = self.folder / "login"
        login.mkdir(mode=0o700)
        self.login = {"XDG_RUNTIME_DIR": str(login), "HOME": str(self.folder)}

    def start(self, *arguments, environment=None, **options):
        return super().start(*arguments, environment={**self.login, **(environment or {})}, **options)

    def resize(self, *words):
        """The job is always named: those of other tests may run here, too."""
        return self.stormo("resize", *map(str, words), environment=self.login)
