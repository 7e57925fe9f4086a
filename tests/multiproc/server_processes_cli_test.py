"""stormo train with processes that hold the parameters: workers that are lost and come back.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time

from train_cli import DEADLINE_S, LONG_FORM, TrainTest, main, ranks_of

SERVERS = ("strategy.kind=parameter_server", "strategy.server_processes=1")
AVERAGES = ("strategy.kind=parameter_server", "strategy.policy=average")
STEPS = 1500  # of a run that is to be disturbed
LONG = (f"steps={STEPS}", "data.path=data/mnist")


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
        self.assertNotIn("bytes_sent_per_rank", end, "there is no group of workers")
        self.assertEqual((end["steps"], end["samples"], end["ranks"]), (24, 24 * 8, 3))
        self.assertEqual([worker["gradients"] for worker in end["staleness"]], [24, 24, 24])
        self.assertEqual(end["lost_workers"], [])
        end = self.end_of("-n", "4", "strategy.kind=parameter_server", "strategy.server_processes=2",
                          "strategy.servers=2", "--overwrite")
        self.assertEqual(self.gradients(end), 2 * 2 * 24, "two workers, two servers")

    def test_workers_talk_to_the_server_that_has_a_parameter(self):
        """Three shards on two servers, by what each server has counted."""
        start, *_, end = self.lines("mlp.toml", "steps=24", "-n", "4", "strategy.kind=parameter_server",
                                    "strategy.server_processes=2", "strategy.servers=3", "strategy.placement=round_robin")
        first, second = end["servers"]
        for server, shards in ((first, 2), (second, 1)):
            self.assertEqual((server["pulls"], server["pushes"]), ([24 * shards] * 2, [24 * shards] * 2))
        # in turns: weights and biases of 784 x 16 and 16 x 10; the fourth is on shard 0 again
        self.assertEqual((first["bytes"], second["bytes"]), (4 * (784 * 16 + 10 + 16 * 10), 4 * 16))
        self.assertEqual(first["bytes"] + second["bytes"], 4 * start["parameters"], "each is on one server")

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

    def test_rows_of_a_table_are_pushed_by_index(self):
        rng = random.Random(3)
        words = [f"{kind}{i}" for i in range(20) for kind in ("good", "bad")]
        reviews = [(" ".join(rng.choice(words[k::2]) for _ in range(5)), k) for k in (0, 1) for _ in range(20)]
        (self.folder / "t.tsv").write_text("".join(f"{text}\t{k}\n" for text, k in reviews))
        (self.folder / "words.toml").write_text("""schema_version = 1
[model]
kind = "text_classifier"
layers = 0
width = 8
context = 8
classes = 2
sparse = true
[data]
kind = "text_classification"
path = "."
train = "t.tsv"
test = "t.tsv"
header = false
[optimizer]
kind = "adagrad"
lr = 0.1
[train]
steps = 20
eval_every = 20
global_batch = 8
[checkpoint]
directory = "run"
""")

        def test_loss_and_hash(*arguments):
            *_, evaluated, end = [r for r in self.lines("words.toml", "--overwrite", *arguments)
                                  if r["event"] in ("eval", "end")]
            return evaluated["loss"], end["weights_hash"]

        loss, weights = test_loss_and_hash()
        self.assertLess(loss, 0.3, "it learns")
        self.assertEqual(test_loss_and_hash("-n", "2", *SERVERS)[1], weights, "one worker")
        # policy sync is one process to rounding
        served, _ = test_loss_and_hash("-n", "3", *SERVERS, "strategy.policy=sync")
        self.assertAlmostEqual(served, loss, places=5)
        of_ranks, _ = test_loss_and_hash("-n", "2", "strategy.kind=parameter_server", "strategy.policy=sync")
        self.assertAlmostEqual(of_ranks, loss, places=5)

    def test_a_centre_draws_workers_and_goes_on_from_its_checkpoint(self):
        elastic = ("-n", "3", "strategy.kind=elastic_averaging", "strategy.server_processes=1", "strategy.period=2")
        end = self.end_of(*elastic)
        self.assertEqual([worker["gradients"] for worker in end["staleness"]], [24, 24], "exchanges, on two shards")
        self.assertEqual(end["test_accuracy"], 1)
        rest = self.lines("mlp.toml", "steps=26", *elastic, "optimizer.lr=1e-9", "--resume")[-1]
        self.assertLess(rest["train_loss"], 0.6, "all began with the centre; new parameters have 2.3")

    def test_servers_average_as_ranks_do_bit_for_bit(self):
        places = (("1", "1"), ("2", "4"))
        for optimizer, place in zip((("optimizer.momentum=0.9",), ("optimizer.kind=adamw", "optimizer.lr=0.01")), places):
            keys = (*optimizer, "precision=float64", "strategy.period=5", "--overwrite")
            ranks = self.end_of("-n", "3", "strategy.kind=parameter_averaging", *keys)
            for processes, shards in places if LONG_FORM else (place,):
                end = self.end_of("-n", str(3 + int(processes)), *AVERAGES, *keys, f"strategy.servers={shards}",
                                  f"strategy.server_processes={processes}")
                self.assertEqual(end["weights_hash"], ranks["weights_hash"])
                # after 5, 10, 15, 20 and 24 steps
                self.assertEqual([worker["gradients"] for worker in end["staleness"]], [5 * int(shards)] * 3)

    def test_averages_go_on_without_a_lost_worker(self):
        code, records, err, _ = self.lost(1, "strategy.policy=average", "strategy.period=3", "--overwrite")
        self.assertEqual(code, 0, err)
        self.assertIn("worker 1 was lost", err)
        end = records[-1]
        self.assertEqual((end["event"], end["steps"], end["test_accuracy"]), ("end", STEPS, 1))
        self.assertIn({"worker": 1, "lost": 1, "came_back": 0}, end["lost_workers"])
        averages = [worker["gradients"] for worker in end["staleness"]]
        self.assertLess(averages[1], STEPS // 3)
        self.assertGreaterEqual(min(averages[0], averages[2]), STEPS // 3)

    def test_a_stopped_worker_takes_the_averages_when_it_comes_back(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "4", *AVERAGES, "strategy.server_processes=1", "strategy.servers=1",
                         "strategy.period=3", "strategy.worker_timeout=5")
        self.read_until(run, "step", 30)
        os.kill(ranks_of(run)[2], signal.SIGSTOP)
        self.read_until(run, "step", 200)  # waits for nobody after the timeout
        os.kill(ranks_of(run)[2], signal.SIGCONT)
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 0, err)
        end = records[-1]
        self.assertEqual((end["steps"], end["test_accuracy"]), (STEPS, 1))
        self.assertGreater(end["staleness"][2]["gradients"], 200 // 3, "it came back")

    def test_averages_go_on_from_their_checkpoint(self):
        keys = ("-n", "4", *AVERAGES, "strategy.server_processes=1", "strategy.period=4", "optimizer.kind=adamw", "optimizer.lr=0.01")
        whole = self.end_of(*keys)
        self.assertEqual(self.lines("mlp.toml", "steps=24", "train.steps=12", *keys, "--overwrite")[-1]["steps"], 12)
        self.assertEqual(self.end_of(*keys, "--resume")["weights_hash"], whole["weights_hash"])

    def test_a_checkpoint_goes_on_here_and_elsewhere(self):
        whole = self.end_of("-n", "2", *SERVERS, "optimizer.kind=adamw")
        half = self.lines("mlp.toml", "steps=24", "train.steps=12", "-n", "2", *SERVERS, "optimizer.kind=adamw",
                          "--overwrite")[-1]
        self.assertEqual(half["steps"], 12)
        rest = self.end_of("-n", "2", *SERVERS, "optimizer.kind=adamw", "--resume")
        self.assertEqual(rest["weights_hash"], whole["weights_hash"])
        def go_on(*arguments):
            shutil.rmtree(self.folder / "copy", ignore_errors=True)
            shutil.copytree(self.folder / "run", self.folder / "copy", symlinks=True)
            return self.lines("mlp.toml", "steps=30", "optimizer.kind=adamw", "--resume", "--checkpoint", "copy",
                              *arguments)

        # elsewhere with the optimizer's state, too: the bits of one worker, and with two ranks its losses
        served, alone, two = go_on("-n", "2", *SERVERS), go_on("strategy.kind=one_device"), go_on("-n", "2", "strategy.kind=ddp")
        self.assertEqual(alone[-1]["weights_hash"], served[-1]["weights_hash"])
        self.assertEqual([r["step"] for r in alone if r["event"] == "step"], list(range(25, 31)))
        for a, b in zip(alone, two, strict=True):
            self.assertAlmostEqual(a.get("loss", 0), b.get("loss", 0), delta=1e-4 * max(1, a.get("loss", 0)))

    def test_evaluates_and_saves_while_others_go_on(self):
        records = self.lines("gpt.toml", "steps=40", "-n", "3", *SERVERS, "train.eval_every=10", "checkpoint.every=10",
                             "--checkpoint", "run")
        evaluated = [r["step"] for r in records if r["event"] == "eval"]
        self.assertEqual(evaluated, [10, 20, 30, 40])
        self.assertTrue(list((self.folder / "run").glob("step-*")))

    def test_steps_of_others_go_on_during_a_save(self):
        """Each fsync() of the first worker takes a quarter of a second. It saves in the foreground."""
        (self.folder / "slow.c").write_text("""#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int fd) {
  const char* rank = getenv("STORMO_RANK");
  if (rank != NULL && rank[0] == '0') usleep(250000);
  return (int)syscall(SYS_fsync, fd);
}
""")
        library = self.folder / "slow.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, self.folder / "slow.c"], check=True)
        run = self.start("mlp.toml", "--json", *LONG, "-n", "3", *SERVERS, "checkpoint.every=500",
                         "checkpoint.asynchronous=false", environment={"LD_PRELOAD": str(library)})
        out, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 0, err)
        steps = [r["step"] for r in map(json.loads, out.splitlines()) if r["event"] == "step"]
        longest = max(after - before for before, after in zip(steps, steps[1:]))
        self.assertGreater(longest, 30, "between two steps of the first worker, by what the other one does")

    def lost(self, number, *arguments, ranks=4):
        """Exit code, records and stderr of a run whose rank `number` is killed after some steps, and after
        the first checkpoint if there is one; and the seconds that it took after that."""
        run = self.start("mlp.toml", "--json", *LONG, "-n", str(ranks), *SERVERS, "strategy.servers=1", *arguments)
        if "checkpoint.every=10" in arguments:
            self.read_until_saved(run, step=10)
        else:
            self.read_until(run, "step", 30)
        os.kill(ranks_of(run)[number], signal.SIGKILL)
        since = time.monotonic()
        records = [json.loads(line) for line in run.stdout]  # communicate() would lose what is read ahead
        _, err = run.communicate(timeout=DEADLINE_S)
        return run.returncode, records, err, time.monotonic() - since

    def test_a_lost_worker_costs_its_batch_in_flight(self):
        for policy in ("async", "sync", "ssp") if LONG_FORM else ("async", "sync"):
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

    def test_downpour_reaches_its_loss_without_a_lost_worker(self):
        downpour = ("optimizer.kind=adagrad", "optimizer.lr=0.02", "strategy.fetch_every=4", "strategy.push_every=4")
        code, records, err, _ = self.lost(2, *downpour, "--overwrite")
        self.assertEqual(code, 0, err)
        self.assertIn("worker 2 was lost", err)
        self.assertEqual((records[-1]["steps"], records[-1]["test_accuracy"]), (STEPS, 1))
        self.assertLess(records[-1]["staleness"][2]["gradients"], STEPS // 4)

    def test_a_lost_server_ends_the_run_at_once(self):
        code, _, err, seconds = self.lost(3, "checkpoint.every=10")
        self.assertEqual(code, 75, err)
        self.assertIn("rank 3", err)
        self.assertIn("--resume", err)
        self.assertLess(seconds, 60)
        start, *_, end = self.lines("mlp.toml", *LONG, "-n", "4", *SERVERS, "strategy.servers=1", "--resume")
        self.assertGreaterEqual(start["first_step"], 10)
        self.assertEqual(end["steps"], STEPS)
        self.assertEqual([worker["gradients"] for worker in end["staleness"]], [STEPS - start["first_step"]] * 3)

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
                self.assertLess(seconds, 90)

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
        self.assertLess(seconds, 60)

    def test_a_lost_first_worker_leaves_a_checkpoint_to_go_on_from(self):
        code, _, err, _ = self.lost(0, "checkpoint.every=10")
        self.assertEqual(code, 75, err)
        self.assertNotIn("finalize", err, "each process says once why it ends")
        self.assertIn("--resume", err)
        end = self.lines("mlp.toml", *LONG, "-n", "4", *SERVERS, "strategy.servers=1", "--resume")[-1]
        self.assertEqual(end["steps"], STEPS)

    def test_a_stopped_worker_is_lost_and_comes_back(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "4", *SERVERS, "strategy.policy=sync",
                         "strategy.servers=1", "strategy.worker_timeout=5")
        self.read_until(run, "step", 30)
        os.kill(ranks_of(run)[2], signal.SIGSTOP)
        step = self.read_until(run, "step", 200)["step"]  # waits for nobody after the timeout
        os.kill(ranks_of(run)[2], signal.SIGCONT)
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 0, err)
        end = records[-1]
        counts = [worker["gradients"] for worker in end["staleness"]]
        self.assertLessEqual(sum(counts), 3 * STEPS)
        self.assertGreaterEqual(sum(counts), 3 * STEPS - 2)
        self.assertGreater(counts[2], step // 3, "it came back")
        self.assertIn({"worker": 2, "lost": 1, "came_back": 1}, end["lost_workers"])

    def test_a_worker_that_is_stopped_for_ten_seconds(self):
        """That long is the default of strategy.worker_timeout: it may or may not be taken for lost."""
        runs, since, arrived, threads = {}, {}, {"async": [], "sync": []}, []

        def read(policy):
            for line in runs[policy].stdout:
                arrived[policy].append((time.monotonic(), json.loads(line)))

        for policy in arrived:
            runs[policy] = self.start("mlp.toml", "--json", *LONG, "-n", "4", *SERVERS, "strategy.servers=1",
                                      f"strategy.policy={policy}", f"checkpoint.directory={policy}")
            self.read_until(runs[policy], "step", 30)
            stopped = ranks_of(runs[policy])[2]
            os.kill(stopped, signal.SIGSTOP)
            since[policy] = time.monotonic()
            threads += [threading.Timer(10, os.kill, (stopped, signal.SIGCONT)),
                        threading.Thread(target=read, args=(policy,))]
            for thread in threads[-2:]:
                thread.start()
        for thread in threads:
            thread.join()
        steps = {policy: [(when - since[policy], record["step"]) for when, record in of if record["event"] == "step"]
                 for policy, of in arrived.items()}
        self.assertGreaterEqual(max(step for when, step in steps["async"] if when < 9), 200, "others do not wait")
        pairs = itertools.pairwise([(0, 30), *steps["sync"]])
        longest, step = max((after - before, step) for (before, step), (after, _) in pairs)
        self.assertGreater(longest, 8, "others wait")
        self.assertLess(step, STEPS - 100, "and not at their end")
        for policy, run in runs.items():
            self.assertEqual(run.wait(), 0, run.stderr.read())
            counts = [worker["gradients"] for worker in arrived[policy][-1][1]["staleness"]]
            self.assertGreaterEqual(sum(counts), 3 * STEPS - 2, policy)
            self.assertLessEqual(sum(counts), 3 * STEPS, policy)

    def test_by_speed_a_slow_worker_does_fewer_steps(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "4", *SERVERS, "strategy.servers=1",
                         "data.balance_by_speed=true", "strategy.worker_timeout=100")
        self.read_until(run, "step", 30)
        slow = ranks_of(run)[2]
        os.kill(slow, signal.SIGSTOP)
        self.read_until(run, "step", STEPS * 9 // 10)  # a third of all steps is its share
        os.kill(slow, signal.SIGCONT)
        records = [json.loads(line) for line in run.stdout]
        self.assertEqual(run.wait(), 0, run.stderr.read())
        counts = [worker["gradients"] for worker in records[-1]["staleness"]]
        self.assertEqual(sum(counts), 3 * STEPS, "each is done once")
        self.assertLess(counts[2], STEPS * 4 // 10, "others do what is left, each as fast as it can")
        self.assertEqual(records[-1]["samples"], 8 * STEPS)

    def test_the_first_worker_shows_that_it_waits(self):
        run = self.start("mlp.toml", "--json", "steps=100", "data.path=data/mnist", "train.log_every=10", "-n", "3",
                         *SERVERS, "strategy.servers=1")
        self.read_until(run, "step", 10)
        os.kill(ranks_of(run)[1], signal.SIGSTOP)
        time.sleep(2)  # the pause itself
        os.kill(ranks_of(run)[1], signal.SIGCONT)
        steps = [r for r in map(json.loads, run.stdout) if r["event"] == "step"]
        self.assertEqual(run.wait(), 0, run.stderr.read())
        self.assertGreater(max(r["share"]["wait"] for r in steps), 0.6, steps)

    def test_each_step_is_shown_once(self):
        records = self.lines("mlp.toml", "steps=30", "train.log_every=1", "-n", "3", *SERVERS)
        steps = [r for r in records if r["event"] == "step"]
        self.assertEqual(len({r["step"] for r in steps}), len(steps), steps)
        self.assertEqual(steps[-1]["step"], 30)
        self.assertGreater(steps[-1]["samples_per_s"], 0)

    def test_steps_are_counted_where_the_last_batch_of_an_epoch_is_smaller(self):
        records = self.lines("mlp.toml", "steps=31", "train.global_batch=40", "-n", "3", *SERVERS)
        begins = [96 * (step // 3) + 40 * (step % 3) for step in range(32)]  # three steps of 96 samples
        steps = [r for r in records if r["event"] == "step"]
        for record in steps[:-1]:
            done = round(96 * record["epoch"])
            self.assertTrue(begins[record["step"]] <= done < begins[record["step"] + 1], record)
        self.assertEqual((steps[-1]["step"], round(96 * steps[-1]["epoch"])), (31, begins[31]))
        self.assertGreater(len(steps), 5)

    def test_the_last_step_has_its_samples_if_others_did_the_rest_of_the_run(self):
        run = self.start("mlp.toml", "--json", f"steps={STEPS}", "train.log_every=1", "-n", "3", *SERVERS,
                         "data.balance_by_speed=true")
        self.read_until(run, "step", 10)
        first = ranks_of(run)[0]
        os.kill(first, signal.SIGSTOP)
        time.sleep(2)  # the pause itself
        os.kill(first, signal.SIGCONT)
        steps = [r for r in map(json.loads, run.stdout) if r["event"] == "step"]
        self.assertEqual(run.wait(), 0, run.stderr.read())
        self.assertEqual(steps[-1]["step"], STEPS)
        self.assertGreater(steps[-1]["samples_per_s"], 0)

    def test_a_signal_saves_and_the_run_goes_on_from_there(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "3", *SERVERS)
        self.read_until(run, "step", 20)
        run.send_signal(signal.SIGTERM)
        records = [json.loads(line) for line in run.stdout]  # communicate() would lose what is read ahead
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 143, err)
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
        run = self.start("data.toml", "--json", "-n", "3", *SERVERS, "optimizer.lr=1.0", "strategy.worker_timeout=5",
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
                (("-n", "3", "strategy.kind=parameter_averaging", "data.balance_by_speed=true"), "do equally many steps"),
                (("-n", "3", *SERVERS, "strategy.servers=100"), "100 servers"),
                (("-n", "3", *SERVERS, "strategy.server_backups=true"), "strategy.server_processes=2 or more"),
                (("-n", "3", *SERVERS, "--record", "record"), "--record"),
                (("-n", "3", *SERVERS, "strategy.updates=in_place"), "leave out strategy.server_processes"),
        ):
            with self.subTest(changes):
                self.assertIn(reason, self.refused("mlp.toml", "strategy.kind=parameter_server", *changes))


if __name__ == "__main__":
    main()
