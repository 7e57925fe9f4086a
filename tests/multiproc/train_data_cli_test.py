"""Forms of data that recipes read, and where a run goes on in them."""

import json
import random
import struct

from small_data import npy, safetensors, write_pictures
from train_cli import TrainTest, main


class DataTest(TrainTest):
    """Every kind of data: read, trained on by two ranks as by one, refused when it is wrong."""

    COMMON = """schema_version = 1
precision = "float64"
[train]
epochs = 2
global_batch = 6
log_every = 1
"""
    ROWS = [([i / 10, 1 - i / 7, (i * i) % 5], i % 3) for i in range(20)]

    def recipe(self, text):
        (self.folder / "data.toml").write_text(self.COMMON + text)

    def train_on_one_and_two(self, samples):
        one, two = self.lines("data.toml"), self.lines("data.toml", "-n", "2")
        self.assertEqual(two[-1]["samples"], 2 * samples)
        for a, b in zip(one[1:], two[1:], strict=True):
            if "loss" in a:
                self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-10 * abs(a["loss"]))
        return two

    def test_tables(self):
        text = "x,kind,y,z\n" + "".join(
            f"{x},{'abc'[c]},{y},{z}\n" for (x, y, z), c in self.ROWS)
        (self.folder / "t.csv").write_text(text)
        (self.folder / "v.csv").write_text("".join(text.splitlines(True)[:5]))
        self.recipe("""[model]
kind = "mlp"
sizes = [3, 8, 3]
[data]
kind = "csv"
path = "."
train = "t.csv"
validation = "v.csv"
label = "kind"
""")
        lines = self.train_on_one_and_two(20)
        evaluated = [line for line in lines if line["event"] == "eval"]
        self.assertEqual([(e["split"], e["samples"]) for e in evaluated], [("validation", 4)])
        self.assertIn("v.csv: label", self.refused_with("v.csv", "x,kind,y,z\n1,q,2,3\n"))
        self.assertIn("v.csv:2: z", self.refused_with("v.csv", "x,kind,y,z\n1,a,2,?\n"))
        self.assertIn("begin with 3", self.refused("data.toml", "model.sizes=4,3"))

    def refused_with(self, file, text):
        before = (self.folder / file).read_text()
        (self.folder / file).write_text(text)
        message = self.refused("data.toml", "-n", "2")
        (self.folder / file).write_text(before)
        return message

    def test_arrays(self):
        inputs, targets = zip(*self.ROWS)
        (self.folder / "train").mkdir()
        (self.folder / "train" / "images.npy").write_bytes(
            npy("<f4", (20, 3), b"".join(struct.pack("<3f", *row) for row in inputs)))
        (self.folder / "train" / "labels.npy").write_bytes(
            npy("<i8", (20,), struct.pack("<20q", *targets)))
        (self.folder / "train.safetensors").write_bytes(safetensors(inputs, targets))
        losses = []
        for kind, part in (("npy", "train"), ("safetensors", "train.safetensors")):
            self.recipe(f"""[model]
kind = "mlp"
sizes = [3, 8, 3]
[data]
kind = "{kind}"
path = "."
train = "{part}"
""")
            lines = self.train_on_one_and_two(20)
            losses.append([line["loss"] for line in lines if line["event"] == "step"])
        self.assertEqual(losses[0], losses[1])
        (self.folder / "train.safetensors").write_bytes(b"")
        self.assertIn("train.safetensors", self.refused("data.toml"))

    def test_texts_with_a_class(self):
        rng = random.Random(3)
        (self.folder / "t.tsv").write_text("".join(
            " ".join(rng.choice("abcdef") for _ in range(rng.randrange(1, 12))) + f"\t{i % 2}\n"
            for i in range(20)))
        text = """[model]
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
"""
        for layers in (0, 1):
            self.recipe(text.replace("layers = 0", f"layers = {layers}"))
            self.train_on_one_and_two(20)
        self.assertIn("model.classes is 1", self.refused("data.toml", "classes=1"))

    def test_image_folders_name_broken_images_and_skip_them_on_request(self):
        write_pictures(self.folder / "pictures", ("class0", "class1"), 6, 9, range(0, 240, 20))
        self.recipe("""[model]
kind = "mlp"
sizes = [64, 8, 2]
classes = 2
[data]
kind = "image_folder"
path = "pictures"
image = [1, 8, 8]
threads = 2
""")
        self.train_on_one_and_two(12)
        self.lines("data.toml", "-n", "2", "model.kind=resnet20", "steps=2")
        broken = self.folder / "pictures" / "class1" / "7.png"
        broken.write_bytes(broken.read_bytes()[:40])
        done = self.stormo("train", "data.toml", "-n", "2")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("7.png: not a whole PNG", done.stderr)
        done = self.stormo("train", "data.toml", "-n", "2", "on_error=skip", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("7.png: not a whole PNG"), 1)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["samples"], 2 * 11)
        broken.write_bytes(b"<html>")
        self.assertIn("on_error", self.refused("data.toml", "-n", "2"))

    def test_resume_on_other_ranks_with_another_batch_uses_every_sample_once(self):
        # 96 samples: 40 used by batches of 8, then 14s to the end of the epoch: 4 and a rest of 0
        self.lines("mlp.toml", "-n", "2", "steps=5")
        rest = self.lines("mlp.toml", "-n", "3", "--resume", "epochs=2", "batch=14")
        self.assertEqual(rest[0]["steps"], 5 + 4 + 7)
        self.assertEqual((rest[-1]["steps"], rest[-1]["samples"]), (16, 2 * 96))

    def test_sharding_by_class_is_reported_and_refused_where_there_are_no_classes(self):
        self.recipe("""[model]
kind = "mlp"
sizes = [1, 4, 2]
[data]
kind = "csv"
path = "sorted.csv"
[checkpoint]
directory = "sorted"
""")
        (self.folder / "sorted.csv").write_text(
            "x,label\n" + "".join(f"{i},{int(i >= 10)}\n" for i in range(20)))
        gaps = {}
        for sharding in ("contiguous", "stratified", "strict_stratified"):
            words = ["data.toml", "-n", "2", f"data.sharding={sharding}"]
            lines = self.lines(*words, "--overwrite")
            report = lines[1]
            self.assertEqual((report["event"], report["sharding"]), ("sharding", sharding))
            self.assertEqual([sum(counts) for counts in report["counts"]], [10, 10])
            gaps[sharding] = max(report["chi_square"])
            dry = self.stormo("train", *words, "--overwrite", "--dry-run")
            self.assertIn(f"{sharding}: samples of each rank", dry.stdout)
            dry = self.stormo("train", *words, "--overwrite", "--dry-run", "--json")
            self.assertEqual(json.loads(dry.stdout)["sharding"]["counts"], report["counts"])
        self.assertEqual(gaps, {"contiguous": 10, "stratified": 0, "strict_stratified": 0})
        self.assertNotIn("sharding", [line["event"] for line in self.lines("data.toml", "--overwrite")])
        # the first epoch is that of two ranks to its end
        self.lines("data.toml", "-n", "2", "data.sharding=stratified", "--overwrite", "steps=2")
        rest = self.lines("data.toml", "-n", "3", "data.sharding=stratified", "--resume")
        self.assertEqual(rest[-1]["samples"], 2 * 20)
        message = self.refused("data.toml", "data.sharding=sorted")
        self.assertIn("must be one of shuffled, contiguous, stratified, strict_stratified", message)
        message = self.refused("data.toml", "-n", "4", "--overwrite", "data.sharding=strict_stratified")
        self.assertIn("6 is no multiple of 4; write batch=4", message)
        message = self.refused("gpt.toml", "data.sharding=stratified")
        self.assertIn("a text has no classes to stratify by", message)

    def test_targets_that_are_numbers_are_stratified_by_bins(self):
        self.recipe("""[model]
kind = "mlp"
sizes = [1, 1]
[data]
kind = "csv"
path = "numbers.csv"
sharding = "stratified"
[checkpoint]
directory = "numbers"
""")
        (self.folder / "numbers.csv").write_text("x,label\n" + "".join(f"{i},{i / 3}\n" for i in range(24)))
        for bins in (2, 4):
            words = ("data.toml", "-n", "2", "train.loss=mse", f"data.bins={bins}", "--overwrite")
            report = self.lines(*words)[1]
            self.assertEqual((report["classes"], report["samples"]), (bins, [12, 12]))
            self.assertEqual(report["counts"], [[12 // bins] * bins] * 2)
        self.assertIn("data.bins: are ranges of a target", self.refused("data.toml", "data.bins=4"))


if __name__ == "__main__":
    main()
