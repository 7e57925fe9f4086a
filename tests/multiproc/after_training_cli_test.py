"""What comes after training: evaluate, predict and sample need nothing but the checkpoint."""

import json
import os
import random
import shutil

from small_data import safetensors, write_pictures
from train_cli import TrainTest, main

COMMON = """schema_version = 1
[train]
epochs = 8
global_batch = 4
log_every = 100
[optimizer]
lr = 0.05
[checkpoint]
directory = "run"
"""


class AfterTrainingTest(TrainTest):
    def recipe(self, text):
        (self.folder / "data.toml").write_text(COMMON + text)

    def train(self, *arguments):
        """The evaluations of a whole run, by the name of the part."""
        lines = self.lines(*arguments)
        return {line["split"]: line for line in lines if line["event"] == "eval"}

    def json_of(self, *arguments):
        done = self.stormo(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def fails(self, code, *arguments):
        done = self.stormo(*arguments)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        return done.stderr

    def assert_same_evaluation(self, trained, *arguments):
        """To the bit but for the order of one float64 sum."""
        again = self.json_of("evaluate", *arguments)
        self.assertEqual({line["split"] for line in again}, set(trained))
        for line in again:
            before = trained[line["split"]]
            for key in ("step", "samples", "accuracy"):
                self.assertEqual(line.get(key), before.get(key), key)
            self.assertAlmostEqual(line["loss"], before["loss"], delta=1e-12 * before["loss"])
        return again

    def predicted(self, *files):
        return [line["classes"][0]["class"] for line in self.json_of("predict", "run", *files)]

    def test_mnist_is_evaluated_as_at_the_end_of_the_training(self):
        trained = self.train("mlp.toml", "-n", "2")
        self.assert_same_evaluation(trained, "run")
        # other data in another place, and no training part anywhere
        shutil.move(self.folder / "data" / "mnist", self.folder / "elsewhere")
        for file in (self.folder / "elsewhere").glob("train*"):
            file.unlink()
        self.assert_same_evaluation(trained, "run/step-00000006", "data.path=elsewhere")
        text = self.stormo("evaluate", "run", "data.path=elsewhere").stdout
        self.assertIn("test after step 6: loss", text)
        self.assertIn("data.path", self.fails(2, "evaluate", "run"))

    def test_images_are_predicted_by_the_names_of_their_classes(self):
        for part, count in (("train", 12), ("test", 8)):
            write_pictures(self.folder / part, ("day\u00e9", "night"), 9, 6,
                           [(10 if i % 2 else 230) + i for i in range(count)])
        self.recipe("""[model]
kind = "mlp"
sizes = [64, 8, 2]
[data]
kind = "image_folder"
path = "."
train = "train"
test = "test"
image = [1, 8, 8]
""")
        trained = self.train("data.toml")
        self.assert_same_evaluation(trained, "run")
        # the number of a class would mean something else
        for part in ("train", "test"):
            (self.folder / part / "night").rename(self.folder / part / "dusk")
        self.assertIn("other classes", self.refused("data.toml", "--resume", "epochs=9"))
        for part in ("train", "test"):
            (self.folder / part / "dusk").rename(self.folder / part / "night")
        shutil.rmtree(self.folder / "train")
        (result,) = self.assert_same_evaluation(trained, "run")
        files = sorted(str(f.relative_to(self.folder)) for f in (self.folder / "test").rglob("*.png"))
        right = [name == file.split("/")[1] for name, file in
                 zip(self.predicted(*files), files, strict=True)]
        self.assertEqual(sum(right) / len(right), result["accuracy"])
        self.assertGreater(result["accuracy"], 0.9)
        (both,) = self.json_of("predict", "run", files[0], "--top", "5")
        self.assertEqual([c["class"] for c in both["classes"]], ["day\u00e9", "night"])
        self.assertAlmostEqual(sum(c["probability"] for c in both["classes"]), 1, delta=1e-9)
        # what cannot be predicted is named, the others are predicted
        (self.folder / "broken.png").write_bytes(b"<html>")
        done = self.stormo("predict", "run", "broken.png", files[0], "none.png")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("broken.png: neither a JPEG nor a PNG", done.stderr)
        self.assertIn("none.png", done.stderr)
        self.assertIn("2 of 3 files", done.stderr)
        self.assertIn(f"{files[0]}: day", done.stdout)

    def test_tables_are_predicted_by_the_names_of_their_columns(self):
        rows = [(i % 3, (i * 7) % 5 / 5, "abc"[i % 3]) for i in range(30)]
        (self.folder / "t.csv").write_text("x,y,kind\n" + "".join(f"{x},{y},{k}\n" for x, y, k in rows))
        # the same columns in another order, with one that the model has not seen
        (self.folder / "v.csv").write_text(
            "kind,note,y,x\n" + "".join(f"{k},?,{y},{x}\n" for x, y, k in rows))
        self.recipe("""[model]
kind = "mlp"
sizes = [2, 16, 3]
[data]
kind = "csv"
path = "."
train = "t.csv"
validation = "v.csv"
test = "t.csv"
label = "kind"
""")
        trained = self.train("data.toml", "epochs=60", "lr=0.3")
        self.assertEqual(trained["validation"]["loss"], trained["test"]["loss"])
        self.assertGreater(trained["test"]["accuracy"], 0.9)
        self.assert_same_evaluation(trained, "run")
        (self.folder / "new.csv").write_text("y,x\n" + "".join(f"{y},{x}\n" for x, y, _ in rows))
        right = [a == row[2] for a, row in zip(self.predicted("new.csv"), rows, strict=True)]
        self.assertEqual(sum(right) / len(right), trained["test"]["accuracy"])
        self.assertEqual([p["line"] for p in self.json_of("predict", "run", "new.csv")][:2], [2, 3])
        (self.folder / "less.csv").write_text("x\n1\n")
        self.assertIn('less.csv:1: no column "y"', self.fails(2, "predict", "run", "less.csv"))

    def test_numbers_are_predicted_in_their_own_unit(self):
        rng = random.Random(2)
        rows = [(rng.uniform(1e5, 3e5), rng.uniform(0, 1e-3)) for _ in range(40)]
        price = [3 * a - 2e8 * b + 50000 for a, b in rows]
        (self.folder / "t.csv").write_text("id,a,price,b\n" + "".join(
            f"n{i},{a!r},{p!r},{b!r}\n" for i, ((a, b), p) in enumerate(zip(rows, price))))
        self.recipe("""[model]
kind = "mlp"
sizes = [2, 1]
[data]
kind = "csv"
path = "."
train = "t.csv"
validation = "t.csv"
columns = ["b", "a"]
label = "price"
standardise = true
""")
        trained = self.train("data.toml", "loss=mse", "epochs=20", "-n", "2")
        (result,) = self.assert_same_evaluation(trained, "run")
        self.assertGreater(result["r2"], 0.999)
        self.assertNotIn("accuracy", result)
        values = [p["value"] for p in self.json_of("predict", "run", "t.csv")]
        mae = sum(abs(v - p) for v, p in zip(values, price, strict=True)) / len(price)
        # float32 outputs: 24 bits of a number of the size of a price
        self.assertAlmostEqual(mae, result["mae"], delta=max(price) * 2**-22)
        self.assertLess(mae, 0.1 * (max(price) - min(price)))
        self.assertRegex(self.stormo("evaluate", "run").stdout, r"R2 (0\.99|1\.00)")
        wrong = self.refused("data.toml", "loss=mse", "model.sizes=2,3", "checkpoint.directory=other")
        self.assertIn("end model.sizes with 1", wrong)
        wrong = self.refused("data.toml", "loss=mse", "label=id", "columns=a", "model.sizes=1,1",
                             "checkpoint.directory=other")
        self.assertIn('line 2: label "n0" is no finite number', wrong)

    def test_augmented_images_are_the_same_on_any_number_of_ranks(self):
        write_pictures(self.folder / "pictures", "ab", 20, 24, range(0, 240, 20))
        self.recipe("""[model]
kind = "cnn"
classes = 2
[data]
kind = "image_folder"
path = "pictures"
image = [3, 20, 20]
validation = "."
mean = [0.4, 0.5, 0.6]
stddev = [0.2]
""")
        flags = ("precision=float64", "epochs=2", "log_every=1", "checkpoint.directory=")
        plain = self.lines("data.toml", *flags)
        augmented = (*flags, "flip=true", "crop=3")
        one, two = (self.lines("data.toml", "-n", n, *augmented) for n in "12")
        self.assertNotEqual(plain[1]["loss"], one[1]["loss"])
        for a, b in zip(one[1:], two[1:], strict=True):
            if "loss" in a:
                self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-10 * abs(a["loss"]))
        trained = self.train("data.toml", "epochs=2", "flip=true", "crop=3")
        (result,) = self.assert_same_evaluation(trained, "run")  # without augmentation
        files = sorted(str(f.relative_to(self.folder)) for f in (self.folder / "pictures").rglob("*.png"))
        right = [a == f.split("/")[1] for a, f in zip(self.predicted(*files), files, strict=True)]
        self.assertEqual(sum(right) / len(right), result["accuracy"])
        wrong = self.refused("data.toml", "crop=20", "checkpoint.directory=other")
        self.assertIn("data.crop is 20", wrong)

    def test_texts_are_predicted_line_by_line(self):
        lines = ["good film\t1", "bad film\t0", "very good\t1", "very bad\t0"] * 5
        (self.folder / "t.tsv").write_text("\n".join(lines) + "\n")
        self.recipe("""[model]
kind = "text_classifier"
layers = 0
width = 8
heads = 2
context = 8
classes = 2
[data]
kind = "text_classification"
path = "t.tsv"
header = false
pairs = true
""")
        self.train("data.toml", "epochs=40", "lr=0.5")
        (self.folder / "t.tsv").unlink()
        (self.folder / "new.txt").write_text("a good one\n\nso bad\r\n")
        answers = self.json_of("predict", "run", "new.txt")
        self.assertEqual([(a["line"], a["classes"][0]["class"]) for a in answers], [(1, "1"), (3, "0")])
        done = self.stormo("predict", "run", "new.txt")
        self.assertRegex(done.stdout, r"^new.txt:1: 1 \d+\.\d\d %\nnew.txt:3: 0 ")
        self.assertIn("data.test=FILE", self.fails(2, "evaluate", "run"))

    def test_arrays_are_predicted_row_by_row(self):
        rows = [[float(i % 2), 1.0, 0.5] for i in range(16)]
        targets = [i % 2 for i in range(16)]
        (self.folder / "t.safetensors").write_bytes(safetensors(rows, targets))
        self.recipe("""[model]
kind = "mlp"
sizes = [3, 2]
[data]
kind = "safetensors"
path = "."
train = "t.safetensors"
test = "t.safetensors"
""")
        self.assert_same_evaluation(self.train("data.toml", "lr=0.5"), "run")
        self.assertEqual(self.predicted("t.safetensors"), [str(t) for t in targets])
        (self.folder / "w.safetensors").write_bytes(safetensors([[1.0, 2.0]], [0]))
        self.assertIn("trained on [3]", self.fails(2, "predict", "run", "w.safetensors"))

    def test_language_models_write_as_at_the_end_of_the_training(self):
        done = self.stormo("train", "gpt.toml", "--checkpoint", "run", "tokens=characters")
        self.assertEqual(done.returncode, 0, done.stderr)
        shutil.rmtree(self.folder / "text")
        (shown,) = self.json_of("sample", "run")
        self.assertIn("  | " + shown["text"].replace("\n", "\n  | "), done.stderr)
        self.assertEqual(len(shown["text"]), 21)
        flags = ("--prompt", "to be", "--length", "30")
        (one,) = self.json_of("sample", "run", *flags)
        self.assertTrue(one["text"].startswith("to be") and len(one["text"]) == 35, one)
        self.assertEqual([one], self.json_of("sample", "run", *flags))
        self.assertNotEqual([one], self.json_of("sample", "run", *flags, "--seed", "5"))
        self.assertEqual(self.stormo("sample", "run", *flags).stdout, one["text"] + "\n")
        self.assertIn('"z"', self.fails(2, "sample", "run", "--prompt", "zebra"))
        self.assertIn("stormo sample", self.fails(2, "predict", "run", "gpt.toml"))
        wrong = self.fails(2, "sample", "run", "--length", "0", "--temperature", "-1")
        self.assertIn("--length", wrong)
        self.assertIn("--temperature", wrong)

    def test_the_best_checkpoint_stays_and_ends_a_run_that_becomes_no_better(self):
        # what the model learns is wrong in the validation part: its loss grows from the first step
        rows = [(i % 2, "ab"[i % 2]) for i in range(16)]
        (self.folder / "t.csv").write_text("x,k\n" + "".join(f"{x},{k}\n" for x, k in rows))
        (self.folder / "v.csv").write_text("x,k\n" + "".join(f"{1 - x},{k}\n" for x, k in rows))
        self.recipe("""[model]
kind = "mlp"
sizes = [1, 2]
[data]
kind = "csv"
path = "."
train = "t.csv"
validation = "v.csv"
""")
        flags = ("epochs=1000", "eval_every=2", "batch=16", "lr=1.0", "checkpoint.keep=1",
                 "checkpoint.best=loss", "checkpoint.every=1")
        lines = self.lines("data.toml", "-n", "2", *flags, "patience=3")
        evaluated = {line["step"]: line for line in lines if line["event"] == "eval"}
        self.assertEqual(sorted(evaluated), [2, 4, 6, 8])
        self.assertEqual(min(evaluated, key=lambda s: evaluated[s]["loss"]), 2)
        end = lines[-1]
        self.assertEqual((end["steps"], end["best"]["step"], end["stopped_early"]), (8, 2, True))
        self.assertEqual(end["best"]["value"], evaluated[2]["loss"])
        names = sorted(path.name for path in (self.folder / "run").iterdir())
        self.assertEqual(names, ["best", "latest", "step-00000002", "step-00000008"])
        self.assert_same_evaluation({"validation": evaluated[2]}, "run", "--best")
        self.assert_same_evaluation({"validation": evaluated[8]}, "run")
        # patience counts on over a resumption
        lines = self.lines("data.toml", "--resume", *flags, "patience=5")
        self.assertEqual([line["step"] for line in lines if line["event"] == "eval"], [10, 12])
        self.assertEqual(lines[-1]["best"]["step"], 2)
        self.assertIn("eval_every", self.refused("data.toml", "checkpoint.best=loss",
                                                 "checkpoint.directory=other"))
        self.assertIn("checkpoint.best", self.refused("data.toml", "patience=1",
                                                      "checkpoint.directory=other"))
        self.assertIn("no best checkpoint", self.fails(2, "evaluate", "text", "--best"))

    def test_data_without_an_end_is_refused(self):
        os.mkfifo(self.folder / "pipe")
        for path, what in (("pipe", "is a pipe"), ("/dev/zero", "is a device")):
            self.assertIn(f"{path} {what}", self.refused("gpt.toml", f"data.path={path}"))
        self.lines("mlp.toml")
        self.assertIn("pipe is a pipe", self.fails(2, "predict", "run", "pipe"))

    def test_what_is_no_model_of_a_recipe_is_refused_with_the_reason(self):
        self.lines("mlp.toml")
        self.assertIn("stormo predict", self.fails(2, "sample", "run"))
        self.assertIn("run holds a mlp", self.fails(2, "sample", "run").replace("/step-00000006", ""))
        done = self.stormo("sample", "run", "--json")
        error = json.loads(done.stdout)
        self.assertEqual((error["event"], error["exit_code"], done.returncode), ("error", 2, 2))
        self.assertIn("stormo predict", error["message"])
        both = self.fails(2, "evaluate", "run", "model.classes=4", "lr=1", "nothing=1")
        for key in ("model.classes", "optimizer.lr", "nothing"):
            self.assertIn(key, both)
        self.assertIn("no complete checkpoint", self.fails(2, "evaluate", "text"))
        done = self.stormo("checkpoint", "export", "run", "m.safetensors")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.stormo("checkpoint", "import", "m.safetensors", "weights")
        self.assertEqual(done.returncode, 0, done.stderr)
        for command in (["evaluate", "weights"], ["sample", "weights"], ["predict", "weights", "a.png"]):
            self.assertIn("without a recipe", self.fails(2, *command))
        shard = next((self.folder / "run" / "step-00000006").glob("*.safetensors"))
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        self.assertIn(shard.name, self.fails(1, "evaluate", "run"))


if __name__ == "__main__":
    main()
