"""What `stormo train` leaves behind when a rank fails: traces up to the failure, and, of a stall, the
last operations of all ranks. And how often it says why.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import resource
import signal

from train_cli import DEADLINE_S, TrainTest, main, ranks_of


def events_of(path):
    """Names of the events in a trace file, by rank."""
    events = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            events.setdefault(event["pid"], set()).add(event["name"])
    return events


class FaultTest(TrainTest):
    def run_until_signal(self, number, ranks, *arguments):
        """A run whose rank 1 gets the signal after some steps: exit code and stderr."""
        run = self.start("mlp.toml", "--json", "--trace", "out.json", "-n", str(ranks), "steps=1000000", *arguments)
        self.read_until(run, "step", 3)
        os.kill(ranks_of(run)[1], number)
        _, err = run.communicate(timeout=DEADLINE_S)
        return run.returncode, err

    def test_a_killed_rank_costs_its_own_trace_only(self):
        code, err = self.run_until_signal(signal.SIGKILL, 2)
        self.assertNotEqual(code, 0, err)
        self.assertIn("trace up to the failure: out.json", err)
        events = events_of(self.folder / "out.json")
        self.assertEqual(set(events), {0})
        self.assertIn("forward", events[0])
        self.assertFalse((self.folder / "out.rank1.json").exists())

    def test_every_rank_that_learns_of_the_failure_leaves_its_part(self):
        (self.folder / "out.json.new").mkdir()  # rank 0 cannot write: said, and rank 1 still does
        code, err = self.run_until_signal(signal.SIGKILL, 3)
        self.assertNotEqual(code, 0, err)
        self.assertIn("cannot write the trace", err)
        self.assertEqual(set(events_of(self.folder / "out.rank2.json")), {2})

    def test_a_stall_leaves_last_operations_and_traces(self):
        code, err = self.run_until_signal(
            signal.SIGSTOP,
            2,
            "--heartbeat",
            "0s",
            "--stall-warning",
            "500ms",
            "--stall-timeout",
            "1s",
        )
        self.assertEqual(code, 1, err)
        self.assertIn("rank 1 (host ", err)
        self.assertIn("its process is stopped", err)
        self.assertIn("forward", events_of(self.folder / "out.json")[0])
        record = json.loads((self.folder / "out.json.flight.json").read_text())
        self.assertEqual(record["silent"], [1])
        operations = record["ranks"][0]["groups"][0]["operations"]
        self.assertEqual(operations[-1]["state"], "running")
        self.assertIn("step", record["ranks"][0]["doing"])

    def refused(self, *arguments, **options):
        """Exit code and stderr of a run of two ranks that does not come to its end."""
        run = self.start("mlp.toml", "-n", "2", "checkpoint.directory=", *arguments, **options)
        _, err = run.communicate(timeout=DEADLINE_S)
        return run.returncode, err

    def test_a_cause_is_said_once(self):
        diverges = ("steps=50", "optimizer.lr=1e6", "optimizer.weight_decay=1")
        for text, code, arguments in (
                ("the loss is", 1, diverges),
                ("the loss is", 1, (*diverges, "strategy.kind=parameter_server", "strategy.server_processes=1"))):
            with self.subTest(arguments):
                got, err = self.refused(*arguments)
                self.assertEqual(got, code, err)
                self.assertEqual(err.count(text), 1, err)
        code, err = self.refused(environment={"STORMO_THREADS": "many"})
        self.assertEqual((code, err.count("STORMO_THREADS='many'"), len(err.splitlines())), (2, 1, 1), err)

    def test_files_that_may_not_hold_the_shared_memory_are_named_once(self):
        limit = 1000 << 10
        code, err = self.refused(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual((code, len(err.splitlines())), (2, 1), err)
        self.assertIn("a file may have at most 1000 KiB here; raise the limit to 1 GiB or more (ulimit -f", err)


if __name__ == "__main__":
    main()
