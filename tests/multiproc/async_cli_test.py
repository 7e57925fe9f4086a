"""stormo train with parameter servers, parameter averaging and elastic averaging, --record and stormo replay."""

import collections
import json
import os
import pathlib
import signal

from train_cli import LONG_FORM, TrainTest, main, ranks_of

SERVERS = "strategy.kind=parameter_server"
AVERAGING = "strategy.kind=parameter_averaging"
ELASTIC = "strategy.kind=elastic_averaging"
GOSSIP = "strategy.kind=gossip"
STREAMING = ("strategy.outer=nesterov", "strategy.period=8", "strategy.fragments=2", "strategy.delay=3")


class AsyncTest(TrainTest):
    def end_of(self, *arguments):
        end = self.lines("mlp.toml", "steps=24", *arguments)[-1]
        self.assertEqual(end["event"], "end")
        return end

    def stop_rank_2_until(self, run, step):
        """The others get from step 20 to this one without it."""
        self.read_until(run, "step", 20)
        stopped = ranks_of(run)[2]
        os.kill(stopped, signal.SIGSTOP)
        self.read_until(run, "step", step)
        state = pathlib.Path(f"/proc/{stopped}/stat").read_text().rsplit(") ", 1)[1]
        self.assertEqual(state[0], "T", "it was stopped all the time")
        os.kill(stopped, signal.SIGCONT)

    def test_three_workers_do_their_steps(self):
        end = self.end_of("-n", "3", SERVERS)
        self.assertEqual((end["steps"], end["samples"], end["ranks"]), (24, 24 * 8, 3))
        self.assertEqual(len(end["staleness"]), 3)
        for worker in end["staleness"]:
            self.assertEqual(worker["gradients"], sum(worker["histogram"]))
            self.assertEqual(worker["gradients"], 24 * 3, "each step at each of three servers")
        done = self.stormo("train", "mlp.toml", "-n", "2", SERVERS, "--overwrite")
        self.assertRegex(done.stderr, r"staleness +mean \d\.\d\d, max \d+ \(worker 0: ")

    def test_nobody_waits_for_a_worker_that_is_stopped(self):
        """With a policy that waits, the run does not get there."""
        run = self.start("mlp.toml", "--json", "-n", "3", SERVERS, "strategy.policy=async", "steps=1500",
                         "data.path=data/mnist", "--heartbeat", "0s", "--stall-warning", "10s", "--stall-timeout", "30s")
        self.stop_rank_2_until(run, 1400)
        records = [json.loads(line) for line in run.stdout]
        self.assertEqual(run.wait(), 0, run.stderr.read())
        self.assertEqual([worker["gradients"] for worker in records[-1]["staleness"]], [1500 * 3] * 3)

    def test_a_trace_has_the_staleness_of_each_push(self):
        end = self.end_of("-n", "3", SERVERS, "--trace", "trace.json")
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        for rank, worker in enumerate(end["staleness"]):
            pushes = [e for e in events if e["pid"] == rank and e["name"].startswith("push to shard ")]
            counts = collections.Counter(e["args"]["staleness"] for e in pushes)
            self.assertEqual([counts[s] for s in range(len(worker["histogram"]))], worker["histogram"])
            for shard in range(3):
                own = [e["args"] for e in pushes if e["name"] == f"push to shard {shard}"]
                self.assertEqual([args["step"] for args in own], list(range(1, 25)))
                # the versions that it read; each push is the next one after `staleness` others
                for before, after in zip(own, own[1:]):
                    self.assertGreater(after["weights"], before["weights"] + before["staleness"])

    def test_central_storage_is_mirrored_training_with_one_copy(self):
        """By the memory that the kernel counts for all ranks together, shared pages once; programs and libraries are
        left out, which other jobs share."""
        sizes = [784] + [768] * 8 + [10]
        deep = (f"model.sizes={str(sizes)[1:-1].replace(' ', '')}", "optimizer.momentum=0.9", "steps=40", "-n", "3", "--json")
        state = 2 * 4 * sum((m + 1) * n for m, n in zip(sizes, sizes[1:]))  # weights and momentum
        losses, memory = {}, {}
        for kind in ("mirrored", "central_storage"):
            run = self.start("mlp.toml", *deep, f"strategy.kind={kind}", f"checkpoint.directory={kind}")
            first = self.read_until(run, "step", 10)["loss"]
            memory[kind] = sum(int(line.split()[1]) * 1024 for process in ranks_of(run).values()
                               for line in pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                               if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
            losses[kind] = [first] + [r["loss"] for r in map(json.loads, run.stdout) if r["event"] == "step"]
            self.assertEqual(run.wait(), 0, run.stderr.read())
        self.assertEqual(len(losses["mirrored"]), 31)
        for one, other in zip(losses["mirrored"], losses["central_storage"]):
            self.assertAlmostEqual(one, other, delta=1e-6)
        saved = memory["mirrored"] - memory["central_storage"]
        self.assertAlmostEqual(saved, 2 * state, delta=0.4 * state, msg="one copy in the place of three")

    def test_central_storage_has_an_asynchronous_form(self):
        end = self.end_of("-n", "3", SERVERS, "strategy.policy=async", "strategy.servers=1")
        self.assertEqual([worker["gradients"] for worker in end["staleness"]], [24] * 3, "each step at one server")
        self.assertGreater(end["test_accuracy"], 0.5, "by chance: 0.1")
        two_hosts = ("-H", "127.0.0.1:1,127.0.0.2:1", "--overwrite")
        self.assertIn("one host", self.refused("mlp.toml", SERVERS, "strategy.servers=1", *two_hosts))

    def test_what_servers_cannot_do_is_refused_before_anything_starts(self):
        for changes, reason in (
                (("strategy.policy=n_softsync", "strategy.n=4"), "n = 4, but must be from 1 to 3, the number of workers"),
                (("strategy.policy=backup_workers", "strategy.backups=3"), "backups"),
                (("strategy.servers=100",), "100 servers"),
                (("strategy.bound=-1",), "strategy.bound"),
                (("strategy.policy=some",), "one of sync, async, ssp, n_softsync, backup_workers, portions, average"),
                (("strategy.policy=average", "strategy.push_every=2", "strategy.updates=in_place"),
                 "leave out fetch_every and push_every; with policy average a new version is an average"),
                (("strategy.kind=parameter_averaging", "strategy.server_processes=1"),
                 "strategy.server_processes (of strategy.kind=parameter_server, elastic_averaging)"),
                (("optimizer.kind=lamb", "strategy.placement=sliced"), "lars and lamb need norms"),
                (("precision=float16",), "loss scale"),
                (("strategy.bucket_bytes=1024",), "does not use strategy.bucket_bytes"),
                (("strategy.compensation=adaptive_delay_compensated", "strategy.policy=sync"), "async or ssp"),
                (("strategy.lambda_decay=1",), "strategy.lambda_decay"),
        ):
            with self.subTest(changes):
                self.assertIn(reason, self.refused("mlp.toml", "-n", "3", SERVERS, *changes))

    def test_a_recorded_run_is_replayed_bit_for_bit(self):
        end = self.end_of("-n", "3", SERVERS, "--record", "record", "strategy.policy=n_softsync",
                          "strategy.n=2", "optimizer.kind=adamw")
        done = self.stormo("replay", "record", "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(sorted((step["worker"], step["step"]) for step in lines[:-1]),
                         [(worker, step) for worker in range(3) for step in range(1, 25)])
        self.assertEqual(lines[-1]["gradients"], 72)
        for key in ("weights_hash", "recorded_hash"):
            self.assertEqual(lines[-1][key], end["weights_hash"])
        done = self.stormo("replay", "record")
        self.assertIn("as in the recorded run", done.stdout)
        # another learning rate is another run
        done = self.stormo("replay", "record", "optimizer.lr=0.5")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(f"the recorded run had {end['weights_hash']}", done.stdout)
        done = self.stormo("replay", "record", "strategy.servers=2")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("another number of shards", done.stderr)

    def test_a_recorded_run_with_a_factor_that_adapts_is_replayed(self):
        end = self.end_of("-n", "3", SERVERS, "--record", "record", "strategy.compensation=adaptive_delay_compensated",
                          "strategy.lambda=2")
        replayed = json.loads(self.stormo("replay", "record", "--json").stdout.splitlines()[-1])
        self.assertEqual((replayed["weights_hash"], replayed["recorded_hash"]), (end["weights_hash"],) * 2)
        done = self.stormo("replay", "record", "strategy.lambda_decay=0.5")
        self.assertEqual(done.returncode, 1, "another decay is another run")

    def test_a_simulation_with_the_times_of_a_run_is_the_run(self):
        for policy in ("async", "ssp", "n_softsync", "backup_workers") if LONG_FORM else ("ssp", "n_softsync"):
            with self.subTest(policy):
                changes = (SERVERS, "strategy.servers=1", f"strategy.policy={policy}")
                record = f"record_{policy}"
                end = self.end_of("-n", "3", *changes, "--record", record, "--overwrite")
                simulate = ("simulate", "mlp.toml", "steps=24", *changes, "--times", record, "--json")
                done = self.stormo(*simulate)
                self.assertEqual(done.returncode, 0, done.stderr)
                simulated = json.loads(done.stdout)
                self.assertEqual((simulated["workers"], simulated["weights_hash"]), (3, end["weights_hash"]))
        self.assertIn("--workers excludes --times", self.stormo(*simulate, "--workers", "4").stderr)
        done = self.stormo("simulate", "mlp.toml", "--times", "nowhere")
        self.assertEqual(done.returncode, 2)
        self.assertIn("make one by stormo train --record", done.stderr)

    def test_a_record_that_is_not_whole_is_named(self):
        self.end_of("-n", "2", SERVERS, "--record", "record")
        self.assertIn("is there already", self.refused("mlp.toml", "-n", "2", SERVERS, "--record", "record", "--overwrite"))
        events = max((self.folder / "record").glob("*1*"), key=lambda f: f.stat().st_size)
        events.write_bytes(events.read_bytes()[:-320])
        done = self.stormo("replay", "record")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("is cut: the run went on after its last event", done.stderr)
        other = self.folder / "record" / "worker-0.events"
        sound = other.read_bytes()
        other.write_bytes(sound[:-20] + bytes([sound[-20] ^ 8]) + sound[-19:])
        self.assertIn("is damaged at event", self.stormo("replay", "record").stderr)
        other.write_bytes(events.read_bytes())
        self.assertIn("another run or another worker", self.stormo("replay", "record").stderr)
        other.write_bytes(sound)
        events.unlink()
        done = self.stormo("replay", "record")
        self.assertIn(events.name, done.stderr)
        done = self.stormo("replay", "nowhere")
        self.assertEqual(done.returncode, 2)
        self.assertIn("make one by stormo train --record", done.stderr)
        self.assertIn("parameter_server", self.refused("mlp.toml", "-n", "2", "--record", "other", "checkpoint.directory=x"))

    def test_averages_of_parameters(self):
        end = self.end_of("-n", "3", AVERAGING, "strategy.period=8")
        self.assertEqual(end["averaging"]["averages"], 3)
        self.assertEqual(end["averaging"]["period"], 8)
        self.assertGreater(end["averaging"]["max_distance"], 0)
        self.assertEqual(end["samples"], 24 * 8)
        done = self.stormo("train", "mlp.toml", "-n", "3", AVERAGING, "strategy.period=3",
                           "--overwrite")
        self.assertRegex(done.stderr, r"averages +2 of parameters, every 3 steps; distance before")

    def test_the_plan_says_how_often(self):
        plan = self.stormo("train", "mlp.toml", "-n", "2", AVERAGING, "strategy.period=8",
                           "--dry-run")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("average 0-3 over dp every 8", plan.stdout)
        self.assertIn("agree every 8", plan.stdout)
        plan = self.stormo("train", "mlp.toml", "-n", "2", AVERAGING, "strategy.outer=nesterov", "--dry-run")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("average_parameters 0-3 over dp every 8", plan.stdout)
        self.assertIn("outer_update 0-3 every 8", plan.stdout)

    def test_slots_of_the_optimizer_have_periods_of_their_own(self):
        slots = (AVERAGING, "optimizer.kind=adamw", "strategy.state_periods=[24, 48]")
        plan = self.stormo("train", "mlp.toml", "-n", "2", *slots, "--dry-run")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        for action in ("average_parameters 0-3 over dp every 8", "average_state 0-3 slot 0 over dp every 24",
                       "average_state 0-3 slot 1 over dp every 48"):
            self.assertIn(action, plan.stdout)
        cost = self.stormo("plan", "cost", "mlp.toml", "-n", "2", "--hosts", "2", *slots)
        self.assertRegex(cost.stdout, r"A step on average sends [0-9.]+ \w+ to other hosts, and moves 0 B inside hosts.")
        facts = json.loads(self.stormo("plan", "cost", "mlp.toml", "-n", "2", "--hosts", "2", *slots, "--json").stdout)
        # all three in one step; of 48 steps there are 6, 2 and 1 averages
        ratio = facts["mean_between_hosts_per_rank"][0] / facts["between_hosts_per_rank"][0]
        self.assertAlmostEqual(ratio, 9 / 48 / 3, 2)
        end = self.end_of("-n", "2", AVERAGING, "optimizer.kind=adamw", "strategy.period=4",
                          "strategy.state_periods=[8, 12]")
        self.assertEqual(end["averaging"]["averages"], 6)
        for changes, reason in (
                (("strategy.state_periods=[24]",), "has 1 number(s), and the optimizer 2 slot(s): give one for each"),
                (("strategy.state_periods=[12, 24]",), "give multiples of period 8, up to 1048576, not 12"),
                (("strategy.average_state=no",), "leave out state_periods, or average_state"),
                (("strategy.max_distance=1",), "strategy.state_periods: strategy.local_period and"),
                (("strategy.kind=ddp",), "strategy.state_periods"),
        ):
            with self.subTest(changes):
                self.assertIn(reason, self.refused("mlp.toml", "-n", "2", *slots, *changes))

    def test_the_ranks_of_a_host_average_more_often(self):
        hosts = (AVERAGING, "strategy.period=8", "strategy.local_period=2")
        plan = self.stormo("plan", "show", "mlp.toml", "-n", "4", "--hosts", "2", *hosts)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("average 0-3 over host every 2", plan.stdout)
        self.assertIn("average 0-3 over dp,host every 8", plan.stdout)
        one_host = self.end_of("-n", "3", *hosts)
        plain = self.end_of("-n", "3", AVERAGING, "strategy.period=2", "--overwrite")
        self.assertEqual(one_host["weights_hash"], plain["weights_hash"])
        self.assertIn("a local_period that divides period 8, not 3",
                      self.refused("mlp.toml", "-n", "2", *hosts, "strategy.local_period=3"))

    def test_averages_with_an_outer_optimizer(self):
        end = self.end_of("-n", "2", AVERAGING, "strategy.period=6", "strategy.outer=nesterov")
        self.assertEqual(end["averaging"]["averages"], 4)
        plain = self.end_of("-n", "2", AVERAGING, "strategy.period=6", "--overwrite")
        self.assertNotEqual(end["weights_hash"], plain["weights_hash"])

    def test_fragments_travel_while_ranks_train(self):
        plan = self.stormo("train", "mlp.toml", "-n", "2", AVERAGING, *STREAMING, "strategy.compression=int8", "--dry-run")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("average_parameters 0-0 over dp async codec int8 every 8", plan.stdout)
        self.assertIn("outer_update 1-3 every 8 offset 7 mixing 0.5", plan.stdout)
        def weights(*arguments):
            return self.lines("mlp.toml", "-n", "2", AVERAGING, *STREAMING, "checkpoint.every=14", *arguments)[-1][
                "weights_hash"]
        whole = weights("steps=24", "--overwrite")
        self.assertNotEqual(whole, weights("steps=24", "strategy.delay=0", "--overwrite"))
        weights("steps=14", "--overwrite")  # then a fragment is under way
        self.assertEqual(weights("steps=24", "--resume"), whole)

    def test_what_averages_cannot_do_is_refused(self):
        for changes, reason in (
                (("strategy.period=0",), "strategy.period"),
                (("strategy.parameters=host_shared",), "leave out parameters"),
                (("precision=float16",), "loss scale of its own"),
                (("strategy.bucket_bytes=1024",), "does not use strategy.bucket_bytes"),
                (("strategy.outer_lr=0.5",), "takes averages as they are: leave out outer_lr and outer_momentum"),
                (("strategy.outer=slowmo", "strategy.outer_lr=0", "strategy.outer_momentum=1"),
                 "has an outer_lr above 0, not 0: leave it out for the usual one; has an outer_momentum of at least 0"),
                (("strategy.fragments=2",), "leave out fragments, delay and mixing, or choose outer=nesterov"),
                (("strategy.compression=int8",), "leave out compression, or choose outer=nesterov"),
                ((*STREAMING, "strategy.fragments=0"), "strategy.fragments"),
                ((*STREAMING, "strategy.fragments=9", "strategy.delay=0"), "give 1 to 8, not 9, or a longer period"),
                ((*STREAMING, "strategy.fragments=5", "strategy.delay=0"),
                 "there are 5 fragments, and fewer trainable parameters; give fewer"),
                ((*STREAMING, "strategy.delay=4"), "give a delay of 0 to 3, not 4"),
                ((*STREAMING, "strategy.mixing=2"), "strategy.mixing"),
                ((*STREAMING, "strategy.max_distance=1"), "strategy.max_distance: fragments have steps of their own"),
        ):
            with self.subTest(changes):
                self.assertIn(reason, self.refused("mlp.toml", "-n", "2", AVERAGING, *changes))

    def test_ranks_mix_with_their_neighbours(self):
        ends = {}
        (self.folder / "star.txt").write_text("# rank 0 in the middle\nedges\n0 1\n0 2\n0 3\n")
        for topology in ("ring", "one_peer_exponential", "edges:0-1,0-2,0-3", f"file:{self.folder}/star.txt"):
            end = self.end_of("-n", "4", GOSSIP, f"strategy.topology={topology}", "strategy.period=6", "--overwrite")
            self.assertEqual(end["averaging"]["averages"], 4)
            ends[topology.split(":")[0]] = end["weights_hash"]
        self.assertEqual(ends["edges"], ends["file"])
        self.assertEqual(len(set(ends.values())), 3)
        tracked = self.end_of("-n", "4", GOSSIP, "strategy.gradient_tracking=true", "strategy.period=6", "--overwrite")
        self.assertNotEqual(tracked["weights_hash"], ends["ring"])

    def test_the_plan_says_how_ranks_mix(self):
        plan = self.stormo("train", "mlp.toml", "-n", "4", GOSSIP, "strategy.gradient_tracking=true",
                           "strategy.topology=hypercube", "--dry-run")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("mix 0-3 over dp async by hypercube", plan.stdout)
        self.assertIn("track 0-3 over dp by hypercube", plan.stdout)
        self.assertIn("average_parameters 0-3 over dp every 8", plan.stdout)
        ring = self.stormo("plan", "cost", "mlp.toml", "-n", "8", GOSSIP)
        self.assertEqual(ring.returncode, 0, ring.stderr)
        self.assertIn("ring of 8 ranks: each sends to at most 2 other(s); distances shrink to 0.8047 in a step "
                      "(second eigenvalue)", ring.stdout)
        one_peer = self.stormo("plan", "cost", "mlp.toml", "-n", "8", GOSSIP, "strategy.topology=one_peer_exponential")
        self.assertIn("one_peer_exponential of 8 ranks: each sends to at most 1 other(s), in 3 rounds; all have the "
                      "mean after 3 step(s)", one_peer.stdout)
        facts = json.loads(self.stormo("plan", "cost", "mlp.toml", "-n", "8", GOSSIP, "--json").stdout)
        self.assertAlmostEqual(facts["mixing"][0]["second_eigenvalue"], 0.80474, 5)

    def test_what_gossip_cannot_do_is_refused(self):
        (self.folder / "wrong.txt").write_text("edges\n0 1 2\n")
        for changes, reason in (
                (("strategy.topology=rign",), "there is none of this name, but ring, torus, "),
                (("strategy.topology=torus", "-n", "3"), "3 ranks are no grid of 2 rows and columns or more; use "),
                (("strategy.topology=edges:0-1,2-3", "-n", "4"), "there is no way between the ranks {0,1}, {2,3}"),
                (("strategy.topology=edges:0-1,1-9",), "edge 1-9 names rank 9, and there are the ranks 0 to 1"),
                (("strategy.topology=weights:1/2,1/2;1/2,1/4",), "row 1 adds up to 0.75, not 1"),
                (("strategy.topology=file:/no/file",), "topology file /no/file: "),
                (("strategy.topology=file:wrong.txt",), "line 2: expected an edge, which is two ranks, as 0 1"),
                (("strategy.gradient_tracking=true", "train.clip_norm=1"), "leave out train.clip_norm or "),
                (("strategy.outer=nesterov",), "does not use strategy.outer"),
                (("precision=float16",), "loss scale of its own"),
                (("strategy.topology=pairs", "strategy.gradient_tracking=true"), "leave out gradient_tracking, or "),
                (("strategy.topology=pairs", "strategy.pipeline=2", "-n", "4"), "leave out pipeline and tensor, or "),
                (("strategy.topology=pairs", "elastic.enabled=true"), "take strategy.topology=ring, exponential, "),
        ):
            with self.subTest(changes):
                ranks = () if "-n" in changes else ("-n", "2")
                self.assertIn(reason, self.refused("mlp.toml", *ranks, GOSSIP, *changes))

    def test_ranks_mix_in_pairs(self):
        """At any time: as good as in steps that all do, and all have the mean at an evaluation and the end."""
        long = ("-n", "4", GOSSIP, "steps=80", "data.path=data/mnist", "eval_every=20", "checkpoint.every=40",
                "--overwrite")
        ring = self.lines("mlp.toml", *long, "strategy.topology=ring")
        pairs = self.lines("mlp.toml", *long, "strategy.topology=pairs", "strategy.period=1")
        first = next(r["loss"] for r in ring if r["event"] == "step")
        of_ring, of_pairs = ([r["loss"] for r in way if r["event"] == "eval"][-1] for way in (ring, pairs))
        self.assertLess(of_ring, first / 2, "it learns")
        self.assertLess(abs(of_pairs - of_ring), 0.1)
        self.assertGreaterEqual(pairs[-1]["averaging"]["averages"], 2 * 4, "of each rank that asks, in each round")
        self.assertEqual(pairs[-1]["samples"], 80 * 8)

    def test_nobody_waits_for_a_rank_of_a_pair_that_is_stopped(self):
        run = self.start("mlp.toml", "--json", "-n", "4", GOSSIP, "strategy.topology=pairs", "strategy.period=1",
                         "steps=1000", "data.path=data/mnist", "--heartbeat", "0s", "--stall-timeout", "100s")
        self.stop_rank_2_until(run, 950)
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 0, err)
        self.assertEqual(records[-1]["samples"], 1000 * 8)

    def test_a_killed_rank_of_a_pair_is_named(self):
        self.assert_lost_rank_ends_job("mlp.toml", "-n", "4", GOSSIP, "strategy.topology=pairs", "strategy.period=1",
                                       "steps=1000000", "data.path=data/mnist")

    def test_ranks_that_mix_in_pairs_are_told_to_save_and_to_end(self):
        """One of them is, and others learn it from pairs."""
        run = self.start("mlp.toml", "--json", "-n", "4", GOSSIP, "strategy.topology=pairs", "strategy.period=1",
                         "steps=1000000", "data.path=data/mnist", "--on-usr1", "save")
        self.read_until(run, "step", 20)
        os.kill(ranks_of(run)[0], signal.SIGUSR1)  # one that asks
        while not list(self.folder.glob("run/step-*/manifest.json")):
            self.read_until(run, "step")
        self.read_until(run, "step")
        os.kill(ranks_of(run)[3], signal.SIGTERM)  # one that answers
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 128 + signal.SIGTERM, err)
        self.assertEqual(records[-1]["event"], "end")
        done = records[-1]["steps"]
        self.assertLess(done, 1000000)
        rest = self.lines("mlp.toml", "-n", "3", GOSSIP, "strategy.topology=pairs", "strategy.period=1",
                          f"steps={done + 5}", "--resume", "data.path=data/mnist")
        self.assertEqual(rest[-1]["steps"], done + 5)

    def test_workers_exchange_with_a_centre(self):
        end = self.end_of("-n", "3", ELASTIC, "strategy.period=8", "strategy.servers=1")
        self.assertEqual((end["steps"], end["samples"], end["ranks"]), (24, 24 * 8, 3))
        for worker in end["staleness"]:
            self.assertEqual(worker["gradients"], 3, "in steps 1, 9 and 17")

    def test_the_plan_of_workers_that_exchange(self):
        plan = self.stormo("train", "mlp.toml", "-n", "2", ELASTIC, "strategy.period=8", "--dry-run")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("elastic_average 0-3 over dp every 8", plan.stdout)
        self.assertNotIn("agree", plan.stdout)

    def test_what_elastic_averaging_cannot_do_is_refused(self):
        for changes, reasons in (
                (("strategy.period=0", "strategy.moving_rate=-0.1"), ("strategy.period", "strategy.moving_rate")),
                (("strategy.moving_rate=1.5", "strategy.servers=-1"), ("strategy.moving_rate", "strategy.servers")),
                (("strategy.moving_rate=0.6",), ("1.200000 for all 2 workers",)),
                (("strategy.parameters=host_shared",), ("leave out parameters",)),
                (("precision=float16",), ("loss scale of its own",)),
                (("strategy.bucket_bytes=1024",), ("does not use strategy.bucket_bytes",)),
                (("strategy.servers=100",), ("100 servers",)),
        ):
            with self.subTest(changes):
                said = self.refused("mlp.toml", "-n", "2", ELASTIC, *changes)
                for reason in reasons:
                    self.assertIn(reason, said)


if __name__ == "__main__":
    main()
