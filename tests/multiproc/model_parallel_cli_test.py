"""stormo train with models that are cut over ranks, by layers and inside of them.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import array
import json
import os
import re
import shutil
import subprocess
import unittest

from train_cli import DEADLINE_S, LONG_FORM, REPOSITORY, STORMO, TrainTest, main

PIPELINE = ("strategy.pipeline=2", "train.micro_batches=4")
CONTEXT = ("strategy.context=2",)
TENSOR = ("strategy.tensor=2",)
SEQUENCE = (*TENSOR, "strategy.sequence_parallel=true")
SHARDS = ("strategy.kind=fsdp",)
# five segments with a tied weight
GPT = ("gpt.toml", "model.layers=3", "steps=8", "train.clip_norm=1", "eval_every=4")


def steps_of(trace):
    """Number -> events."""
    steps = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["args"]["step"] > 0:
            steps.setdefault(event["args"]["step"], []).append(event)
    return steps


def start_of(step, rank):
    return min(e["ts"] for e in step if e["pid"] == rank) / 1e6


def end_of(step, rank):
    return max(e["ts"] + e["dur"] for e in step if e["pid"] == rank) / 1e6


def computations(step, rank):
    """Names and seconds, in order, without what the rank waits for meanwhile."""
    own = sorted((e for e in step if e["pid"] == rank), key=lambda e: e["ts"])
    waits = [e for e in own if e["cat"] == "wait"]
    return [(e["name"], (e["dur"] - sum(w["dur"] for w in waits if 0 <= w["ts"] - e["ts"] < e["dur"])) / 1e6)
            for e in own if e["cat"] in ("compute", "data")]


def replay(step):
    """Seconds that two stages need for the computations of a step, where nothing else takes time: the second one needs
    what the first one has computed forward, and the first one what the second one has computed backward. Both need the
    other's last gradient before the norm, and the other's norm before the update."""
    left = [computations(step, rank) for rank in (0, 1)]
    last = sum(name == "backward" for name, _ in left[0]) - 1
    clock, done, ended = [0, 0], [{}, {}], {}
    while any(left):
        before = len(left[0]) + len(left[1])
        for rank in (0, 1):
            while left[rank]:
                name, seconds = left[rank][0]
                number = done[rank].get(name, 0)
                needed = {("forward", 1): ("forward", 0, number), ("backward", 0): ("backward", 1, number),
                          ("norm", rank): ("backward", 1 - rank, last), ("update", rank): ("norm", 1 - rank, 0)
                          }.get((name, rank))
                if needed and needed not in ended:
                    break
                clock[rank] = max(clock[rank], ended.get(needed, 0)) + seconds
                ended[name, rank, number] = clock[rank]
                done[rank][name] = number + 1
                left[rank].pop(0)
        if len(left[0]) + len(left[1]) == before:
            raise AssertionError(f"neither stage goes on: {left}")
    return max(clock)


class ModelParallelTest(TrainTest):
    def run_of(self, *arguments):
        """The last record, and the losses of the steps and evaluations."""
        records = self.lines(*arguments)
        self.assertEqual(records[-1]["event"], "end")
        return records[-1], [r["loss"] for r in records if r["event"] in ("step", "eval")]

    def exported(self, folder):
        """The values of each parameter in a checkpoint, by name."""
        self.stormo("checkpoint", "export", folder, f"{folder}.safetensors")
        content = (self.folder / f"{folder}.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8:8 + length]), content[8 + length:]
        return {name: array.array("f", data[slice(*entry["data_offsets"])])
                for name, entry in header.items() if name != "__metadata__"}

    def assert_near(self, a, b):
        self.assertEqual(len(a), len(b))
        for x, y in zip(a, b):
            self.assertAlmostEqual(x, y, delta=2e-4 * abs(y))

    def test_trains_as_one_process_does(self):
        _, alone = self.run_of(*GPT, "checkpoint.directory=alone")
        # every schedule, in all meshes: tests/unit/train/model_parallel_test.cc
        ways = (("-n", "2", *PIPELINE, "strategy.schedule=interleaved", "strategy.chunks=2",
                 "strategy.cut=1,1,2,1"),
                ("-n", "2", *PIPELINE, "strategy.schedule=zero_bubble_v", "strategy.chunks=2"),
                ("-n", "4", *PIPELINE, "train.micro_batches=2", "train.recompute=true"),
                ("-n", "4", *PIPELINE, "train.micro_batches=2", *SHARDS, "strategy.stage=1", "train.verify_every=3"),
                ("-n", "4", *TENSOR, *PIPELINE), ("-n", "4", *SEQUENCE, *PIPELINE),
                ("-n", "4", *CONTEXT, *SHARDS, "train.recompute=true"),
                ("-n", "4", *CONTEXT, *PIPELINE, "strategy.attention=heads"))
        for way in ways if LONG_FORM else ways[1::2]:
            end, losses = self.run_of(*GPT, *way, "checkpoint.directory=cut", "--overwrite")
            self.assert_near(losses, alone)
            self.assertEqual((end["steps"], end["samples"]), (8, 32))

    def test_parts_of_replicas_are_averaged_as_whole_replicas_are(self):
        averaging = ("strategy.kind=parameter_averaging", "strategy.period=3", "train.verify_every=5",
                     "train.micro_batches=2", "checkpoint.every=4", "--overwrite")
        whole, losses = self.run_of(*GPT, "-n", "2", *averaging, "checkpoint.directory=whole")
        self.assertEqual(whole["averaging"]["averages"], 5)  # after 3, 4, 5, 6, 8
        for cut in (("strategy.pipeline=2",), SEQUENCE, TENSOR) if LONG_FORM else (("strategy.pipeline=2",), SEQUENCE):
            way = (*GPT, "-n", "4", *cut, *averaging)
            end, seen = self.run_of(*way, "checkpoint.directory=cut")
            self.assert_near(seen[-8:], losses[-8:])  # the first stage of a pipeline knows none before an average
            self.assertEqual(end["averaging"]["averages"], 5)
            for distance in ("mean_distance", "max_distance"):  # what several ranks have counts once
                self.assert_near([end["averaging"][distance]], [whole["averaging"][distance]])
            self.run_of(*way, "checkpoint.directory=half", "steps=4")
            again, _ = self.run_of(*way[:-1], "checkpoint.directory=half", "--resume")
            self.assertEqual(again["weights_hash"], end["weights_hash"])

    def test_recipes_of_cut_models_run(self):
        """And train as the recipe that is not cut: the losses and the change of each parameter."""
        # no warm-up and a large rate: what a step does to parameters is in the next losses
        keys = ("data.path=text", "steps=3", "train.log_every=1", "sample.length=0", "learning_rate.kind=constant",
                "learning_rate.warmup_steps=0", "optimizer.kind=sgd", "optimizer.lr=0.5", "train.clip_norm=0", "optimizer.weight_decay=0")
        losses, parameters = [], []
        for recipe, ranks in (("gpt_shakespeare", "1"), ("gpt_pipeline", "2"), ("gpt_tensor", "2"), ("gpt_3d", "4")):
            path, run = str(REPOSITORY / "recipes" / f"{recipe}.toml"), f"checkpoint.directory={recipe}"
            end, found = self.run_of(path, "-n", ranks, *keys, run)
            self.assertEqual((end["steps"], end["ranks"]), (3, int(ranks)))
            losses.append(found)
            parameters.append(self.exported(recipe))
        self.run_of(path, "-n", ranks, *keys, "checkpoint.directory=still", "optimizer.lr=1e-30", "steps=1")
        begin = self.exported("still")
        for found in losses[1:]:
            self.assert_near(found, losses[0])
        self.assertEqual(len(begin), 27)
        for cut in parameters[1:]:
            self.assertEqual(set(cut), set(begin))
            for name, values in cut.items():
                moved = [abs(a - b) for a, b in zip(parameters[0][name], begin[name], strict=True)]
                apart = [abs(a - b) for a, b in zip(parameters[0][name], values, strict=True)]
                self.assertGreater(max(moved), 1e-6, f"{name}: no gradient came here")
                self.assertLess(max(apart), 1e-3 * max(moved) + 1e-6, name)

    def test_norms_of_parameters_are_those_of_the_whole(self):
        # by about 2 % of a parameter in a step; lars: tests/unit/train/model_parallel_test.cc
        for kind, rate in (("lars", 20), ("lamb", 0.02)) if LONG_FORM else (("lamb", 0.02),):
            rule = (*GPT, f"optimizer.kind={kind}", f"optimizer.lr={rate}", "train.verify_every=3")
            _, alone = self.run_of(*rule)
            ways = (("-n", "4", *SEQUENCE, *PIPELINE), ("-n", "4", *TENSOR, *SHARDS), ("-n", "2", *TENSOR))
            for way in ways if LONG_FORM else ways[:2]:
                self.assert_near(self.run_of(*rule, *way)[1], alone)
            # the scale of the loss is not in the norms, on any rank
            self.assert_near(self.run_of(*rule, *TENSOR, "-n", "2", "precision=float16")[1], alone)

    def test_a_batch_may_have_fewer_samples_than_ranks_that_share_them(self):
        one = (*GPT, "train.global_batch=1", "--overwrite")
        _, alone = self.run_of(*one)
        for way in (CONTEXT, TENSOR, SEQUENCE):
            self.assert_near(self.run_of(*one, "-n", "2", *way)[1], alone)
        self.assertIn("gives 2 replicas less than one sample", self.refused("gpt.toml", *one[1:], "-n", "4", *TENSOR))

    def test_any_mesh_reads_its_checkpoint(self):
        adam = (*GPT, "optimizer.kind=adamw")
        _, whole = self.run_of(*adam, "checkpoint.directory=whole", "steps=12")
        # each of the first ones is read by two others; more meshes: tests/unit/train/model_parallel_test.cc
        chains = ((("-n", "2", *PIPELINE), ("-n", "1"), ("-n", "4", *TENSOR, *PIPELINE)),
                  (("-n", "4", *TENSOR, *SHARDS), ("-n", "2", *SHARDS), ("-n", "3", *PIPELINE, "strategy.pipeline=3")),
                  (("-n", "4", *PIPELINE, "train.micro_batches=2", *SHARDS, "strategy.stage=1"),
                   ("-n", "4", *PIPELINE, "strategy.pipeline=4"), ("-n", "4", *SHARDS)),
                  (("-n", "2", *CONTEXT), ("-n", "4", *PIPELINE, "train.micro_batches=2", *SHARDS),
                   ("-n", "4", *TENSOR, *SHARDS)),
                  (("-n", "4", *SEQUENCE, "train.recompute=true"), ("-n", "2", *SEQUENCE), ("-n", "1")))
        for first, *ways in chains if LONG_FORM else chains[::3]:
            self.run_of(*adam, *first, "steps=4", "checkpoint.directory=cut", "--overwrite")
            for command in (("evaluate", "cut", "--json"), ("sample", "cut", "--json")):
                done = self.stormo(*command)
                self.assertEqual(done.returncode, 0, done.stderr)
            for way in ways:
                shutil.rmtree(self.folder / "copy", ignore_errors=True)
                shutil.copytree(self.folder / "cut", self.folder / "copy", symlinks=True)
                _, losses = self.run_of(*adam, *way, "steps=12", "checkpoint.directory=copy", "--resume")
                self.assert_near(losses[-4:], whole[-4:])

    # optimizer state, to the bit: tests/unit/train/model_parallel_test.cc
    def test_other_meshes_read_what_eight_ranks_saved_to_the_bit(self):
        model = (*GPT, "model.heads=8", "optimizer.kind=adamw", "train.global_batch=8", "steps=4")
        saved, _ = self.run_of(*model, "-n", "8", *TENSOR, "checkpoint.directory=cut")
        ways = (("-n", "8", *TENSOR, *PIPELINE), ("-n", "4", *PIPELINE, "strategy.pipeline=4"),
                ("-n", "8", *SHARDS, "strategy.parameters=sharded"), ("-n", "2"))
        for way in ways if LONG_FORM else ways[:2]:
            read, _ = self.run_of(*model, *way, "checkpoint.directory=cut", "--resume")
            self.assertEqual((read["weights_hash"], read["train_loss_steps"]), (saved["weights_hash"], 0))

    def test_a_trace_shows_where_stages_wait(self):
        for cut in ((), ("strategy.cut=4,1",)):
            run = (*GPT, "-n", "2", *PIPELINE, "eval_every=0", "checkpoint.directory=", *cut)
            self.lines(*run, "--trace", "run.json")
            steps = steps_of(json.loads((self.folder / "run.json").read_text()))
            for step in steps.values():  # for the gradient of the weight that both read
                sums = [e for e in step if (e["cat"], e["name"]) == ("wait", "all_reduce")]
                self.assertEqual({e["pid"] for e in sums if e["args"]["bytes"] > 1000}, {0, 1})  # others: few numbers
            played = self.stormo("plan", "simulate", *run, "--trace", "run.json", "--json")
            self.assertEqual(played.returncode, 0, played.stderr)
            traced = json.loads(played.stdout.splitlines()[-1])["traced"]
            used = [steps[number] for number in range(3, 8)]  # not the first two, and the last one evaluates
            self.assertEqual(traced["steps"], len(used))
            seconds = [max(end_of(step, rank) - start_of(step, rank) for rank in (0, 1)) for step in used]
            self.assertAlmostEqual(traced["seconds"], sum(seconds) / len(used), delta=1e-6)
            computed = sum(duration for step in used for rank in (0, 1) for _, duration in computations(step, rank))
            self.assertAlmostEqual(traced["idle_share"], 1 - computed / (2 * sum(seconds)), delta=1e-3)
            # a run also waits for what hands tensors over, and moves take some time
            replayed = sum(map(replay, used)) / len(used)
            self.assertGreaterEqual(traced["each_step_seconds"], replayed)
            self.assertLess(traced["each_step_seconds"], 1.02 * replayed + 50e-6)
            self.assertLess(traced["each_step_seconds"], 1.02 * traced["seconds"])

    # its batches are finished before a checkpoint, so a step after it is the same in both runs
    def test_an_asynchronous_pipeline_resumes_to_the_bit(self):
        for schedule in ("pipedream", "pipedream_2bw") if LONG_FORM else ("pipedream",):
            way = ("gpt.toml", "model.layers=3", "-n", "2", *PIPELINE, f"strategy.schedule={schedule}",
                   "strategy.period=3", "checkpoint.every=4", "--overwrite")
            whole, losses = self.run_of(*way, "steps=11", "checkpoint.directory=whole")
            self.assertLess(losses[-1], losses[0])
            self.run_of(*way, "steps=4", "checkpoint.directory=cut")
            resumed, _ = self.run_of(*way[:-1], "steps=11", "checkpoint.directory=cut", "--resume")
            self.assertEqual(resumed["weights_hash"], whole["weights_hash"])

    @unittest.skipUnless(shutil.which("mpirun"), "set-up: no mpirun")
    def test_stages_that_share_no_memory_send(self):
        _, alone = self.run_of(*GPT)
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        done = subprocess.run(["mpirun", "--oversubscribe", "-n", "2", STORMO, "train", *GPT, "--engine", "mpi",
                               *PIPELINE, "--json", "checkpoint.directory="], cwd=self.folder, env=environment,
                              capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.assert_near([r["loss"] for r in records if r["event"] in ("step", "eval")], alone)

    # lines of the log come when all ranks meet: they have no loss that is old
    def test_an_asynchronous_pipeline_logs_what_it_knows(self):
        records = self.lines("gpt.toml", "model.layers=3", "-n", "2", *PIPELINE, "strategy.schedule=pipedream",
                             "strategy.period=3", "steps=10", "eval_every=5")
        steps = [(r["step"], r["loss"]) for r in records if r["event"] == "step"]
        self.assertEqual([step for step, _ in steps], [3, 5, 6, 9, 10])
        self.assertEqual(len({loss for _, loss in steps}), len(steps))

    def test_a_lost_rank_ends_the_job_with_its_cause(self):
        for way in (PIPELINE, TENSOR, CONTEXT) if LONG_FORM else (PIPELINE, CONTEXT):
            self.assert_lost_rank_ends_job("gpt.toml", *way, "-n", "2", "steps=100000")

    def test_what_cannot_be_is_refused_before_anything_starts(self):
        cases = (
            (("-n", "3", *PIPELINE),
             ("replicas of 2 ranks (pipeline 2, tensor 1, context 1), and 3 ranks are no multiple",)),
            (("-n", "2", "strategy.pipeline=2"), ("keeps 2 stages busy", "use train.micro_batches=2, or use fewer stages")),
            (("-n", "8", "strategy.pipeline=8", "train.micro_batches=8", "train.global_batch=8"),
             ("segments, too few for 8 parts of a pipeline",)),
            (("-n", "2", *PIPELINE, *SHARDS), ("'fsdp' has nothing to shard: all 2 ranks", "pipeline 2, tensor 1")),
            (("-n", "4", *PIPELINE, "train.micro_batches=2", *SHARDS, "strategy.schedule=pipedream"),
             ("each stage updates by itself", "use a schedule with a flush, such as 1f1b, or 'ddp'")),
            (("-n", "2", *PIPELINE, "model.layers=3", "strategy.cut=1,2"),
             ("parts of 1, 2 segments", "has 5 segments")),
            (("-n", "2", *PIPELINE, "strategy.schedule=zigzag"), ("strategy.schedule", "gpipe")),
            (("-n", "2", *PIPELINE, "strategy.schedule=interleaved"), ("at least 2 chunks",)),
            (("-n", "2", "strategy.schedule=gpipe"), ("set pipeline to 2 or more",)),
            (("-n", "2", "strategy.attention=heads"), ("set context to 2 or more",)),
            (("-n", "2", *PIPELINE, "strategy.chunks=2"), ("use 'interleaved'",)),
            (("-n", "2", *PIPELINE, "strategy.schedule=zero_bubble_v"), ("has 2 chunks", "set chunks=2")),
            (("-n", "2", *PIPELINE, "strategy.schedule=pipedream", "train.clip_norm=1"), ("leave out clip_norm",)),
            (("-n", "2", *PIPELINE, "strategy.parameters=host_shared"), ("leave out parameters",)),
            (("-n", "2", *PIPELINE, "strategy.bucket_bytes=1000"), ("leave out bucket_bytes",)),
            (("-n", "2", *PIPELINE, "strategy.kind=parameter_server", "strategy.server_processes=1"),
             ("and 1 ranks are no multiple", "a multiple of 2 beside the server processes")),
            (("-n", "2", *PIPELINE, "optimizer.kind=lbfgs", "optimizer.lr=1"), ("lbfgs needs the gradient",)),
            (("-n", "3", "strategy.tensor=3"), ("has 2 heads of attention, which 3 ranks", "use one of 1, 2 ranks")),
            (("-n", "2", "strategy.sequence_parallel=true"), ("set tensor to 2 or more", "sequence_parallel")),
            (("-n", "2", *SEQUENCE, "model.context=15"),
             ("has 15 positions, which 2 ranks do not divide evenly", "a multiple of 2 positions")),
            (("-n", "2", *PIPELINE, "train.micro_batches=1000000000000"), ("at most as many as it has samples",)),
            (("-n", "3", "strategy.context=3"), ("16 positions, which are not 2 equal chunks", "a multiple of 6")),
            (("-n", "4", "strategy.context=4", "strategy.attention=heads"),
             ("has 2 heads of attention, which 4 ranks", "use attention 'ring'")),
            (("-n", "2", *TENSOR, "strategy.kind=central_storage"), ("does not use strategy.tensor",)),
            (("-n", "4", *PIPELINE, *CONTEXT, "strategy.kind=parameter_averaging", "strategy.schedule=pipedream"),
             ("leave out context, or use 'ddp'", "leave out schedule, or use 'ddp'")),
            (("-n", "2", *TENSOR, "strategy.pipeline=2", "train.micro_batches=4"), ("replicas of 4 ranks",)),
        )
        for arguments, messages in cases:
            err = self.refused("gpt.toml", *arguments)
            for message in messages:
                self.assertIn(message, err, arguments)
        for way in (SEQUENCE, CONTEXT):
            self.assertIn("the output of model mlp is of a whole sample", self.refused("mlp.toml", "-n", "2", *way))

    def test_the_sample_of_a_large_model_is_left_out(self):
        for layers, has_sample in (("1", True), ("6", False)):  # 53 and 302 MiB
            done = self.stormo("train", "gpt.toml", "-n", "2", *TENSOR, "model.heads=8", "model.width=1024", "steps=1",
                               "optimizer.kind=sgd", f"model.layers={layers}")
            self.assertEqual(done.returncode, 0, done.stderr)
            said = done.stdout + done.stderr
            self.assertEqual("a sample of what the model writes" in said, has_sample, said)
            self.assertEqual("no rank has the whole model, which takes more than 256 MiB" in said, not has_sample, said)

    def test_the_part_of_a_rank_is_shown(self):
        recipe = ("gpt.toml", "-n", "2", *PIPELINE)
        shown = self.stormo("plan", "show", *recipe, "--rank", "1")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("elsewhere", shown.stdout)
        self.assertNotIn("forward 0-", shown.stdout)
        refused = self.stormo("plan", "show", *recipe, "--rank", "2")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--rank 2: the plan is for 2 rank(s), counted from 0", refused.stderr)
        picture = self.stormo("plan", "simulate", *recipe, "--svg").stdout
        self.assertRegex(picture, ">(forward )?3<")
        cost = json.loads(self.stormo("plan", "cost", *recipe, "--hosts", "2", "--json").stdout)
        # 4 micro-batches of one sample: 16 tokens of 16 numbers
        activation = 4 * 16 * 16 * 4
        self.assertGreaterEqual(min(cost["between_hosts_per_rank"]), activation)

    def test_the_pictures_in_the_docs_are_the_programs(self):
        docs = REPOSITORY / "docs"
        command = re.search("\nstormo plan simulate recipes/(.*) --svg\n", (docs / "model-parallel.md").read_text())[1]
        recipe, *command = command.split()
        # as many characters as tinyshakespeare has
        (self.folder / "text" / "a.txt").write_text("".join(map(chr, range(40, 104))) * 20 + "\n")
        for schedule in ("gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v"):
            chunks = "2" if schedule in ("interleaved", "zero_bubble_v") else "1"
            drawn = self.stormo("plan", "simulate", str(REPOSITORY / "recipes" / recipe), *command, "data.path=text",
                                f"strategy.schedule={schedule}", f"strategy.chunks={chunks}", "--svg")
            self.assertEqual(drawn.returncode, 0, drawn.stderr)
            self.assertEqual(drawn.stdout, (docs / "schedules" / f"{schedule}.svg").read_text())

    def test_the_statistics_of_batches_are_those_of_the_stage(self):
        resnet = ("mlp.toml", "model.kind=resnet20", "steps=3", "train.global_batch=4", "train.micro_batches=2",
                  "eval_every=1")
        _, alone = self.run_of(*resnet, "checkpoint.directory=alone")
        _, losses = self.run_of(*resnet, "-n", "2", "strategy.pipeline=2", "checkpoint.directory=cut")
        self.assert_near(losses, alone)
        evaluated = []
        for folder in ("cut", "alone"):
            done = self.stormo("evaluate", folder, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            evaluated.append([json.loads(line)["loss"] for line in done.stdout.splitlines()])
        self.assert_near(*evaluated)

    def test_a_bench_compares_each_way_to_cut_with_one_process(self):
        bench = ("bench", "step", "--model", "gpt", "-n", "2", "--steps", "3", "--rounds", "1", "--json")
        for way in ("interleaved", "ddg", "context_heads") if LONG_FORM else ():
            done = self.stormo(*bench, "--batch", "8", "--strategy", way)
            self.assertEqual(done.returncode, 0, done.stderr)
        for way in ("1f1b", "zero_bubble", "tensor") if LONG_FORM else ("1f1b", "tensor"):
            done = self.stormo(*bench, "--batch", "8", "--strategy", way, "--against", "one_process,predicted")
            self.assertEqual(done.returncode, 0, done.stderr)
            record = json.loads(done.stdout)
            self.assertEqual((record["strategy"], record["ranks"], record["verified"]), (way, 2, True))
            self.assertTrue(record["against"]["one_process"]["verified"])
            self.assertGreater(record["predicted"]["p50_s"], 0)


if __name__ == "__main__":
    main()
