"""stormo train --init-from: a new run that begins with the weights of another one.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import shutil

from train_cli import TrainTest, main

TABLE = """schema_version = 1
name = "{name}"
[model]
sizes = [2, 8, {classes}]
[data]
kind = "csv"
path = "{data}"
label = "kind"
[train]
steps = {steps}
global_batch = 8
log_every = 1
[optimizer]
lr = {lr}
[checkpoint]
directory = "{name}"
"""


class FineTuningTest(TrainTest):
    def write(self, name, classes, steps=60, lr=0.5):
        rows = [((i * 7 % 11) / 11, (i * 5 % 13) / 13) for i in range(48)]
        (self.folder / f"{name}.csv").write_text("x,y,kind\n" + "".join(
            f"{x},{y},{int((x + y) / 2 * classes)}\n" for x, y in rows))
        (self.folder / f"{name}.toml").write_text(
            TABLE.format(name=name, classes=classes, data=f"{name}.csv", steps=steps, lr=lr))

    def weights(self, folder):
        done = self.stormo("checkpoint", "export", folder, "w.safetensors", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        content = (self.folder / "w.safetensors").read_bytes()
        (self.folder / "w.safetensors").unlink()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8:8 + length])
        return {name: content[8 + length:][slice(*entry["data_offsets"])]
                for name, entry in header.items() if name != "__metadata__"}

    def test_begins_with_the_weights_of_another_run(self):
        self.write("first", 3)
        self.write("second", 3, steps=1, lr=1e-30)
        self.lines("first.toml")
        alone = self.lines("second.toml")[1]["loss"]
        # other data, another optimizer, and what ranks have only parts of
        for way in ((), ("-n", "2", "optimizer.kind=adamw"), ("-n", "2", "strategy.kind=fsdp", "strategy.parameters=sharded"),
                    ("-n", "2", "strategy.tensor=2"),
                    ("-n", "3", "strategy.kind=parameter_server", "strategy.server_processes=1")):
            records = self.lines("second.toml", "--init-from", "first", "--overwrite", *way)
            self.assertEqual(records[0]["first_step"], 0)
            self.assertLess(records[1]["loss"], alone - 0.1, way)
            self.assertEqual(self.weights("second"), self.weights("first"), way)
        manifest = json.loads((self.folder / "second" / "latest" / "manifest.json").read_text())
        self.assertEqual(manifest["recipe"]["train"]["init_from"], "first")

    def test_a_head_of_another_shape_is_named_and_begins_anew(self):
        self.write("first", 3)
        self.write("second", 5, steps=1, lr=1e-30)
        self.lines("first.toml")
        told = self.refused("second.toml", "--init-from", "first")
        self.assertRegex(told, r"\.weight is \[3, 8\] there, \[5, 8\] here")
        head = told.split("--init-new ")[1].split()[0]
        self.assertIn("this model has no 'tail'", self.refused("second.toml", "--init-from", "first", "--init-new",
                                                               f"{head},tail"))
        self.assertIn("train.init_from", self.refused("second.toml", "--init-new", head))
        self.assertIn("nowhere", self.refused("second.toml", "--init-from", "nowhere"))
        done = self.stormo("train", "second.toml", "-n", "2", "--init-from", "first/latest", "--init-new", head)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("begins with 2 of 4 tensors of first/latest", done.stderr)
        self.assertIn(f"anew: {head}.bias, {head}.weight", done.stderr)
        before, after = self.weights("first"), self.weights("second")
        same = {name for name in after if after[name] == before.get(name)}
        self.assertEqual(same, {name for name in after if not name.startswith(head + ".")})
        # a run that goes on does not begin again
        rest = self.lines("second.toml", "--resume", "steps=2", "train.init_from=first", f"train.init_new={head}")
        self.assertEqual(rest[0]["first_step"], 1)

    def test_characters_mean_what_they_meant(self):
        keys = ("tokens=characters", "optimizer.lr=1e-30", "steps=1")
        self.lines("gpt.toml", "tokens=characters", "steps=30", "optimizer.lr=0.01", "--checkpoint", "first")
        shutil.move(self.folder / "text" / "a.txt", self.folder / "text" / "old")
        (self.folder / "text" / "b.txt").write_text("it is not that to be\n" * 60)  # fewer characters
        records = self.lines("gpt.toml", *keys, "-n", "2", "--init-from", "first", "--checkpoint", "second")
        self.assertLess(records[1]["loss"], 2.5, "of 13 characters: 2.6 by chance")
        self.assertEqual(self.lines("gpt.toml", *keys[:2], "steps=2", "--init-from", "first", "--checkpoint", "second",
                                    "--resume")[0]["first_step"], 1)
        (self.folder / "text" / "b.txt").write_text("it is not that? to be!\n" * 60)
        self.assertIn("characters", self.refused("gpt.toml", *keys, "--init-from", "first", "--checkpoint", "third"))

    def test_evaluates_new_data_where_the_old_are_gone(self):
        self.write("first", 3)
        text = (self.folder / "first.toml").read_text().replace(
            'path = "first.csv"\n', 'path = "."\ntrain = "first.csv"\nvalidation = "v.csv"\n')
        (self.folder / "first.toml").write_text(text)
        shutil.copy(self.folder / "first.csv", self.folder / "v.csv")
        self.lines("first.toml", "eval_every=20", "checkpoint.best=loss")
        (self.folder / "v.csv").rename(self.folder / "new.csv")
        done = self.stormo("evaluate", "first", "data.test=new.csv", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        (line,) = map(json.loads, done.stdout.splitlines())
        self.assertEqual((line["split"], line["samples"]), ("test", 48))
        self.assertIn("v.csv", self.stormo("evaluate", "first").stderr, "nothing is named, and it is gone")
        done = self.stormo("checkpoint", "export", "first", "best.safetensors", "--best")
        self.assertEqual(done.returncode, 0, done.stderr)
        (self.folder / "first" / "best").unlink()
        self.assertIn("no best checkpoint",
                      self.stormo("checkpoint", "export", "first", "other.safetensors", "--best").stderr)


if __name__ == "__main__":
    main()
