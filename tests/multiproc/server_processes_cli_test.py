"""stormo train with processes that hold the parameters: workers that come, are lost and come back.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import resource
import signal
import socket
import time

from train_cli import DEADLINE_S, TrainTest, main, ranks_of

SERVERS = ("strategy.kind=parameter_server", "strategy.server_processes=1")
STEPS = 1500  # of a run that is to be disturbed
LONG = (f"steps={STEPS}", "data.path=data/mnist")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ServerProcessesTest(TrainTest):
    def end_of(self, *arguments):
        end = self.lines("mlp.toml", "steps=24", *arguments)[-1]
        self.assertEqual(end["event"], "end")
        return end

    def gradients(self, end):
        """Of all workers, at each server."""
        return sum(worker["gradients"] for worker in end["staleness"])

    def test_every_worker_does_its_share(self):
        workers = ("-n", "4", *SERVERS, "strategy.servers=1")
        plan = self.stormo("train", "mlp.toml", *workers, "--dry-run").stdout
        self.assertIn("# step plan of 3 workers, beside 1 server process\n", plan)
        self.assertIn("\nmesh dp=3\n", self.stormo("plan", "show", "mlp.toml", *workers).stdout)
        self.assertIn("all 1 ranks are servers", self.stormo("plan", "show", "mlp.toml", "-n", "1", *SERVERS).stderr)
        start, *_, end = self.lines("mlp.toml", "steps=24", *workers)
        self.assertEqual((start["event"], start["strategy"]), ("start", "parameter_server"))
        self.assertNotIn("bytes_sent_per_rank", end, "workers send to servers, which nobody counts")
        self.assertEqual((end["steps"], end["samples"], end["ranks"]), (24, 24 * 8, 3))
        self.assertEqual([worker["gradients"] for worker in end["staleness"]], [24, 24, 24])
        end = self.end_of("-n", "4", "strategy.kind=parameter_server", "strategy.server_processes=2",
                          "strategy.servers=2", "--overwrite")
        self.assertEqual(self.gradients(end), 2 * 2 * 24, "two workers, two servers")

    def test_one_worker_is_the_run_of_one_process(self):
        alone = self.end_of("optimizer.momentum=0.9")
        served = self.end_of("-n", "2", *SERVERS, "optimizer.momentum=0.9", "--overwrite")
        self.assertEqual(served["weights_hash"], alone["weights_hash"])

    def test_all_that_wait_is_the_run_of_ranks_that_average(self):
        def test_loss(*arguments):
            records = self.lines("mlp.toml", "steps=24", "train.eval_every=24", "strategy.kind=parameter_server",
                                 "strategy.policy=sync", *arguments)
            return next(r["loss"] for r in records if r["event"] == "eval")

        ranks = test_loss("-n", "2")
        served = test_loss("-n", "3", "strategy.server_processes=1", "strategy.servers=2", "--overwrite")
        self.assertAlmostEqual(served, ranks, places=5)

    def test_a_centre_draws_workers_and_goes_on_from_its_checkpoint(self):
        elastic = ("-n", "3", "strategy.kind=elastic_averaging", "strategy.server_processes=1", "strategy.period=2")
        end = self.end_of(*elastic)
        self.assertEqual([worker["gradients"] for worker in end["staleness"]], [24, 24], "exchanges, on two shards")
        self.assertEqual(end["test_accuracy"], 1)
        rest = self.lines("mlp.toml", "steps=26", *elastic, "optimizer.lr=1e-9", "--resume")[-1]
        self.assertLess(rest["train_loss"], 0.6, "all began with the centre; new parameters have 2.3")

    def test_a_checkpoint_goes_on_here_and_elsewhere(self):
        whole = self.end_of("-n", "2", *SERVERS, "optimizer.kind=adamw")
        half = self.lines("mlp.toml", "steps=24", "train.steps=12", "-n", "2", *SERVERS, "optimizer.kind=adamw",
                          "--overwrite")[-1]
        self.assertEqual(half["steps"], 12)
        rest = self.end_of("-n", "2", *SERVERS, "optimizer.kind=adamw", "--resume")
        self.assertEqual(rest["weights_hash"], whole["weights_hash"])
        other = self.lines("mlp.toml", "steps=30", "-n", "2", "strategy.kind=ddp", "optimizer.kind=adamw",
                           "--resume")[-1]
        self.assertEqual(other["steps"], 30)

    def test_evaluates_and_saves_while_others_go_on(self):
        records = self.lines("mlp.toml", "steps=40", "-n", "3", *SERVERS, "train.eval_every=10", "checkpoint.every=10")
        evaluated = [r["step"] for r in records if r["event"] == "eval"]
        self.assertEqual(evaluated, [10, 20, 30, 40])
        self.assertTrue(list((self.folder / "run").glob("step-*")))

    def read_until_saved(self, run):
        self.read_until(run, "step", 30)
        while not (self.folder / "run" / "latest").exists():
            self.read_until(run, "step")

    def lost(self, number, *arguments, ranks=4):
        """Exit code, records and stderr of a run whose rank `number` is killed after some steps, and after
        the first checkpoint if there is one; and the seconds that it took after that."""
        run = self.start("mlp.toml", "--json", *LONG, "-n", str(ranks), *SERVERS, "strategy.servers=1", *arguments)
        if "checkpoint.every=10" in arguments:
            self.read_until_saved(run)
        else:
            self.read_until(run, "step", 30)
        os.kill(ranks_of(run)[number], signal.SIGKILL)
        since = time.monotonic()
        records = [json.loads(line) for line in run.stdout]  # communicate() would lose what is read ahead
        _, err = run.communicate(timeout=DEADLINE_S)
        return run.returncode, records, err, time.monotonic() - since

    def test_a_lost_worker_costs_its_batch_in_flight(self):
        for policy in ("async", "sync", "ssp"):
            with self.subTest(policy):
                code, records, err, _ = self.lost(2, f"strategy.policy={policy}", "--overwrite")
                self.assertEqual(code, 0, err)
                self.assertIn("killed by signal 9 (SIGKILL); the job goes on without it", err)
                self.assertIn("worker 2 was lost", err)
                end = records[-1]
                self.assertEqual((end["event"], end["steps"]), ("end", STEPS))
                counts = [worker["gradients"] for worker in end["staleness"]]
                self.assertGreaterEqual(sum(counts), 3 * STEPS - 1, "others did what was left, but for one batch")
                self.assertLessEqual(sum(counts), 3 * STEPS, "and nothing twice")
                self.assertLess(counts[2], STEPS)

    def test_a_lost_server_ends_the_run_at_once(self):
        code, _, err, seconds = self.lost(3, "checkpoint.every=10")
        self.assertEqual(code, 75, err)
        self.assertIn("rank 3", err)
        self.assertIn("--resume", err)
        self.assertLess(seconds, 5)

    def test_with_backups_any_server_may_be_lost(self):
        backups = ("strategy.server_processes=2", "strategy.server_backups=true", "strategy.servers=2")
        for server, policy in ((2, "async"), (3, "sync")):
            with self.subTest(server):
                code, records, err, seconds = self.lost(server, *backups, f"strategy.policy={policy}", "--overwrite")
                self.assertEqual(code, 0, err)
                self.assertIn("the job goes on without it", err)
                end = records[-1]
                self.assertEqual((end["event"], end["steps"]), ("end", STEPS))
                self.assertEqual([worker["gradients"] for worker in end["staleness"]], [2 * STEPS] * 2,
                                 "at two shards: nothing is lost, and nothing is twice")
                self.assertLess(seconds, 15)

    def test_with_backups_the_loss_of_both_ends_the_run(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "4", "strategy.kind=parameter_server",
                         "strategy.server_processes=2", "strategy.server_backups=true", "checkpoint.every=10")
        self.read_until_saved(run)
        processes = ranks_of(run)
        for server in (2, 3):
            os.kill(processes[server], signal.SIGKILL)
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 75, err)
        self.assertIn("--resume", err)

    def test_a_lost_first_worker_ends_the_run_at_once(self):
        code, _, err, seconds = self.lost(0)
        self.assertEqual(code, 1, err)
        self.assertIn("rank 0", err)
        self.assertLess(seconds, 5)

    def test_a_lost_first_worker_leaves_a_checkpoint_to_go_on_from(self):
        code, _, err, _ = self.lost(0, "checkpoint.every=10")
        self.assertEqual(code, 75, err)
        self.assertNotIn("finalize", err, "each process says once why it ends")
        self.assertIn("--resume", err)
        end = self.lines("mlp.toml", *LONG, "-n", "4", *SERVERS, "strategy.servers=1", "--resume")[-1]
        self.assertEqual(end["steps"], STEPS)

    def test_a_stopped_worker_is_lost_and_comes_back(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "4", *SERVERS, "strategy.policy=sync",
                         "strategy.servers=1", "strategy.worker_timeout=1")
        self.read_until(run, "step", 30)
        os.kill(ranks_of(run)[2], signal.SIGSTOP)
        step = self.read_until(run, "step", 200)["step"]  # waits for nobody after the timeout
        os.kill(ranks_of(run)[2], signal.SIGCONT)
        out, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 0, err)
        end = json.loads(out.splitlines()[-1])
        counts = [worker["gradients"] for worker in end["staleness"]]
        self.assertLessEqual(sum(counts), 3 * STEPS)
        self.assertGreaterEqual(sum(counts), 3 * STEPS - 2)
        self.assertGreater(counts[2], step // 3, "it came back")

    def test_a_signal_saves_and_the_run_goes_on_from_there(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "3", *SERVERS)
        self.read_until(run, "step", 20)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 143, err)
        records = [json.loads(line) for line in out.splitlines()]
        steps = [r["step"] for r in records if r["event"] == "step"]
        self.assertEqual(steps, sorted(steps), "steps of all workers: they do not go back at the end")
        self.assertEqual((records[-1]["event"], records[-1]["steps"]), ("end", steps[-1]))
        self.assertGreaterEqual(records[-1]["samples"], 8 * steps[-1])
        end = self.lines("mlp.toml", *LONG, "-n", "3", *SERVERS, "--resume")[-1]
        self.assertEqual(end["steps"], STEPS)

    def test_a_first_worker_that_fails_by_itself_is_not_taken_for_lost(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "3", *SERVERS, "checkpoint.every=10",
                         "checkpoint.max_failures=1")
        self.read_until_saved(run)
        resource.prlimit(ranks_of(run)[0], resource.RLIMIT_FSIZE, (1000, 1000))  # as if the disk were full
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 1, err)
        self.assertIn("saving failed", err)

    def test_steps_go_on_where_shares_are_not_equally_far(self):
        # what the model learns is wrong in the validation part: its loss grows
        for name, flip in (("t", 0), ("v", 1)):
            (self.folder / f"{name}.csv").write_text("x,k\n" + "".join(f"{i % 2},{'ab'[(i + flip) % 2]}\n" for i in range(16)))
        (self.folder / "data.toml").write_text("""schema_version = 1
[model]
kind = "mlp"
sizes = [1, 2]
[data]
kind = "csv"
path = "."
train = "t.csv"
validation = "v.csv"
[checkpoint]
directory = "run"
best = "loss"
[train]
steps = 1000000
global_batch = 16
eval_every = 1000
patience = 2
""")
        run = self.start("data.toml", "--json", "-n", "3", *SERVERS, "optimizer.lr=1.0", "strategy.worker_timeout=1",
                         "log_every=1")
        self.read_until(run, "step", 30)
        second = ranks_of(run)[1]
        os.kill(second, signal.SIGSTOP)  # its share stays where it is
        records = []
        while not records or records[-1]["event"] != "end":
            records.append(json.loads(run.stdout.readline()))
        os.kill(second, signal.SIGKILL)
        steps = [r["step"] for r in records if r["event"] == "step"]
        end = records[-1]
        self.assertEqual(run.wait(), 0, run.stderr.read())
        self.assertEqual(steps, sorted(steps))
        self.assertTrue(end["stopped_early"])
        self.assertEqual((end["steps"], end["samples"] // 16), (steps[-1], steps[-1]))
        self.assertGreaterEqual(steps[-1], 3000, "the evaluation that is best, and two more")
        saved = self.folder / end["checkpoint"]
        position = json.loads((saved / "manifest.json").read_text())["step"]
        self.assertLess(position, 3000, "from there a run goes on without leaving out a sample")
        self.assertEqual(saved, max(self.folder.glob("run/step-*")), "and it is the newest one, also than the best")

    def test_a_notice_does_not_end_a_server(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "3", *SERVERS)
        self.read_until(run, "step", 20)
        for notice in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
            os.kill(ranks_of(run)[2], notice)
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 0, err)

    def test_what_cannot_be_is_refused_before_anything_starts(self):
        for changes, reason in (
                (("-n", "2", "strategy.server_processes=2"), "none is left"),
                (("-n", "3", *SERVERS, "strategy.push_every=2", "data.balance_by_speed=true"), "fetch_every = push_every = 1"),
                (("-n", "3", "strategy.kind=ddp", "strategy.server_processes=1"), "parameter_server"),
                (("-n", "3", "strategy.server_processes=0", "data.balance_by_speed=true"), "server_processes"),
                (("-n", "3", *SERVERS, "strategy.servers=100"), "100 servers"),
                (("-n", "3", *SERVERS, "strategy.server_backups=true"), "strategy.server_processes=2 or more"),
                (("-n", "3", *SERVERS, "--record", "record"), "--record"),
                (("-n", "3", *SERVERS, "strategy.updates=in_place"), "leave out strategy.server_processes"),
        ):
            with self.subTest(changes):
                kind = ("strategy.kind=parameter_server",) if "strategy.kind=ddp" not in changes else ()
                self.assertIn(reason, self.refused("mlp.toml", *kind, *changes))

    # --- TF_CONFIG

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

    def test_tf_config_processes_say_whom_they_wait_for(self):
        cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}"]}
        elsewhere = {**cluster, "ps": [f"127.0.0.1:{free_port()}"]}

        def start(*task, limit="1s", of=cluster):
            config = json.dumps({"cluster": of, "task": {"type": task[0], "index": task[1]}})
            return self.start("mlp.toml", "strategy.kind=parameter_server", "strategy.policy=sync", "--json",
                              "checkpoint.directory=", environment={"TF_CONFIG": config, "STORMO_JOIN_TIMEOUT": limit})

        server, chief = start("ps", 0, limit="60s"), start("worker", 0, limit="60s")
        self.read_until(chief, "start")
        cases = [(start("worker", 0), "worker 0 is there already"),
                 (start("worker", 1, of=elsewhere), "cannot reach the server at " + elsewhere["ps"][0]),
                 (start("ps", 0), f"cannot listen on {cluster['ps'][0]}")]
        alone = {**cluster, "ps": [f"127.0.0.1:{free_port()}"]}
        cases.append((start("ps", 0, of=alone), "worker 0, the chief, did not come within 1"))
        for process, reason in cases:
            out, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 1, err)
            self.assertIn(reason, err)
            self.assertIn(reason, json.loads(out.splitlines()[-1])["message"])
        self.assertIn("waits for workers that have not come: 1", chief.stderr.readline())

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
        evaluator, server, chief = self.evaluated_with("train.steps=300000", "strategy.worker_timeout=1")
        for _ in range(2):
            evaluated = json.loads(evaluator.stdout.readline())
        self.assertGreaterEqual(evaluated["step"], 20)
        chief.send_signal(signal.SIGTERM)
        out, err = evaluator.communicate(timeout=DEADLINE_S)
        self.assertEqual(evaluator.returncode, 0, err)
        self.assertIn("the run has ended after step", err)
        saved = max(int(path.name.removeprefix("step-")) for path in (self.folder / "run").glob("step-*"))
        self.assertEqual(json.loads(out.splitlines()[-1])["step"], saved, "the last checkpoint is evaluated")

    def test_a_lost_chief_leaves_75_where_there_is_a_checkpoint(self):
        evaluator, server, chief = self.evaluated_with("train.steps=300000", "strategy.worker_timeout=1")
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
                _, err = done.communicate(timeout=5)
                self.assertEqual(done.returncode, 2, err)
                self.assertIn(reason, err)

    def test_a_worker_with_another_recipe_is_refused(self):
        cluster = {"worker": [f"127.0.0.1:{free_port()}"] * 2, "ps": [f"127.0.0.1:{free_port()}"]}
        server = self.start_task(cluster, "ps", 0)
        first = self.start_task(cluster, "worker", 0)
        second = self.start_task(cluster, "worker", 1, "optimizer.lr=0.7", "checkpoint.directory=other")
        _, err = second.communicate(timeout=DEADLINE_S)
        self.assertEqual(second.returncode, 2, err)
        self.assertIn("optimizer.lr", err)
        self.assertIn("0.7", err)
        for process in (first, server):
            process.terminate()
            process.communicate(timeout=DEADLINE_S)


if __name__ == "__main__":
    main()
