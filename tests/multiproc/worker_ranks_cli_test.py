"""stormo train with workers of parameter servers that are several ranks.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import shutil
import signal
import time

from train_cli import DEADLINE_S, LONG_FORM, TrainTest, main, ranks_of

RANKS = ("strategy.kind=parameter_server", "strategy.worker_ranks=2")
SERVER = ("strategy.server_processes=1", "strategy.servers=1")
STEPS = 500  # of a run that is to be disturbed
LONG = (f"steps={STEPS}", "data.path=data/mnist")


class WorkerRanksTest(TrainTest):
    def end_of(self, *arguments):
        end = self.lines("mlp.toml", "steps=24", *arguments)[-1]
        self.assertEqual(end["event"], "end")
        return end

    def pushes(self, end):
        return [worker["gradients"] for worker in end["staleness"]]

    def evaluated(self, *arguments):
        records = self.lines("mlp.toml", "steps=24", "train.eval_every=24", "optimizer.momentum=0.9", "--overwrite",
                             *arguments)
        return next(r["loss"] for r in records if r["event"] == "eval")

    def test_workers_that_wait_train_as_one_process(self):
        alone = self.evaluated()
        two_servers = ("strategy.server_processes=2", "strategy.servers=2")
        for ranks in (("-n", "4"), ("-n", "5", *SERVER), ("-n", "6", *two_servers)):
            with self.subTest(ranks):
                served = self.evaluated(*RANKS, "strategy.policy=sync", *ranks)
                self.assertAlmostEqual(served, alone, places=5)

    def test_a_worker_pushes_once_for_all_its_ranks(self):
        here, server = ("-n", "4", "strategy.servers=1"), ("-n", "5", *SERVER)
        for policy, where in (("async", here), ("async", server), ("ssp", server), ("n_softsync", here)):
            with self.subTest(policy=policy, where=where):
                end = self.end_of(*RANKS, *where, f"strategy.policy={policy}", "--overwrite")
                self.assertEqual((end["steps"], end["samples"], end["ranks"]), (24, 24 * 8, 4))
                self.assertEqual(self.pushes(end), [24, 24], "two workers")
                self.assertGreater(end["test_accuracy"], 0.5, "by chance: 0.1")

    def test_downpour_and_fast_workers(self):
        downpour = ("strategy.fetch_every=4", "strategy.push_every=4", "optimizer.kind=adagrad", "optimizer.lr=0.05")
        for where in (("-n", "4", "strategy.servers=1"), ("-n", "5", *SERVER)):
            self.assertEqual(self.pushes(self.end_of(*RANKS, *where, *downpour, "--overwrite")), [6, 6])
        end = self.end_of(*RANKS, "-n", "5", *SERVER, "data.balance_by_speed=true", "--overwrite")
        self.assertEqual(sum(self.pushes(end)), 48)

    def test_a_checkpoint_goes_on_here_and_elsewhere(self):
        adam = ("optimizer.kind=adamw", "optimizer.lr=0.01")
        sync = (*RANKS, *adam, "strategy.policy=sync")
        places = {"one host": ("-n", "4"), "a server": ("-n", "5", *SERVER),
                  "one process": ("strategy.kind=one_device",)}
        whole = self.evaluated(*sync, *places["a server"])
        for first, second in (("a server", "a server"), ("one host", "a server"), ("a server", "one process")):
            with self.subTest(first=first, second=second):
                half = self.lines("mlp.toml", "train.steps=12", *sync, *places[first], "--overwrite")[-1]
                self.assertEqual(half["steps"], 12)
                other = adam if second == "one process" else sync
                records = self.lines("mlp.toml", "steps=24", *other, *places[second], "--resume")
                loss = next(r["loss"] for r in records if r["event"] == "eval")
                self.assertEqual((records[0]["first_step"], records[-1]["steps"], records[-1]["samples"]),
                                 (12, 24, 24 * 8))
                # to rounding, which adamw without the moments of the first half is far from
                self.assertAlmostEqual(loss, whole, delta=1e-3 * whole)

    def lost(self, number, *arguments, by=signal.SIGKILL):
        """Exit code, records, stderr and seconds of a run of 3 workers of two ranks each and a server, after a signal
        to rank `number`."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)  # what is there is this run's
        run = self.start("mlp.toml", "--json", *LONG, "train.global_batch=12", "-n", "7", *RANKS, *SERVER,
                         "--overwrite", *arguments)
        self.read_until(run, "step", 30)
        if "checkpoint.every=10" in arguments:
            while not (self.folder / "run" / "latest").exists():
                self.read_until(run, "step")
        os.kill(ranks_of(run)[number], by)
        since = time.monotonic()
        records = [json.loads(line) for line in run.stdout]  # communicate() would lose what is read ahead
        _, err = run.communicate(timeout=DEADLINE_S)
        return run.returncode, records, err, time.monotonic() - since

    def test_a_lost_rank_is_the_loss_of_its_worker(self):
        for number, policy in ((2, "async"), (3, "ssp"), (5, "sync")) if LONG_FORM else ((2, "async"), (5, "sync")):
            with self.subTest(number=number, policy=policy):
                code, records, err, _ = self.lost(number, f"strategy.policy={policy}")
                self.assertEqual(code, 0, err)
                self.assertRegex(err, rf"rank {number} \(.*killed by signal 9 \(SIGKILL\); the job goes on without it")
                self.assertRegex(err, rf"rank {number ^ 1} \(.*; the job goes on without it", "the rest of its worker")
                self.assertIn(f"worker {number // 2} was lost", err)
                end = records[-1]
                self.assertEqual((end["event"], end["steps"]), ("end", STEPS))
                counts = self.pushes(end)
                self.assertGreaterEqual(sum(counts), 3 * STEPS - 1, "others did what was left, but for one batch")
                self.assertLessEqual(sum(counts), 3 * STEPS, "and nothing twice")
                self.assertLess(counts[number // 2], STEPS)

    def test_a_stopped_rank_is_the_loss_of_its_worker(self):
        for number in (2, 3) if LONG_FORM else (3,):
            with self.subTest(number):
                code, records, err, seconds = self.lost(number, "strategy.policy=sync", "strategy.worker_timeout=5",
                                                        by=signal.SIGSTOP)
                self.assertEqual(code, 0, err)
                self.assertIn("worker 1 was lost", err)
                self.assertEqual((records[-1]["event"], records[-1]["steps"]), ("end", STEPS))
                self.assertLess(seconds, 100, "nobody waits for it")

    def test_a_lost_rank_of_the_first_worker_ends_the_run(self):
        for number in (0, 1) if LONG_FORM else (1,):
            with self.subTest(number):
                code, _, err, seconds = self.lost(number, "checkpoint.every=10")
                self.assertEqual(code, 75, err)
                self.assertIn(f"rank {number}", err)
                self.assertIn("--resume", err)
                self.assertLess(seconds, 60)
        end = self.lines("mlp.toml", *LONG, "train.global_batch=12", "-n", "7", *RANKS, *SERVER, "--resume")[-1]
        self.assertEqual(end["steps"], STEPS)

    def test_a_lost_rank_of_one_host_ends_the_job_at_once(self):
        self.assert_lost_rank_ends_job("mlp.toml", *LONG, "-n", "4", *RANKS)

    def test_a_signal_saves_and_the_run_goes_on_from_there(self):
        for where in (("-n", "4"), ("-n", "5", *SERVER)):
            with self.subTest(where):
                run = self.start("mlp.toml", "--json", *LONG, *RANKS, *where, "--overwrite")
                self.read_until(run, "step", 20)
                run.send_signal(signal.SIGTERM)
                code, records, err = self.outcome_of(run)
                self.assertEqual(code, 143, err)
                self.assertEqual(records[-1]["event"], "end")
                rest = self.lines("mlp.toml", *LONG, "train.steps=200", *RANKS, *where, "--resume")[-1]
                self.assertEqual(rest["steps"], 200)

    def test_a_signal_to_one_rank_ends_all(self):
        run = self.start("mlp.toml", "--json", *LONG, "-n", "5", *RANKS, *SERVER)
        self.read_until(run, "step", 20)
        os.kill(ranks_of(run)[3], signal.SIGTERM)
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 143, err)

    def test_the_plan_says_what_a_worker_does(self):
        plan = self.stormo("train", "mlp.toml", "-n", "5", *RANKS, *SERVER, "--dry-run").stdout
        self.assertIn("# step plan of 2 workers of 2 ranks each, beside 1 server process\n", plan)
        for line in ("mesh dp=2 worker=2\n", "pull 0-3 over dp,worker ", "sum_weights\n", "all_reduce 0-3 over worker ",
                     "push 0-3 over dp ", "agree\n"):
            self.assertIn(line, plan)
        shown = self.stormo("plan", "show", "mlp.toml", "-n", "5", *RANKS, *SERVER).stdout
        self.assertIn("all_reduce 0-3 over worker", shown)
        cost = self.stormo("plan", "cost", "mlp.toml", "-n", "4", *RANKS)
        self.assertEqual(cost.returncode, 0, cost.stderr)
        self.assertIn("worker", cost.stdout)
        simulated = self.stormo("simulate", "mlp.toml", "--workers", "2", *RANKS, "steps=6")
        self.assertEqual(simulated.returncode, 0, simulated.stderr)

    def test_what_cannot_be_is_refused_before_anything_starts(self):
        for changes, reason in (
                (("-n", "3", *RANKS), "3 ranks are no multiple of that"),
                (("-n", "4", *RANKS, *SERVER), "3 ranks are no multiple of that"),
                (("-n", "4", "strategy.kind=parameter_server", "strategy.worker_ranks=0"), "strategy.worker_ranks"),
                (("-n", "4", "strategy.kind=ddp", "strategy.worker_ranks=2"), "does not use strategy.worker_ranks"),
                (("-n", "4", "strategy.kind=elastic_averaging", "strategy.worker_ranks=2"),
                 "does not use strategy.worker_ranks"),
                (("-n", "4", *RANKS, "strategy.policy=n_softsync", "strategy.n=3"), "to 2, the number of workers"),
                (("-n", "4", *RANKS, "strategy.policy=backup_workers", "strategy.backups=2"), "backups"),
                (("-n", "4", *RANKS, "strategy.updates=in_place"), "leave out worker_ranks"),
                (("-n", "4", *RANKS, "--record", "record"), "leave out worker_ranks, or --record"),
                (("-n", "5", *RANKS, *SERVER, "strategy.policy=portions"), "with policy portions a worker is one rank"),
                (("-H", "127.0.0.1:3,127.0.0.2:3", *RANKS, "strategy.server_processes=2"), "are on one host"),
                (("-n", "4", *RANKS, "train.global_batch=3"), "train.global_batch"),
        ):
            with self.subTest(changes):
                self.assertIn(reason, self.refused("mlp.toml", *changes))

    def test_tf_config_has_one_process_for_each_worker(self):
        self.assert_tf_config_is_refused("mlp.toml", *RANKS, servers=1)


if __name__ == "__main__":
    main()
