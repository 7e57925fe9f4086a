"""stormo train with workers of parameter servers that are cut into stages or slices, each with servers of its own.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import pathlib
import shutil
import signal
import time

from train_cli import DEADLINE_S, LONG_FORM, TrainTest, main, ranks_of

STAGES = ("strategy.kind=parameter_server", "strategy.pipeline=2", "train.micro_batches=2")
SERVERS = ("strategy.server_processes=2",)
SLICES = ("strategy.kind=parameter_server", "strategy.tensor=2")
STEPS = 500  # of a run that is to be disturbed
LONG = (f"steps={STEPS}", "data.path=data/mnist")
ESTABLISHED, LISTENS = "01", "0A"


def sockets_of(pid):
    """(state, port here, port there) of the TCP sockets of a process."""
    names = []
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(os.readlink(link))
        except FileNotFoundError:
            continue
    found = set()
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state, *_, inode = line.split()[:10]
        if f"socket:[{inode}]" in names:
            found.add((state, int(here.split(":")[1], 16), int(there.split(":")[1], 16)))
    return found


class ServedStagesTest(TrainTest):
    def evaluated(self, *arguments, recipe="mlp.toml"):
        """Loss of the evaluation in the end, and the last record."""
        records = self.lines(recipe, "steps=24", "train.eval_every=24", "--overwrite", *arguments)
        return next(r["loss"] for r in records if r["event"] == "eval"), records[-1]

    def test_a_stage_is_connected_to_the_servers_of_its_parameters_only(self):
        run = self.start("mlp.toml", "--json", *LONG, "steps=100000", *STAGES, "-n", "7",
                         "strategy.server_processes=3")
        self.read_until(run, "step", 10)
        sockets = {rank: sockets_of(pid) for rank, pid in ranks_of(run).items()}
        port_of = {rank - 4: next(here for state, here, _ in sockets[rank] if state == LISTENS) for rank in (4, 5, 6)}
        for rank in range(4):
            ports = {there for state, _, there in sockets[rank] if state == ESTABLISHED}
            connected = {server for server, port in port_of.items() if port in ports}
            self.assertEqual(connected, {0, 2} if rank % 2 == 0 else {1}, f"rank {rank}")
        run.send_signal(signal.SIGTERM)
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 143, err)
        end = records[-1]
        # 784 x 16 and 16 on the servers of the first stage, 16 x 10 and 10 on that of the second
        sizes = [server["bytes"] // 4 for server in end["servers"]]
        self.assertEqual((sizes[0] + sizes[2], sizes[1]), (784 * 16 + 16, 16 * 10 + 10))

    def test_workers_that_wait_train_as_one_process(self):
        """To 1e-10, in float64."""
        sgd = ("optimizer.kind=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "precision=float64")
        clip = ("train.clip_norm=0.5",)  # of a worker's own gradient
        ways = ((1, ()), (1, clip), (2, ()))
        # the weight of the gpt's embedding is that of its head
        for recipe, short in (("mlp.toml", ways[1:2]), ("gpt.toml", ways[::2])):
            alone_by = {}
            for workers, more in ways if LONG_FORM else short:
                with self.subTest(recipe=recipe, workers=workers, more=more):
                    if more not in alone_by:
                        alone_by[more], _ = self.evaluated(*sgd, *more, recipe=recipe)
                    alone = alone_by[more]
                    served, end = self.evaluated(*sgd, *more, *STAGES, *SERVERS, "strategy.policy=sync", "-n",
                                                 f"{2 * workers + 2}", recipe=recipe)
                    self.assertAlmostEqual(served, alone, delta=1e-10)
                    self.assertEqual((end["steps"], end["ranks"]), (24, 2 * workers))
                    self.assertEqual(len(end["servers"]), 2)
                    for server in end["servers"]:
                        shards = server["pushes"][0] // 24
                        self.assertEqual(server["pushes"], [24 * shards] * workers)

    def test_slices_train_as_one_process_and_go_on_as_one(self):
        """Ranks that compute layers together, also those of two stages."""
        sgd = ("optimizer.kind=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "precision=float64", "model.layers=3")
        alone, _ = self.evaluated(*sgd, recipe="gpt.toml")
        all_ways = (((*SLICES, "strategy.sequence_parallel=true"), 2, 3), ((*SLICES, *STAGES), 4, 4), (SLICES, 2, 2))
        for ways, ranks, servers in all_ways if LONG_FORM else all_ways[:2]:
            with self.subTest(ways):
                way = (*sgd, *ways, "strategy.policy=sync", f"strategy.server_processes={servers}", "-n",
                       str(ranks + servers))
                served, end = self.evaluated(*way, recipe="gpt.toml")
                self.assertAlmostEqual(served, alone, delta=1e-10)
                self.assertEqual((end["steps"], end["ranks"], len(end["servers"])), (24, ranks, servers))
                self.lines("gpt.toml", "train.steps=12", *way, "checkpoint.directory=half", "--overwrite")
                records = self.lines("gpt.toml", "steps=24", "train.eval_every=24", *sgd, "strategy.kind=one_device",
                                     "checkpoint.directory=half", "--resume")
                again = next(r["loss"] for r in records if r["event"] == "eval")
                self.assertAlmostEqual(again, alone, delta=1e-10)

    def test_workers_that_do_not_wait_learn(self):
        for policy in ("async", "ssp", "n_softsync") if LONG_FORM else ("async", "ssp"):
            with self.subTest(policy):
                _, end = self.evaluated(*STAGES, *SERVERS, "-n", "6", f"strategy.policy={policy}",
                                        "data.balance_by_speed=true", "strategy.servers=1")
                self.assertEqual(sum(worker["gradients"] for worker in end["staleness"]), 2 * 48, "of two shards")
                self.assertGreater(end["test_accuracy"], 0.5, "by chance: 0.1")

    def test_a_checkpoint_goes_on_here_and_elsewhere(self):
        adam = ("optimizer.kind=adamw", "optimizer.lr=0.01")
        ways = {"stages": (*adam, *STAGES, *SERVERS, "strategy.policy=sync", "-n", "6"),
                "one process": (*adam, "strategy.kind=one_device"),
                "a pipeline": (*adam, "strategy.pipeline=2", "train.micro_batches=2", "-n", "2")}
        whole, _ = self.evaluated(*ways["one process"])
        for first, second in (("stages", "stages"), ("stages", "one process"), ("a pipeline", "stages")):
            with self.subTest(first=first, second=second):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                half = self.lines("mlp.toml", "train.steps=12", *ways[first])[-1]
                self.assertEqual(half["steps"], 12)
                records = self.lines("mlp.toml", "steps=24", "train.eval_every=24", *ways[second], "--resume")
                loss = next(r["loss"] for r in records if r["event"] == "eval")
                self.assertEqual((records[0]["first_step"], records[-1]["steps"]), (12, 24))
                # to rounding, which adamw without the moments of the first half is far from
                self.assertAlmostEqual(loss, whole, delta=1e-3 * whole)

    def lost(self, number, *arguments, by=signal.SIGKILL):
        """Exit code, records, stderr and seconds of a run of 3 workers of two stages and 2 servers, after a signal to
        rank `number`."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)  # what is there is this run's
        run = self.start("mlp.toml", "--json", *LONG, "train.global_batch=12", "-n", "8", *STAGES, *SERVERS, *arguments)
        self.read_until(run, "step", 30)
        while "checkpoint.every=10" in arguments and not (self.folder / "run" / "latest").exists():
            self.read_until(run, "step")
        os.kill(ranks_of(run)[number], by)
        since = time.monotonic()
        records = [json.loads(line) for line in run.stdout]  # communicate() would lose what is read ahead
        _, err = run.communicate(timeout=DEADLINE_S)
        return run.returncode, records, err, time.monotonic() - since

    def test_a_lost_stage_is_the_loss_of_its_worker(self):
        cases = ((2, "async", signal.SIGKILL), (3, "sync", signal.SIGSTOP), (5, "sync", signal.SIGKILL))
        for number, policy, by in cases if LONG_FORM else cases[:2]:
            with self.subTest(number=number, policy=policy, by=by):
                code, records, err, seconds = self.lost(number, f"strategy.policy={policy}", "strategy.worker_timeout=5",
                                                        by=by)
                self.assertEqual(code, 0, err)
                self.assertEqual(err.count(f"worker {number // 2} was lost"), 2, "at the servers of both stages")
                self.assertEqual((records[-1]["event"], records[-1]["steps"]), ("end", STEPS))
                for server in records[-1]["servers"]:
                    self.assertLess(server["pushes"][number // 2], server["pushes"][0])
                self.assertLess(seconds, 100, "nobody waits for it")

    def test_a_lost_stage_of_the_first_worker_ends_the_run(self):
        for number in (0, 1) if LONG_FORM else (1,):
            with self.subTest(number):
                code, _, err, seconds = self.lost(number, "checkpoint.every=10")
                self.assertEqual(code, 75, err)
                self.assertIn("--resume", err)
                self.assertLess(seconds, 60)

    def test_the_plan_says_what_a_stage_does(self):
        plan = self.stormo("train", "mlp.toml", "-n", "6", *STAGES, *SERVERS, "--dry-run").stdout
        self.assertIn("# step plan of 2 workers of 2 ranks each, beside 2 server processes\n", plan)
        for line in ("mesh dp=2 pp=2\n", "pull 0-3 over dp ", "push 0-3 over dp ", "agree\n"):
            self.assertIn(line, plan)
        cost = self.stormo("plan", "cost", "mlp.toml", "-n", "6", *STAGES, *SERVERS)
        self.assertEqual(cost.returncode, 0, cost.stderr)
        self.assertIn("Each worker pulls", cost.stdout)
        for parts in (STAGES, SLICES):
            simulated = self.stormo("simulate", "mlp.toml", "--workers", "2", *parts, "steps=6")
            self.assertEqual(simulated.returncode, 0, simulated.stderr)

    def test_what_cannot_be_is_refused_before_anything_starts(self):
        server = ("-n", "4", *SERVERS)
        for changes, reason in (
                (("-n", "4",), "each part of a worker, a stage or slice, has server processes of its own; write "
                               "strategy.server_processes=2 or more"),
                (("-n", "3", "strategy.server_processes=1"), "strategy.server_processes=2 or more"),
                (("-n", "5", *SERVERS), "3 ranks are no multiple of that"),
                ((*server, "strategy.context=2"), "leave out context, or use 'ddp'"),
                ((*server, *SLICES, "strategy.pipeline=1", "optimizer.kind=lars"), "leave out tensor, or take an optimizer"),
                ((*server, "strategy.worker_ranks=2"), "leave out worker_ranks, or pipeline and tensor"),
                ((*server, "strategy.schedule=pipedream"), "leave out schedule, or use 'ddp'"),
                ((*server, "strategy.fetch_every=2"), "leave out fetch_every and push_every, or pipeline and tensor"),
                ((*server, "strategy.policy=average"), "or use 'parameter_averaging'"),
                ((*server, "strategy.policy=portions"), "leave out strategy.pipeline"),
                ((*server, "strategy.server_backups=true"), "leave out strategy.server_backups"),
                ((*server, "strategy.kind=elastic_averaging"), "does not use strategy.pipeline"),
                ((*server, "strategy.servers=3"), "rank 0 of a worker (stage 0, slice 0)"),
        ):
            with self.subTest(changes):
                self.assertIn(reason, self.refused("mlp.toml", *STAGES, *changes))

    def test_tf_config_has_one_process_for_each_worker(self):
        self.assert_tf_config_is_refused("mlp.toml", *STAGES, servers=2)


if __name__ == "__main__":
    main()
