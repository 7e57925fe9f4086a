"""stormo train --resume and --auto-resume, with a recipe that has changed, and what a run writes beside its checkpoints.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import csv
import os
import random
import shutil
import stat

from small_data import png
from train_cli import DEADLINE_S, LONG_FORM, REPOSITORY, TrainTest, main


class ResumeTest(TrainTest):
    def recipe_with(self, **values):
        """The small recipe with other lines, as r.toml; a value of None leaves the line out."""
        text = (self.folder / "mlp.toml").read_text() + "[optimizer]\nlr = 0.1\n"
        for key, value in values.items():
            line = f"{key} = {value}\n"
            found = [old for old in text.splitlines(keepends=True) if old.startswith(f"{key} = ")]
            text = text.replace(found[0], line) if found else text.replace("[train]\n", "[train]\n" + line)
        (self.folder / "r.toml").write_text(text)

    def test_with_logical_shards_another_number_of_ranks_has_the_same_bits(self):
        shards = ("mlp.toml", "train.logical_shards=5", "threads=1")
        unbroken = self.lines(*shards, "--checkpoint", "unbroken")[-1]
        self.lines(*shards, "steps=3", "-n", "3")
        resumed = self.lines(*shards, "--resume", "-n", "2")[-1]
        self.assertEqual(resumed["weights_hash"], unbroken["weights_hash"])
        self.assertIn("train.logical_shards was ", self.refused(*shards[:1], "steps=9", "--resume", "threads=1"))

    def test_a_recipe_that_trains_otherwise_goes_on_only_if_that_is_named(self):
        self.recipe_with()
        self.lines("r.toml", "steps=3")
        for key, change in (("train.seed", {"seed": 2}), ("train.global_batch", {"global_batch": 6}),
                            ("optimizer.lr", {"lr": 0.05}), ("train.clip_norm", {"clip_norm": 1.0})):
            self.recipe_with(**change)
            told = self.refused("r.toml", "--resume")
            self.assertIn(f"{key} was ", told)
            self.assertIn(f"--accept-changes {key}", told)
        self.recipe_with(seed=2, lr=0.05)
        self.assertIn("--accept-changes train.seed,optimizer.lr", self.refused("r.toml", "--resume"))
        self.assertIn("--accept-changes train.seed\n",
                      self.refused("r.toml", "--resume", "--accept-changes", "optimizer"))
        self.assertIn("add --resume", self.refused("r.toml", "--accept-changes", "optimizer", "--checkpoint", "x"))
        for name in (("--accept-changes", "train.seed,optimizer"), ("train.seed=2", "lr=0.05")):
            shutil.copytree(self.folder / "run", self.folder / "copy", symlinks=True)
            start = self.lines("r.toml", "--resume", "-n", "2", "--checkpoint", "copy", *name)[0]
            self.assertEqual({c["key"]: (c["before"], c["now"]) for c in start["changed"]},
                             {"train.seed": (1, 2), "optimizer.lr": (0.1, 0.05), "train.steps": (3, 6),
                              "checkpoint.directory": ("run", "copy")})
            shutil.rmtree(self.folder / "copy")
        # what only reports, or how ranks share the work, may change; it is said
        self.recipe_with(log_every=2)
        done = self.stormo("train", "r.toml", "--resume", "-n", "2", "strategy.kind=fsdp")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("train.log_every was 1, is now 2\n", done.stderr)
        self.assertNotIn("changed", self.lines("r.toml", "--resume", "-n", "2", "strategy.kind=fsdp", "steps=6")[0])

    def test_auto_resume_begins_where_there_is_nothing_to_go_on_from(self):
        firsts = [self.lines("mlp.toml", "--auto-resume", "-n", str(ranks), f"steps={steps}")[0]["first_step"]
                  for ranks, steps in ((2, 3), (1, 5), (2, 7))]
        self.assertEqual(firsts, [0, 3, 5])
        self.assertIn("--auto-resume goes on", self.refused("mlp.toml", "--auto-resume", "--overwrite"))
        for piece in (self.folder / "run").glob("step-*/*.safetensors"):
            piece.write_bytes(b"damaged")
        self.refused("mlp.toml", "--auto-resume", "steps=9")  # it does not begin anew in its place

    def test_other_samples_are_named_too(self):
        rows = [f"{i % 2},{i}\n" for i in range(24)]
        (self.folder / "t.csv").write_text("kind,x\n" + "".join(rows))
        (self.folder / "r.toml").write_text("""schema_version = 1
[model]
sizes = [1, 4, 2]
[data]
kind = "csv"
path = "t.csv"
label = "kind"
[train]
steps = 4
global_batch = 8
[checkpoint]
directory = "run"
""")
        self.lines("r.toml", "steps=2")
        (self.folder / "t.csv").rename(self.folder / "moved.csv")
        self.assertEqual(self.lines("r.toml", "--resume", "steps=3", "data.path=moved.csv")[0]["first_step"], 2)
        (self.folder / "t.csv").write_text("kind,x\n" + "".join(rows[:-1]) + "1,77\n")
        told = self.refused("r.toml", "--resume")
        self.assertIn("was trained on 24 samples with fingerprint", told)
        start = self.lines("r.toml", "--resume", "--accept-changes", "data")[0]
        self.assertEqual([c["key"] for c in start["changed"] if c["key"] == "data"], ["data"])

    def mode(self, path):
        return stat.S_IMODE((self.folder / path).lstat().st_mode)

    def test_files_are_read_by_whom_the_umask_or_the_recipe_says(self):
        def train(umask, *arguments):
            for name in ("run", "t.json", "t.csv"):
                path = self.folder / name
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            process = self.start("mlp.toml", "-n", "2", "--trace", "t.json", "--log-csv", "t.csv", *arguments,
                                 preexec_fn=lambda: os.umask(umask))
            _, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 0, err)
            files = [p for p in (self.folder / "run").rglob("*") if p.is_file()]
            self.assertGreaterEqual(len(files), 3)
            return ({self.mode(p) for p in [*files, "t.json", "t.csv"]},
                    {self.mode(p) for p in ["run", *(self.folder / "run").glob("step-*")]})

        self.assertEqual(train(0o022), ({0o644}, {0o755}))
        self.assertEqual(train(0o077), ({0o600}, {0o700}))
        self.assertEqual(train(0o022, "checkpoint.access=group"), ({0o660}, {0o770}))
        self.assertEqual(train(0o022, "checkpoint.access=owner"), ({0o600}, {0o700}))
        done = self.stormo("checkpoint", "export", "run", "m.safetensors")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.mode("m.safetensors"), 0o600, "as its checkpoint")

    def test_something_else_named_latest_costs_nothing(self):
        (self.folder / "run" / "latest").mkdir(parents=True)
        records = self.lines("mlp.toml", "steps=2")
        (warning,) = [r for r in records if r["event"] == "warning"]
        self.assertEqual(warning["kind"], "no_link")
        self.assertIn("run/latest is a folder, not a link", warning["message"])
        self.assertTrue((self.folder / "run" / "step-00000002" / "manifest.json").exists())
        self.assertEqual(self.lines("mlp.toml", "--resume")[0]["first_step"], 2)

    def test_a_table_of_steps_goes_on_with_the_run(self):
        table = ("mlp.toml", "-n", "2", "log_every=2", "--log-csv", "log.csv")
        self.assertIn("--log-csv", self.refused("mlp.toml", "--log-csv", "nowhere/log.csv"))
        records = self.lines(*table, "steps=4")
        rest = self.lines(*table, "--resume")
        with (self.folder / "log.csv").open() as file:
            rows = list(csv.DictReader(file))
        steps = [r for r in rows if r["loss"]]
        told = [r for r in records + rest if r["event"] == "step"]
        self.assertEqual([int(r["step"]) for r in steps], [2, 4, 6])
        for row, record in zip(steps, told, strict=True):
            for key in ("loss", "learning_rate", "samples_per_s"):
                self.assertEqual(float(row[key]), record[key])
            for lane, share in record["share"].items():
                self.assertEqual(float(row[lane]), share)
            self.assertEqual(int(row["slowest_rank"]), record["slowest"]["rank"])
        judged = [r for r in rows if r["test_loss"]]
        self.assertEqual([int(r["step"]) for r in judged], [4, 6])
        self.assertEqual(float(judged[1]["test_accuracy"]), rest[-1]["test_accuracy"])

    def test_the_rank_that_computes_longest_is_named(self):
        records = self.lines("mlp.toml", "-n", "2", "steps=4")
        for step in (r for r in records if r["event"] == "step"):
            self.assertEqual(len(step["rank_shares"]), 2)
            self.assertEqual(step["rank_shares"][0], step["share"])
            busy = [s["compute"] + s["data"] for s in step["rank_shares"]]
            self.assertEqual(step["slowest"]["rank"], busy.index(max(busy)))
        done = self.stormo("train", "mlp.toml", "-n", "2", "steps=4", "--overwrite")
        self.assertRegex(done.stderr, r"data \d+%  slowest rank [01]\n")
        self.assertNotIn("slowest", self.stormo("train", "mlp.toml", "steps=4", "--overwrite").stderr)

    def test_the_test_part_is_for_the_end(self):
        records = self.lines("mlp.toml", "-n", "2", "eval_every=2")
        self.assertEqual([r["step"] for r in records if r["event"] == "eval"], [6])
        self.assertEqual([r["kind"] for r in records if r["event"] == "warning"], ["no_validation"])

    def test_compression_of_nothing_is_told(self):
        """The ranks of a host that share a copy read each other's gradients; replicas send them."""
        for how, kinds in (((), ["no_compression"]), (("strategy.parameters=replicated",), [])):
            records = self.lines("mlp.toml", "-n", "2", "--overwrite", "strategy.compression=int8", *how)
            self.assertEqual([r["kind"] for r in records if r["event"] == "warning"], kinds)

    def test_ranks_have_the_momentum_of_what_few_numbers_they_send(self):
        """Deep Gradient Compression: in the plan, in checkpoints, on other ranks, and refused by name."""
        few = ("mlp.toml", "strategy.parameters=replicated", "strategy.compression=top_k", "strategy.density=0.01",
               "optimizer.kind=sgd", "strategy.momentum_correction=true", "strategy.warmup_steps=4")
        momentum = "optimizer.momentum=0.9"
        unbroken = self.lines(*few, momentum, "-n", "2", "--checkpoint", "unbroken")[-1]
        self.lines(*few, momentum, "-n", "2", "steps=3")
        shutil.copytree(self.folder / "run", self.folder / "copy", symlinks=True)
        self.assertEqual(self.lines(*few, momentum, "--resume", "-n", "2")[-1]["weights_hash"],
                         unbroken["weights_hash"])
        self.assertEqual(self.lines(*few, momentum, "--resume", "-n", "3", "--checkpoint", "copy")[-1]["event"], "end")
        self.assertEqual(self.stormo("evaluate", "copy").returncode, 0)
        plan = self.stormo("plan", "show", *few, momentum, "train.clip_norm=2", "-n", "2").stdout
        self.assertIn(" codec top_k:0.01 by momentum_0.9_clip_2 ", plan)
        self.assertIn("strategy.momentum_correction: is of the momentum of sgd", self.refused(*few, "-n", "2"))

    def write_flowers(self, count, seed):
        """Two classes, told apart by where a noisy picture is bright."""
        rng = random.Random(seed)
        for part, many in (("train", count), ("test", 20)):
            for kind in ("rose", "tulip"):
                folder = self.folder / "flowers" / part / kind
                folder.mkdir(parents=True)
                for i in range(many):
                    top, left = rng.randrange(4, 18), rng.randrange(4, 18)
                    pixels = bytearray()
                    for y in range(32):
                        for x in range(32):
                            d = (y - top - 5) ** 2 + (x - left - 5) ** 2
                            bright = d < 50 and (kind == "rose" or d > 14)
                            pixels += bytes([90 + 100 * bright + rng.randrange(60) for _ in range(3)])
                    (folder / f"{i}.png").write_bytes(png(32, 32, bytes(pixels)))

    def test_the_recipe_of_the_readme_learns(self):
        self.write_flowers(150, seed=1)
        readme = (REPOSITORY / "README.md").read_text()
        (self.folder / "flowers.toml").write_text(readme.split('name = "flowers"')[0].split("```toml\n")[-1] +
                                                  'name = "flowers"' +
                                                  readme.split('name = "flowers"')[1].split("```")[0])
        for seed in (1, 2) if LONG_FORM else (1,):
            records = self.lines("flowers.toml", "-n", "2", f"seed={seed}", "--overwrite")
            self.assertGreater(records[-1]["test_accuracy"], 0.7, seed)
            self.assertFalse([r for r in records if r["event"] == "warning"])

    def test_a_loss_out_of_hand_and_a_model_that_learns_nothing_are_told(self):
        (self.folder / "t.csv").write_text("kind,x,y\n" + "".join(
            f"{i % 2},{random.Random(i).random()},{random.Random(-i).random()}\n" for i in range(40)))
        (self.folder / "r.toml").write_text("""schema_version = 1
[model]
sizes = [2, 8, 2]
[data]
kind = "csv"
path = "t.csv"
label = "kind"
[train]
steps = 40
global_batch = 8
""")
        told = [r for r in self.lines("r.toml", "lr=1e-6") if r["event"] == "warning"]
        self.assertEqual([r["kind"] for r in told], ["at_chance"])
        told = [r for r in self.lines("r.toml", "lr=300", "optimizer.momentum=0.9") if r["event"] == "warning"]
        self.assertEqual(told[0]["kind"], "loss_grown")
        self.assertIn("optimizer.lr", told[0]["message"])

    def test_depth_and_length_of_a_recipe_are_limited(self):
        deep = ("a." * 50000 + "b = 1\n", "[" + "a." * 50000 + "b]\n", "a = " + "[" * 5000 + "]" * 5000 + "\n",
                "a = " + "{b=" * 5000 + "1" + "}" * 5000 + "\n", "x" * 900000 + " = 1\n",
                "".join(f"train.k{i} = 1\n" for i in range(50000)),
                'name = "' + "n" * 900000 + '"\n[train]\nsteps = "' + "n" * 90000 + '"\n')
        for text in deep:
            (self.folder / "deep.toml").write_text("schema_version = 1\n" + text)
            told = self.refused("deep.toml")
            self.assertLess(len(told), 20000, told[:300])
            self.assertIn("deep.toml", told)
        (self.folder / "deep.toml").write_text("schema_version = 1\n" + deep[0])
        self.assertIn("deep.toml:2: a key of more than 32 parts", self.refused("deep.toml"))


if __name__ == "__main__":
    main()
