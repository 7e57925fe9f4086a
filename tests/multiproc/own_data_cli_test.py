"""Data of one's own: what is taken and left out, tables with texts and gaps, numbers that do not fit."""

import json
import struct

from small_data import npy, write_pictures
from train_cli import TrainTest, main

TABLE = """schema_version = 1
[model]
kind = "mlp"
sizes = [2, 4, 2]
[data]
kind = "csv"
path = "."
train = "t.csv"
[train]
epochs = 20
global_batch = 8
[optimizer]
lr = 0.5
"""


class LeftOutTest(TrainTest):
    """The start of a run says what was taken of the data, and what was left out and why."""

    PICTURES = """schema_version = 1
[model]
kind = "cnn"
classes = 2
[data]
kind = "image_folder"
path = "pictures"
image = [1, 16, 16]
[train]
epochs = 1
global_batch = 3
"""

    def setUp(self):
        super().setUp()
        write_pictures(self.folder / "pictures", ("dark", "light"), 16, 16, range(0, 240, 40))
        write_pictures(self.folder, ("store",), 16, 16, (50, 60, 70))
        (self.folder / "p.toml").write_text(self.PICTURES)

    def test_what_was_taken_and_left_out(self):
        pictures = self.folder / "pictures"
        (pictures / "light" / "more").symlink_to(self.folder / "store")
        (pictures / "light" / "again").symlink_to("../light")
        (pictures / "light" / "a.webp").write_bytes(b"RIFF")
        (pictures / "dark" / "B.BMP").write_bytes(b"BM")
        (pictures / "dark" / ".hidden").write_bytes(b"")
        (pictures / "labels.txt").write_text("dark, light")
        expected = {"ending .webp": (1, "light/a.webp"), "ending .bmp": (1, "dark/B.BMP"),
                    "hidden": (1, "dark/.hidden"), "beside the folders": (1, "labels.txt"),
                    "a link to a folder that it lies in": (1, "light/again")}
        start = self.lines("p.toml")[0]
        [data] = start["data"]
        self.assertEqual((data["split"], data["samples"], data["classes"], data["files"]),
                         ("training", 9, 2, 9))
        self.assertEqual({l["why"]: (l["count"], l["first"]) for l in data["left_out"]}, expected)
        dry = json.loads(self.stormo("train", "p.toml", "--dry-run", "--json").stdout)
        self.assertEqual(dry["data"], start["data"])
        for done in (self.stormo("train", "p.toml"), self.stormo("train", "p.toml", "--dry-run")):
            said = done.stdout + done.stderr
            self.assertIn("training: 9 samples of 2 classes in 9 files; left out: ", said)
            for why, (count, first) in expected.items():
                self.assertIn(f"{count} {why} ({first})", said)

    def test_one_rule_for_what_cannot_be_read(self):
        for place, name in (("dark", "x.png"), ("dark", "folder"), (".", "third")):
            link = self.folder / "pictures" / place / name
            link.symlink_to("/nowhere")
            self.assertIn("data.on_error", self.refused("p.toml"))
            done = self.stormo("train", "p.toml", "on_error=skip", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{name} (a link to /nowhere)", done.stderr)
            [data] = json.loads(done.stdout.splitlines()[0])["data"]
            self.assertEqual((data["samples"], data["left_out"][0]["why"]), (6, "cannot be read"))
            link.unlink()

    def test_texts_behind_links(self):
        store, snapshot = self.folder / "blobs", self.folder / "snapshot"
        store.mkdir()
        snapshot.mkdir()
        (store / "0a1b").write_text("Was it a car or a cat. " * 200)
        (snapshot / "train.txt").symlink_to("../blobs/0a1b")
        one = self.lines("gpt.toml", "data.path=snapshot", "steps=1")[0]["data"]
        (snapshot / "copy.TXT").write_bytes((store / "0a1b").read_bytes())
        two = self.lines("gpt.toml", "data.path=snapshot", "steps=1")[0]["data"]
        self.assertEqual((one[0]["files"], two[0]["files"]), (1, 2))
        self.assertAlmostEqual(two[0]["samples"], 2 * one[0]["samples"], delta=2)
        (snapshot / "utf16.txt").write_bytes("text".encode("utf-16"))
        self.assertIn("utf16.txt: a zero byte", self.refused("gpt.toml", "data.path=snapshot"))


class TableTest(TrainTest):
    """Tables with gaps and texts, and numbers that a float32 cannot hold."""

    def setUp(self):
        super().setUp()
        (self.folder / "t.toml").write_text(TABLE)

    def write(self, name, header, rows):
        (self.folder / name).write_text("\n".join([header, *(",".join(map(str, r)) for r in rows)]) + "\n")

    def predict(self, rows, header):
        self.write("p.csv", header, rows)
        return self.stormo("predict", "run", "p.csv", "--json")

    def test_a_constant_column_changes_nothing(self):
        self.write("t.csv", "c,x,label", [(14.62, i / 40, int(i > 20)) for i in range(41)])
        self.lines("t.toml", "standardise=true", "--checkpoint", "run")
        done = self.predict([(c, x) for c in (14.62, 14.6200001) for x in (0.1, 0.9)], "c,x")
        classes = [json.loads(line)["classes"][0]["class"] for line in done.stdout.splitlines()]
        self.assertEqual(classes, ["0", "1", "0", "1"])

    def test_numbers_beyond_float32_are_refused(self):
        self.write("t.csv", "x,y,label", [(i, 1, i % 2) for i in range(10)])
        self.lines("t.toml", "--checkpoint", "run")
        self.lines("t.toml", "--checkpoint", "wide", "precision=float64", "steps=1")
        done = self.predict([("1e39", 0.2)], "x,y")
        self.assertEqual((done.returncode, done.stdout.count("prediction")), (2, 0))
        self.assertIn("p.csv:2: x: 1e+39 is beyond what float32 holds", done.stderr)
        self.write("t.csv", "x,y,label", [(i, 1, i % 2) for i in range(10)] + [(1, "-1e39", 0)])
        self.assertIn("t.csv:12: y: -1e+39", self.refused("t.toml"))
        self.write("t.csv", "x,y", [(i, 1) for i in range(10)] + [(1, "1e39")])
        self.assertIn("line 12: label 1e39", self.refused("t.toml", "train.loss=mse", "sizes=1,1"))
        self.assertEqual(self.stormo("predict", "wide", "p.csv").returncode, 0)

    def test_an_output_that_is_no_finite_number_is_refused(self):
        names = ",".join(f"x{i}" for i in range(64))
        self.write("t.csv", names + ",label", [(*range(i, i + 64), i % 2) for i in range(10)])
        self.lines("t.toml", "sizes=64,256,2", "steps=1", "lr=1e-9", "--checkpoint", "run")
        done = self.predict([64 * ("3e38",)], names)  # finite, and some of 256 sums are not
        self.assertEqual((done.returncode, done.stdout.count("prediction")), (1, 0))
        self.assertIn("p.csv:2: the model's output is no finite number", done.stderr)
        self.write("t2.csv", names + ",label", [(*64 * ("3e38",), 1)])
        done = self.stormo("evaluate", "run", "data.test=t2.csv")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("test: the loss is no finite number", done.stderr)

    def test_texts_gaps_and_parts(self):
        cities = ("Rome", "Oslo", "Bonn")
        rows = [(f"n{i}", cities[i % 3], "" if i % 7 == 0 else i % 5, "yes" if i % 3 == 1 else "no")
                for i in range(60)]
        self.write("t.csv", "name,city,a,label", rows)
        self.assertIn("data.categories", self.refused("t.toml"))
        keys = ("categories=city", "exclude=name", "missing=indicator", "sizes=5,8,2",
                "validation_fraction=0.2", "test_fraction=0.1", "standardise=true")
        self.assertIn("begin with 5", self.refused("t.toml", *keys, "sizes=4,8,2"))
        lines = self.lines("t.toml", "-n", "2", *keys, "epochs=40", "--checkpoint", "run")
        self.assertEqual([(d["split"], d["samples"]) for d in lines[0]["data"]],
                         [("training", 42), ("validation", 12), ("test", 6)])
        evaluated = {line["split"]: line for line in lines if line["event"] == "eval"}
        done = self.stormo("evaluate", "run", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in map(json.loads, done.stdout.splitlines()):
            self.assertAlmostEqual(line["loss"], evaluated[line["split"]]["loss"], places=5)
            self.assertEqual(line["classes"], ["no", "yes"])
            self.assertEqual(sum(map(sum, line["confusion"])), line["samples"])
            right = line["confusion"][0][0] + line["confusion"][1][1]
            self.assertAlmostEqual(right / line["samples"], line["accuracy"])
            self.assertEqual((line["f1"], line["auc"]), (1, 1))
        text = self.stormo("evaluate", "run").stdout
        self.assertIn("mean F1 1.0000, AUC 1.0000", text)
        self.assertIn("is \\ predicted", text)
        done = self.predict([("Oslo", ""), ("Rome", 2), ("Paris", 2)], "city,a")
        self.assertEqual([json.loads(line)["classes"][0]["class"] for line in done.stdout.splitlines()][:2],
                         ["yes", "no"])
        self.assertIn('1 values of column "city"', done.stderr)
        self.assertIn('"Paris"', done.stderr)

    def test_the_other_loss_is_hinted_at(self):
        self.write("t.csv", "x,y,price", [(i, i % 3, 3.25 * i) for i in range(60)])
        self.assertIn('train.loss = "mse"', self.refused("t.toml"))
        self.write("t.csv", "x,y,kind", [(i / 60, i % 3, i % 3) for i in range(60)])
        done = self.stormo("train", "t.toml", "train.loss=mse", "sizes=2,1", "optimizer.lr=0.01")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the targets are the whole numbers 0 to 2", done.stderr)

    def test_a_constant_target_has_an_r2(self):
        for constant in (0.1, 2.5):
            self.write("t.csv", "x,y", [(i / 20, constant) for i in range(20)])
            lines = self.lines("t.toml", "train.loss=mse", "sizes=1,1", "data.test=t.csv", "standardise=true",
                               "optimizer.lr=0.1")
            [test] = [line for line in lines if line["event"] == "eval"]
            self.assertEqual(test["r2"], 0)
            self.assertLess(test["mae"], 0.1)


class ArrayTest(TrainTest):
    """Shapes and numbers of arrays that are settled before a rank starts."""

    def test_channels_last(self):
        images, labels = self.folder / "a" / "images.npy", self.folder / "a" / "labels.npy"
        images.parent.mkdir()
        images.write_bytes(npy("|u1", (8, 32, 32, 3), bytes(i % 251 for i in range(8 * 32 * 32 * 3))))
        labels.write_bytes(npy("<i8", (8,), struct.pack("<8q", *(i % 2 for i in range(8)))))
        (self.folder / "a.toml").write_text("""schema_version = 1
[model]
kind = "cnn"
classes = 2
[data]
kind = "npy"
path = "a"
mean = [0.5, 0.5, 0.5]
stddev = [0.2, 0.2, 0.2]
[train]
epochs = 1
global_batch = 4
""")
        self.assertIn("channels_last", self.refused("a.toml"))
        self.lines("a.toml", "layout=channels_last", "--checkpoint", "run")
        done = self.stormo("predict", "run", "a/images.npy")
        self.assertEqual((done.returncode, len(done.stdout.splitlines())), (0, 8), done.stderr)
        self.assertIn("32 channels", self.refused("a.toml", "model.kind=mlp", "sizes=3072,2", "mean=0.5", "stddev=0.2"))
        self.assertIn("float32 cannot hold", self.refused("a.toml", "layout=channels_last", "stddev=1e-40"))

    def test_types_that_are_not_read(self):
        for dtype, width in (("F8_E4M3", 1), ("C64", 8)):
            header = json.dumps({
                "inputs": {"dtype": dtype, "shape": [4, 2], "data_offsets": [0, 8 * width]},
                "targets": {"dtype": "I64", "shape": [4], "data_offsets": [8 * width, 8 * width + 32]}}).encode()
            header += b" " * (-len(header) % 8)
            (self.folder / "x.safetensors").write_bytes(
                struct.pack("<Q", len(header)) + header + bytes(8 * width + 32))
            (self.folder / "s.toml").write_text(
                TABLE.replace('"csv"', '"safetensors"').replace("t.csv", "x.safetensors"))
            self.assertIn("give contiguous numbers", self.refused("s.toml"))


if __name__ == "__main__":
    main()
