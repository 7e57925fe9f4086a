"""stormo strads train: a net trained by blocks of its parameters, which a scheduler chooses.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import shutil
import signal

from train_cli import DEADLINE_S, LONG_FORM, TrainTest, main

RECIPE = """schema_version = 1
name = "blocks"
precision = "float64"
[model]
kind = "mlp"
sizes = [784, 16, 10]
[train]
steps = 20
global_batch = 40
[optimizer]
lr = 0.5
"""
BLOCKS = 16 + 1 + 10 + 1
FULL = "batch=96"  # all samples
SAVED = ("--checkpoint", "run")


class StradsTrainTest(TrainTest):
    def setUp(self):
        super().setUp()
        (self.folder / "r.toml").write_text(RECIPE)

    def start_blocks(self, *arguments, **options):
        return self.start_program("strads", "train", "r.toml", *arguments, "--json", **options)

    def rows_of(self, *arguments, **options):
        job = self.start_blocks(*arguments, **options)
        out, err = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 0, f"{arguments}: {err}")
        return [json.loads(line) for line in out.splitlines()]

    def end_of(self, *arguments, **options):
        """All of the last line but times."""
        end = self.rows_of(*arguments, **options)[-1]
        return {key: value for key, value in end.items()
                if key not in ("seconds", "cpu_s", "updates_per_s", "virtual_s", "waited")}

    def assert_near(self, a, b, what):
        self.assertEqual(len(a), len(b), what)
        for x, y in zip(a, b):
            self.assertAlmostEqual(x, y, delta=1e-9 * abs(y), msg=what)

    def losses_of(self, *arguments, **options):
        rows = self.rows_of(*arguments, "--round", "6", "--every", "4", **options)
        return [row["objective"] for row in rows] + [rows[-1]["test_loss"], rows[-1]["test_accuracy"]]

    def test_ranks_train_as_one_process_does(self):
        cases = (((FULL,), ("4", "2")), (("batch=40", "--units", "3", "model.kind=cnn"), ("2", "4")), ((FULL, "--depth", "2"), ("2",)),
                 (("batch=40",), ("2", "4")))
        for flags, numbers in cases if LONG_FORM else cases[:3]:
            alone = self.losses_of(*flags)  # batch=40: the last one of a pass has 16 samples
            for ranks in numbers if LONG_FORM else numbers[:1]:
                self.assert_near(self.losses_of(*flags, "-n", ranks), alone, (flags, ranks))

    def test_a_dry_run_prints_the_plan_and_starts_nothing(self):
        for where in (("-n", "2"), ("--virtual", "2")):
            done = self.stormo("strads", "train", "r.toml", *where, *SAVED, "--depth", "1", "--dry-run")
            self.assertEqual(done.returncode, 0, done.stderr)
            for line in ("mesh dp=2", "action 1: choose", "action 7: agree every 3"):
                self.assertIn(line + "\n", done.stdout)
            for part in (" elements=12544 type=float64", ": all_reduce 0-3 over dp async", ": update 0-3 delay 1"):
                self.assertIn(part, done.stdout)
            self.assertFalse((self.folder / "run").exists())
        wrong = self.stormo("strads", "train", "r.toml", "optimizer.momentum=0.9", "--dry-run")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))

    def test_all_blocks_in_every_round_are_sgd(self):
        """The losses of `stormo train` at the same samples."""
        keys = ("optimizer.lr=0.3", "steps=7")
        for batch in (FULL, "batch=40"):
            done = self.lines("r.toml", batch, *keys, "log_every=1", "-n", "2")
            steps = [r["loss"] for r in done if r["event"] == "step"]
            test = next(r for r in done if r["event"] == "eval")
            rows = self.rows_of(batch, *keys, "--round", str(BLOCKS), "--no-check", "--every", "1", "-n", "2")
            self.assertEqual(rows[-1]["updates"], 7 * BLOCKS)
            self.assert_near([rows[-1]["test_loss"], rows[-1]["test_accuracy"]], [test["loss"], test["accuracy"]],
                             batch)
            if batch == FULL:  # a step's loss is that of all samples before it
                self.assert_near([row["objective"] for row in rows[:7]], steps, batch)

    def test_runs_repeat_bit_by_bit_also_in_virtual_time_and_between_hosts(self):
        for more in ((), ("--depth", "2", "--round", "4")):
            flags = ("precision=float32", "threads=1", *more)
            two = self.end_of(*flags, "-n", "2")
            self.assertEqual(self.end_of(*flags, "-n", "2"), two)
            self.assertEqual(self.end_of(*flags, "--virtual", "2", "--stragglers", "1:10x"), two)
            shell = self.folder / "shell"
            shell.write_text('#!/bin/sh\nshift\nexec "$@"\n')
            shell.chmod(0o755)
            self.assertEqual(self.end_of(*flags, "-H", "localhost:1,b:1", "--interface", "lo", "--remote-shell",
                                         f"{shell} {{host}}"), two)

    def test_what_is_ended_goes_on_bit_by_bit(self):
        cases = (("-n", "2"), ("--virtual", "3", "--depth", "2"), ("--cyclic",), ("--no-check", "--no-priority"))
        for flags in cases if LONG_FORM else cases[:3]:
            flags = (*flags, "--round", "5", "--every", "4", *SAVED)
            whole = self.end_of(*flags, "--rounds", "24", "--overwrite")
            self.end_of(*flags, "--rounds", "12", "--overwrite")
            self.assertEqual(self.end_of(*flags, "--rounds", "24", "--resume"), whole, flags)
            self.assertEqual(self.end_of(*flags, "--rounds", "24", "--resume"), whole, "nothing is left to do")

    def test_it_goes_on_with_another_number_of_ranks(self):
        flags = ("--round", "5", *SAVED)
        alone = self.rows_of(*flags, "--rounds", "24")[-1]
        self.rows_of(*flags, "--rounds", "9", "--overwrite", "-n", "2")
        for ranks in ("4", "1"):
            shutil.rmtree(self.folder / "copy", ignore_errors=True)
            shutil.copytree(self.folder / "run", self.folder / "copy", symlinks=True)
            end = self.rows_of("--round", "5", "--rounds", "24", "--checkpoint", "copy", "--resume", "-n", ranks)[-1]
            self.assertEqual(end["order"], alone["order"])
            self.assert_near([end["objective"], end["test_loss"]], [alone["objective"], alone["test_loss"]], ranks)

    def test_others_read_its_checkpoints(self):
        end = self.rows_of("--rounds", "9", *SAVED, "-n", "2")[-1]
        judged = json.loads(self.program_output("evaluate", "run", "--json"))
        self.assert_near([judged["loss"], judged["accuracy"]], [end["test_loss"], end["test_accuracy"]], "test")
        self.program_output("checkpoint", "verify", "run")
        self.program_output("checkpoint", "export", "run", "model.safetensors")
        refused = self.stormo("train", "r.toml", "--checkpoint", "run", "--resume", "steps=30")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("the checkpoint holds 3 optimizer tensors", refused.stderr)

    def program_output(self, *arguments):
        done = self.stormo(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_lost_rank_ends_the_job_which_then_goes_on(self):
        flags = ("--every", "5", "checkpoint.every=5", *SAVED)
        run = self.start_blocks("-n", "2", "--rounds", "1000000", *flags)
        while json.loads(run.stdout.readline())["rounds"] < 10:
            pass
        self.assert_killed_rank_ends(run)
        self.assertEqual(run.returncode, 75)
        rounds = json.loads((self.folder / "run" / "latest" / "manifest.json").read_text())["step"]
        self.assertGreaterEqual(rounds, 5)
        until = ("--rounds", str(rounds + 10), "-n", "2", "--every", "5")
        self.assertEqual(self.end_of(*until, *SAVED, "--resume"), self.end_of(*until))

    def test_a_signal_saves_and_the_run_goes_on_bit_by_bit(self):
        # of a whole pass between two judgements, or to the next one
        cases = (("-n", "2", "--every", "100000"), ("-n", "2", "--depth", "2", "--every", "6"), ("--every", "100000"))
        for flags in cases if LONG_FORM else cases[:2]:
            run = self.start_blocks(*flags, "--rounds", "1000000", "--round", "5", "--overwrite", *SAVED)
            self.assertEqual(json.loads(run.stdout.readline())["rounds"], 0)
            run.send_signal(signal.SIGTERM)
            out, err = run.communicate(timeout=DEADLINE_S)
            self.assertEqual(run.returncode, 143, err)
            self.assertNotIn('"end"', out)
            self.assertIn("the run can go on from", err)
            rounds = json.loads((self.folder / "run" / "latest" / "manifest.json").read_text())["step"]
            self.assertGreater(rounds, 0)
            until = (*flags, "--rounds", str(rounds + 12), "--round", "5")
            self.assertEqual(self.end_of(*until, *SAVED, "--resume"), self.end_of(*until), flags)

    def test_it_learns(self):
        """The class is the bright row of an image: all of it can be learned."""
        end = self.rows_of("precision=float32", "--rounds", "400", "--round", "8", "-n", "2")[-1]
        self.assertLess(end["objective"], 0.3)
        self.assertGreater(end["test_accuracy"], 0.9)

    def refused_blocks(self, *arguments):
        """The messages of a command that must start nothing and write nothing."""
        before = sorted(self.folder.rglob("*"))
        done = self.stormo("strads", "train", *arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), f"{arguments}: {done.stderr}")
        self.assertEqual(before, sorted(self.folder.rglob("*")), arguments)
        return done.stderr

    def test_what_is_wrong_is_said_together_before_anything_starts(self):
        self.rows_of("--rounds", "6", *SAVED)
        self.lines("mlp.toml", "-n", "1", "checkpoint.directory=other", "name=blocks", "precision=float64")
        cases = (
            (("optimizer.kind=adamw", "momentum=0.9", "learning_rate.kind=cosine", "strategy.kind=fsdp",
              "precision=bfloat16", "train.clip_norm=1", "log_every=7", "data.sharding=contiguous", "--round", "0",
              "--threshold", "2", "--units", "0", "--rounds", "0"),
             ('command line: optimizer.kind: training by blocks has no "adamw"; leave it out, or write '
              'optimizer.kind="sgd"', "optimizer.momentum", "learning_rate.kind", "strategy.kind",
              "float32 and float64", "train.clip_norm", "log_every=10", "data.sharding", "--round: 0",
              "--threshold: 2", "--units: 0", "--rounds: 0")),
            (("batch=3", "-n", "4", "data.path=none"), ("a batch of 3 gives 4 ranks less than one sample", "none")),
            (("--virtual", "2", "-n", "2"), ("--virtual: workers are simulated in one process",)),
            (("--virtual", "2", "--stragglers", "3:2x", "--jitter", "1"), ("--stragglers", "--jitter: 1")),
            (("--cyclic", "--depth", "1"), ("--depth: a cycle",)),
            (("--resume",), ("checkpoint.directory: --resume needs the folder",)),
            (("--resume", "--checkpoint", "none"), ("none",)),
            ((*SAVED,), ("--overwrite",)),
            ((*SAVED, "--resume", "--overwrite"), ("give one",)),
            ((*SAVED, "--resume", "--round", "5", "--seed", "3"),
             ("it was written with --round 32", "this run has --round 5 --units 1 --seed 3")),
            ((*SAVED, "--resume", "model.sizes=784,8,10"), ("has model",)),
            ((*SAVED, "--resume", "--rounds", "5"), ("6 rounds are done, and the run has 5",)),
            (("--checkpoint", "other", "--resume", "model.sizes=784,16,10"), ("not written by training by blocks",)),
            (("optimizer.lr=0", "model.kind=gpt"), ("optimizer.lr: must be greater than 0", "needs \"text\"")),
            (("nonsense=1",), ("unknown key",)))
        for arguments, messages in cases:
            err = self.refused_blocks("r.toml", *arguments)
            for message in messages:
                self.assertIn(message, err, arguments)
        self.assertIn("nowhere.toml", self.refused_blocks("nowhere.toml", "-n", "2"))
        self.assertIn("recipe", self.refused_blocks())
        self.assertIn("running statistics", self.refused_blocks(
            "r.toml", "model.kind=resnet20", "data.kind=mnist", "model.classes=10"))

    def test_updates_that_diverge_end_with_a_failure(self):
        done = self.stormo("strads", "train", "r.toml", "optimizer.lr=1e6", "--every", "1", *SAVED)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("\ndiverged: ", done.stdout)
        self.assertFalse((self.folder / "run" / "latest").exists())


if __name__ == "__main__":
    main()
