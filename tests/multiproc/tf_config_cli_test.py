"""stormo train with processes that are started one by one, each with its place in TF_CONFIG.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import resource
import shutil
import signal
import socket

from train_cli import DEADLINE_S, TrainTest, main


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class TfConfigTest(TrainTest):
    def start_task(self, cluster, kind, index, *arguments, variables={}, **options):
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        return self.start("mlp.toml", "strategy.kind=parameter_server", "steps=24", *arguments,
                          environment={"TF_CONFIG": config, **variables}, **options)

    def test_tf_config_alone_runs_the_same(self):
        cluster = {"chief": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}"],
                   "ps": [f"127.0.0.1:{free_port()}"]}
        tasks = [self.start_task(cluster, *task) for task in (("worker", 0), ("ps", 0))]
        tasks.append(self.start_task(cluster, "chief", 0, "--json"))
        tasks.append(self.start_task(cluster, "evaluator", 0, "--json"))
        outputs = [task.communicate(timeout=DEADLINE_S) for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [0, 0, 0, 0], outputs)
        end = json.loads(outputs[2][0].splitlines()[-1])
        self.assertEqual((end["event"], end["steps"], end["ranks"]), ("end", 24, 2))
        evaluated = [json.loads(line) for line in outputs[3][0].splitlines()]
        self.assertEqual(evaluated[-1]["step"], 24)
        self.assertAlmostEqual(evaluated[-1]["accuracy"], end["test_accuracy"], places=6)

    def test_workers_without_servers_are_mirrored(self):
        cluster = {"chief": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}"]}
        ends = []
        for config in ([{"cluster": cluster, "task": {"type": kind, "index": "0"}} for kind in ("worker", "chief")],
                       [None]):
            tasks = [self.start("mlp.toml", "strategy.kind=multi_worker_mirrored", "checkpoint.directory=", "--json",
                                *([] if c else ["-n", "2"]), environment={"TF_CONFIG": json.dumps(c)} if c else {})
                     for c in config]
            outputs = [task.communicate(timeout=DEADLINE_S) for task in tasks]
            self.assertEqual([task.returncode for task in tasks], [0] * len(tasks), outputs)
            ends.append(json.loads(outputs[-1][0].splitlines()[-1]))
            self.assertEqual(ends[-1]["ranks"], 2)
        self.assertEqual(ends[0]["weights_hash"], ends[1]["weights_hash"])

    def test_tf_config_processes_say_whom_they_wait_for(self):
        cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}"]}
        elsewhere = {**cluster, "ps": [f"127.0.0.1:{free_port()}"]}

        def start(*task, limit="5s", of=cluster):
            config = json.dumps({"cluster": of, "task": {"type": task[0], "index": task[1]}})
            return self.start("mlp.toml", "strategy.kind=parameter_server", "strategy.policy=sync", "--json",
                              "checkpoint.directory=", environment={"TF_CONFIG": config, "STORMO_JOIN_TIMEOUT": limit})

        server, chief = start("ps", 0, limit="60s"), start("worker", 0, limit="60s")
        self.read_until(chief, "start")
        cases = [(start("worker", 0), "worker 0 is there already"),
                 (start("worker", 1, of=elsewhere), "cannot reach the server at " + elsewhere["ps"][0]),
                 (start("ps", 0), f"cannot listen on {cluster['ps'][0]}")]
        alone = {**cluster, "ps": [f"127.0.0.1:{free_port()}"]}
        cases.append((start("ps", 0, of=alone), "worker 0, the chief, did not come within 5"))
        for process, reason in cases:
            out, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 1, err)
            self.assertIn(reason, err)
            self.assertIn(reason, json.loads(out.splitlines()[-1])["message"])
        for line in chief.stderr:  # it may say before that the machine is busy
            if "waits for workers that have not come: 1" in line:
                break
        else:
            self.fail("the chief does not say whom it waits for")

    def test_tf_config_processes_that_are_all_stopped_save(self):
        cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}"]}
        server, second, chief = (self.start_task(cluster, *task, "train.steps=300000", "strategy.policy=sync", "--json")
                                 for task in (("ps", 0), ("worker", 1), ("worker", 0)))
        self.read_until(chief, "step", 20)
        for process in (server, chief, second):
            process.send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=DEADLINE_S) for process in (chief, second, server)]
        self.assertEqual((chief.returncode, second.returncode, server.returncode), (143, 143, 0), outputs)
        self.assertTrue(list((self.folder / "run").glob("step-*")))

    def test_tf_config_processes_whose_chief_fails_by_itself_end_with_1(self):
        cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}"]}
        tasks = [self.start_task(cluster, *task, "train.steps=300000", "checkpoint.every=10", "checkpoint.max_failures=1", "--json")
                 for task in (("worker", 0), ("worker", 1), ("ps", 0))]
        self.read_until_saved(tasks[0])
        resource.prlimit(tasks[0].pid, resource.RLIMIT_FSIZE, (1000, 1000))  # as if the disk were full
        outputs = [task.communicate(timeout=DEADLINE_S) for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [1, 1, 1], outputs)
        for _, err in outputs:
            self.assertIn("saving failed", err)

    def test_a_secret_that_is_none_is_refused_with_the_remedy(self):
        digits = "0123456789abcdef" * 4
        for name, text in (("short", digits[:-1]), ("long", digits + "\nand more"), ("words", "g" * 64), ("good", digits + "\n")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o600)
        os.mkfifo(self.folder / "pipe", 0o600)
        (self.folder / "open").write_text(digits)
        (self.folder / "open").chmod(0o644)
        cluster = {"worker": ["127.0.0.1:1"], "ps": ["a:1"]}
        cases = {"": "is set, but empty", "missing": "does not exist", "short": "has 63 hexadecimal digits",
                 "long": "has text after its 64", "words": "no hexadecimal digits", "pipe": "is a pipe", ".": "is a folder",
                 "open": "can be read by others", "good": "Name or service not known"}
        tasks = [(self.start_task(cluster, "ps", 0, variables={"STORMO_SECRET_FILE": name}), reason)
                 for name, reason in cases.items()]
        for task, reason in tasks:
            _, err = task.communicate(timeout=DEADLINE_S)
            self.assertNotEqual(task.returncode, 0)
            self.assertIn(reason, err)

    def test_workers_of_a_host_are_told_when_they_share_cores(self):
        cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}"]}
        tasks = [self.start_task(cluster, *task, variables={"OMP_NUM_THREADS": str(os.cpu_count())})
                 for task in (("ps", 0), ("worker", 0), ("worker", 1))]
        for task, says in zip(tasks, (False, True, True)):
            _, err = task.communicate(timeout=DEADLINE_S)
            self.assertEqual(task.returncode, 0, err)
            self.assertEqual("2 workers of the cluster on this host share" in err, says, err)

    def evaluated_with(self, *arguments):
        """A chief, a server and an evaluator."""
        cluster = {"chief": [f"127.0.0.1:{free_port()}"], "ps": [f"127.0.0.1:{free_port()}"]}
        return [self.start_task(cluster, kind, 0, "--json", "checkpoint.every=10", *arguments)
                for kind in ("evaluator", "ps", "chief")]

    def test_an_evaluator_ends_with_a_run_that_ends_early(self):
        evaluator, server, chief = self.evaluated_with("train.steps=300000")
        for _ in range(2):
            evaluated = json.loads(evaluator.stdout.readline())
        self.assertGreaterEqual(evaluated["step"], 20)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        self.assertEqual([os.getpriority(os.PRIO_PROCESS, process.pid) for process in (evaluator, server, chief)],
                         [19, own, own], "workers come first")
        chief.send_signal(signal.SIGTERM)
        code, records, err = self.outcome_of(evaluator)
        self.assertEqual(code, 0, err)
        self.assertIn("the run has ended after step", err)
        saved = max(int(path.name.removeprefix("step-")) for path in (self.folder / "run").glob("step-*"))
        self.assertEqual(records[-1]["step"], saved, "the last checkpoint is evaluated")

    def test_the_test_part_is_for_the_last_checkpoint(self):
        for name, rows in (("t.csv", 40), ("test.csv", 10)):
            (self.folder / name).write_text("x,y,label\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(rows)))
        (self.folder / "mlp.toml").write_text(
            'schema_version = 1\n[model]\nkind = "mlp"\nsizes = [2, 4, 2]\n[data]\nkind = "csv"\npath = "."\n'
            'train = "t.csv"\ntest = "test.csv"\nvalidation_fraction = 0.2\nstandardise = true\n'
            '[train]\nglobal_batch = 4\n[checkpoint]\ndirectory = "run"\n')
        for steps in (25, 300000):  # the second one ends early
            evaluator, server, chief = self.evaluated_with(f"train.steps={steps}")
            first, between = json.loads(evaluator.stdout.readline()), []
            if steps > 25:
                while len({r["step"] for r in between}) < 3:
                    between.append(json.loads(evaluator.stdout.readline()))
                chief.send_signal(signal.SIGTERM)
            code, rest, err = self.outcome_of(evaluator)
            self.assertEqual(code, 0, err)
            records = [first, *between, *rest]
            tests = [r["step"] for r in records if r["split"] == "test"]
            self.assertEqual(tests, [records[-1]["step"]], records)
            self.assertIn((tests[0], "validation"), [(r["step"], r["split"]) for r in records])
            shutil.rmtree(self.folder / "run")

    def test_a_lost_chief_leaves_75_where_there_is_a_checkpoint(self):
        evaluator, server, chief = self.evaluated_with("train.steps=300000")
        self.assertIn("step", json.loads(evaluator.stdout.readline()))
        chief.kill()
        out, err = server.communicate(timeout=DEADLINE_S)
        self.assertEqual(server.returncode, 75, err)
        self.assertIn("--resume", err)
        self.assertEqual(json.loads(out.splitlines()[-1])["exit_code"], 75)
        evaluator.communicate(timeout=DEADLINE_S)
        self.assertEqual(evaluator.returncode, 0)

    def test_an_evaluator_without_a_run(self):
        cluster = {"chief": ["127.0.0.1:1"], "ps": [f"127.0.0.1:{free_port()}"]}
        config = json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}})
        one, other = (self.start("mlp.toml", "strategy.kind=parameter_server", "--json",
                                 environment={"TF_CONFIG": config, "STORMO_JOIN_TIMEOUT": timeout})
                      for timeout in ("1s", "1h"))
        out, err = one.communicate(timeout=DEADLINE_S)
        self.assertEqual(one.returncode, 1, err)
        self.assertIn("none of its servers answers", err)
        self.assertEqual(json.loads(out)["exit_code"], 1)
        other.send_signal(signal.SIGTERM)
        other.communicate(timeout=DEADLINE_S)
        self.assertIn(other.returncode, (143, -signal.SIGTERM))

    def test_tf_config_tells_the_recipe_how_many_servers_there_are(self):
        cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
        tasks = [self.start_task(cluster, *task, "strategy.server_backups=true", "data.balance_by_speed=true", "--json")
                 for task in (("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1))]
        outputs = [task.communicate(timeout=DEADLINE_S) for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [0, 0, 0, 0], outputs)
        self.assertEqual(json.loads(outputs[0][0].splitlines()[-1])["steps"], 24)

    def test_a_wrong_tf_config_names_the_field(self):
        cluster = {"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}
        for task, arguments, reason in (
                (("master", 0), (), "task.type"),
                (("worker", 3), (), "task.index"),
                (("worker", 0), ("-n", "2"), "leave out -n"),
                (("worker", 0), ("strategy.kind=ddp",), "strategy.kind is neither parameter_server"),
                (("worker", 0), ("strategy.server_processes=4",), "cluster.ps"),
        ):
            with self.subTest(reason):
                done = self.start_task(cluster, *task, *arguments)
                _, err = done.communicate(timeout=DEADLINE_S)
                self.assertEqual(done.returncode, 2, err)
                self.assertIn(reason, err)

    def test_a_worker_with_another_recipe_is_refused(self):
        for change, names in (("optimizer.lr=0.7", ("optimizer.lr", "0.7")),
                              ("model.sizes=[784, 17, 10]", ("layer0.linear.bias", "[17]", "[16]"))):
            with self.subTest(change):
                cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}"]}
                same = ("strategy.policy=sync", "strategy.servers=1", "--overwrite")
                server = self.start_task(cluster, "ps", 0, *same)
                first = self.start_task(cluster, "worker", 0, *same, "--json")  # waits for the other one
                other = self.start_task(cluster, "worker", 1, *same, change)
                _, err = other.communicate(timeout=DEADLINE_S)
                self.assertEqual(other.returncode, 2, err)
                self.assertEqual(err.count("\n"), 1, err)
                for name in names:
                    self.assertIn(name, err)
                out, err = first.communicate(timeout=DEADLINE_S)
                _, told = server.communicate(timeout=DEADLINE_S)
                self.assertEqual((first.returncode, server.returncode), (0, 0), err)
                refused = next(line for line in told.splitlines() if "refused worker 1: " in line)
                for name in names:
                    self.assertIn(name, refused)
                self.assertNotIn("worker 1 was lost", told)
                counts = [worker["gradients"] for worker in json.loads(out.splitlines()[-1])["staleness"]]
                self.assertEqual(counts, [2 * 24, 0], "the servers took nothing of it, and the first does its steps")

    def test_a_killed_worker_is_started_again_and_takes_part(self):
        cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}"]}
        task = ("train.steps=300000", "strategy.policy=sync", "strategy.worker_timeout=60", "--json")
        server, second, chief = (self.start_task(cluster, *who, *task)
                                 for who in (("ps", 0), ("worker", 1), ("worker", 0)))
        self.read_until(chief, "step")
        chief.send_signal(signal.SIGSTOP)  # few steps are done, since all wait for all
        second.kill()
        self.assertIn("worker 1 was lost", self.line_with(server.stderr, "worker 1"))
        again = self.start_task(cluster, "worker", 1, *task)
        self.assertIn("worker 1 is back, as a new process", self.line_with(server.stderr, "worker 1"))
        chief.send_signal(signal.SIGCONT)
        self.read_until(chief, "step", 2000)
        chief.send_signal(signal.SIGTERM)
        out = chief.communicate(timeout=DEADLINE_S)[0]
        for process in (again, server):
            process.communicate(timeout=DEADLINE_S)
        self.assertEqual((chief.returncode, again.returncode, server.returncode), (143, 143, 0))
        end = json.loads(out.splitlines()[-1])
        self.assertGreater(end["staleness"][1]["gradients"], 1000)

    def line_with(self, stream, text):
        return next(line for line in stream if text in line)


if __name__ == "__main__":
    main()
