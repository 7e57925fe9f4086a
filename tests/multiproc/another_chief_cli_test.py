"""stormo train with servers that have backups: when the first worker is lost, another one keeps the run.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import os
import pathlib
import signal
import subprocess
import time

from train_cli import DEADLINE_S, LONG_FORM, TrainTest, main, ranks_of

STEPS = 700  # enough that no run is over before its first worker is lost
LONG = (f"steps={STEPS}", "data.path=data/mnist", "--log-csv", "run.csv")
SERVED = ("-n", "5", "strategy.kind=parameter_server", "strategy.server_processes=2", "strategy.servers=2")
BACKUPS = (*SERVED, "strategy.server_backups=true")
WORKERS = 3
IN_FSYNC = """#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int fd) {
  const char* rank = getenv("STORMO_RANK");
  if (rank != NULL && rank[0] == '0') { %s; }
  return (int)syscall(SYS_fsync, fd);
}
"""


class AnotherChiefTest(TrainTest):
    def begin(self, *arguments, step=30, **options):
        """A run that has come to a step."""
        run = self.start("mlp.toml", "--json", *LONG, *BACKUPS, "--overwrite", *arguments, **options)
        self.read_until(run, "step", step)
        return run

    def library(self, name, text):
        """An environment in which it is preloaded."""
        source = self.folder / f"{name}.c"
        source.write_text(text)
        library = self.folder / f"{name}.so"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        return {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}

    def checkpoints(self):
        return sorted(int(p.name[5:]) for p in (self.folder / "run").glob("step-*"))

    def assert_goes_on(self, run, lost=1, chief=1):
        """To its last step, with what a chief does, and with every push that was acknowledged."""
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 0, err)
        self.assertEqual(err.count("; the job goes on without it"), lost, err)
        end = records[-1]
        self.assertEqual((end["event"], end["steps"], end["samples"] > 0), ("end", STEPS, True))
        warnings = [r for r in records if r["event"] == "warning" and r["kind"] == "another_chief"]
        self.assertIn(f"worker {chief} evaluates, saves and reports", warnings[-1]["message"])
        # at two shards
        gradients = sum(worker["gradients"] for worker in end["staleness"])
        self.assertGreaterEqual(gradients, 2 * (WORKERS * STEPS - lost), "but for a batch in flight of each")
        self.assertLessEqual(gradients, 2 * WORKERS * STEPS, "and nothing twice")
        self.assertEqual(self.checkpoints()[-1], STEPS)
        evaluated = self.stormo("evaluate", "run", "data.path=data/mnist", "--json")
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
        return records, err

    def test_a_killed_first_worker_is_replaced(self):
        # each policy and each moment: tests/unit/server/another_chief_test.cc
        cases = (("async", 30), ("ssp", 500), ("sync", 300))
        self.lines("mlp.toml", "steps=20", "data.path=data/mnist")  # a run that is overwritten
        for policy, step in cases if LONG_FORM else cases[:2]:
            with self.subTest(policy):
                run = self.begin(f"strategy.policy={policy}", step=step)
                os.kill(ranks_of(run)[0], signal.SIGKILL)
                since = time.monotonic()
                records, err = self.assert_goes_on(run)
                self.assertLess(time.monotonic() - since, 100)
                self.assertEqual(self.checkpoints(), [STEPS], "of no run before")
                self.assertIn("worker 0, which keeps the run, was lost: its process has ended; worker 1 takes its place", err)
                steps = [r["step"] for r in records if r["event"] == "step"]
                self.assertEqual(steps, sorted(steps))
                rows = (self.folder / "run.csv").read_text().splitlines()
                self.assertEqual([number for number, row in enumerate(rows) if row.startswith("step,")], [0], "one head")
                self.assertEqual(rows[-1].split(",")[0], str(STEPS))

    def test_it_evaluates_and_saves_from_there_on(self):
        run = self.begin("train.eval_every=100", "checkpoint.every=100", "checkpoint.keep=50", step=150)
        while not (self.folder / "run" / "latest").exists():
            self.read_until(run, "step")
        os.kill(ranks_of(run)[0], signal.SIGKILL)
        records, _ = self.assert_goes_on(run)
        evaluated = [r["step"] for r in records if r["event"] == "eval" and r["split"] == "test"]
        self.assertEqual(evaluated[-1], STEPS)
        # of one run: a checkpoint of another one in the folder would be refused
        saved = self.checkpoints()
        self.assertLess(saved[0], 300, "the first chief's")
        self.assertGreater(len(saved), 3, "of each chief, and the last")
        rest = self.lines("mlp.toml", f"steps={STEPS + 10}", "data.path=data/mnist", *BACKUPS, "--resume")
        self.assertEqual((rest[0]["first_step"], rest[-1]["steps"]), (STEPS, STEPS + 10))

    def test_a_first_worker_that_is_lost_at_its_end_is_replaced(self):
        """Each fsync() of it takes a quarter of a second, so that it is killed while it saves."""
        slow = self.library("slow", IN_FSYNC % "usleep(250000)")
        run = self.begin(step=STEPS, environment=slow)
        first = ranks_of(run)[0]
        self.assertFalse(self.checkpoints())
        os.kill(first, signal.SIGKILL)
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 0, err)
        self.assertEqual((records[-1]["event"], records[-1]["steps"]), ("end", STEPS))
        self.assertEqual(self.checkpoints(), [STEPS])
        self.assertEqual(self.stormo("evaluate", "run", "data.path=data/mnist").returncode, 0)

    def test_a_stopped_first_worker_is_ended_and_replaced(self):
        run = self.begin("strategy.worker_timeout=5")
        first = ranks_of(run)[0]
        os.kill(first, signal.SIGSTOP)
        self.assert_goes_on(run)
        self.assertFalse(pathlib.Path(f"/proc/{first}").exists(), "it was killed")

    def test_a_first_worker_that_hangs_is_ended_and_replaced(self):
        """In fsync(), as on a network file system that does not answer. The rest of the process lives."""
        for policy in ("sync", "async") if LONG_FORM else ("sync",):
            with self.subTest(policy):
                (self.folder / "hang").unlink(missing_ok=True)
                run = self.begin("--stall-warning", "2s", "--stall-timeout", "5s", f"strategy.policy={policy}",
                                 "checkpoint.every=50", "checkpoint.asynchronous=false",
                                 environment=self.library("hang", IN_FSYNC % 'if (access("hang", F_OK) == 0) pause()'))
                (self.folder / "hang").touch()
                _, err = self.assert_goes_on(run)
                self.assertIn("was lost: it has made no progress", err)

    def test_one_after_the_other(self):
        run = self.begin()
        processes = ranks_of(run)
        os.kill(processes[0], signal.SIGKILL)
        self.read_until(run, "warning")
        self.read_until(run, "step")
        os.kill(processes[1], signal.SIGKILL)
        self.assert_goes_on(run, lost=2, chief=2)

    def test_a_server_before_and_a_server_after(self):
        for server, server_first in ((3, True), (4, False)):
            with self.subTest(server):
                run = self.begin()
                processes = ranks_of(run)
                first, second = (server, 0) if server_first else (0, server)
                os.kill(processes[first], signal.SIGKILL)
                self.read_until(run, *(("step", 150) if server_first else ("warning",)))
                os.kill(processes[second], signal.SIGKILL)
                code, records, err = self.outcome_of(run)
                self.assertEqual(code, 0, err)
                self.assertEqual(records[-1]["steps"], STEPS)
                gradients = sum(worker["gradients"] for worker in records[-1]["staleness"])
                self.assertGreaterEqual(gradients, 2 * (WORKERS * STEPS - 1))

    def test_a_worker_of_several_ranks_takes_over(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "6", *BACKUPS[2:], "strategy.worker_ranks=2")
        self.read_until(run, "step", 30)
        os.kill(ranks_of(run)[1], signal.SIGKILL)  # the second rank of the first worker
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 0, err)
        self.assertEqual((records[-1]["event"], records[-1]["steps"]), ("end", STEPS))
        self.assertEqual(self.checkpoints(), [STEPS])

    def test_the_last_worker_is_needed(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "4", *BACKUPS[2:], "checkpoint.every=10")
        self.read_until_saved(run)
        processes = ranks_of(run)
        for worker in (1, 0):
            os.kill(processes[worker], signal.SIGKILL)
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 75, err)
        self.assertIn("--resume", err)

    def test_without_backups_it_is_said_that_they_would_have_helped(self):
        run = self.start("mlp.toml", "--json", *LONG, *SERVED, "strategy.worker_timeout=5")
        self.read_until(run, "step", 30)
        os.kill(ranks_of(run)[0], signal.SIGSTOP)
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 1, err)
        self.assertIn("with strategy.server_backups=true another worker would take its place", err)


if __name__ == "__main__":
    main()
