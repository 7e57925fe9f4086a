"""Runs the built program: what `stormo train` prints, refuses and leaves behind.

Usage: train_cli_test.py PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

STORMO = ""
REPOSITORY = pathlib.Path()
DEADLINE_S = 120

MLP = """schema_version = 1
name = "small"
[model]
kind = "mlp"
sizes = [784, 16, 10]
[train]
steps = 6
global_batch = 8
log_every = 1
[checkpoint]
directory = "run"
"""

GPT = """schema_version = 1
name = "letters"
[model]
kind = "gpt"
layers = 1
heads = 2
width = 16
context = 16
[data]
kind = "text"
path = "text"
[train]
steps = 3
global_batch = 4
log_every = 1
[optimizer]
kind = "adamw"
lr = 1e-3
[sample]
length = 20
"""


def idx(magic, dims, data):
    return struct.pack(f">I{len(dims)}I", magic, *dims) + data


def write_mnist(folder, train=96, test=32):
    """Images whose class is the bright row: learnable, 28 x 28."""
    folder.mkdir(parents=True)
    rng = random.Random(1)
    for name, count in (("train", train), ("t10k", test)):
        labels = bytes(rng.randrange(10) for _ in range(count))
        images = bytearray()
        for label in labels:
            image = bytearray(28 * 28)
            image[28 * label : 28 * label + 28] = bytes([200 + rng.randrange(50)] * 28)
            images += image
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(0x803, [count, 28, 28], images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(0x801, [count], labels))


def png(height, width, grey):
    """One grey value all over, as a PNG."""
    def chunk(kind, data):
        return (struct.pack(">I", len(data)) + kind + data +
                struct.pack(">I", zlib.crc32(kind + data)))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress((b"\0" + bytes([grey] * width)) * height)) + chunk(b"IEND", b""))


def npy(dtype, shape, data):
    header = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + data


def safetensors(inputs, targets):
    """`inputs`: rows of floats, `targets`: whole numbers."""
    values = b"".join(struct.pack(f"<{len(row)}f", *row) for row in inputs)
    labels = struct.pack(f"<{len(targets)}q", *targets)
    header = json.dumps({
        "inputs": {"dtype": "F32", "shape": [len(inputs), len(inputs[0])],
                   "data_offsets": [0, len(values)]},
        "targets": {"dtype": "I64", "shape": [len(targets)],
                    "data_offsets": [len(values), len(values) + len(labels)]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + values + labels


class TrainTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "mlp.toml").write_text(MLP)
        (self.folder / "gpt.toml").write_text(GPT)
        write_mnist(self.folder / "data" / "mnist")
        (self.folder / "text").mkdir()
        (self.folder / "text" / "a.txt").write_text("to be or not to be, that is it\n" * 60)

    def stormo(self, *arguments):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        return subprocess.run(
            [STORMO, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def lines(self, *arguments):
        done = self.stormo("train", *arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refused(self, *arguments):
        """The messages of a command that must start nothing and write nothing."""
        before = sorted(self.folder.rglob("*"))
        done = self.stormo("train", *arguments)
        self.assertEqual(done.returncode, 2, f"{arguments}: {done.stdout}{done.stderr}")
        self.assertEqual(done.stdout, "")
        self.assertEqual(before, sorted(self.folder.rglob("*")), arguments)
        return done.stderr


class JsonTest(TrainTest):
    def test_lines_have_the_documented_shape(self):
        for ranks in ("1", "2"):
            lines = self.lines("mlp.toml", "-n", ranks)
            self.assertEqual([line["event"] for line in lines],
                             ["start"] + ["step"] * 6 + ["eval", "end"])
            self.assertEqual(lines[0]["schema"], 1)
            self.assertEqual([line["step"] for line in lines[1:7]], [1, 2, 3, 4, 5, 6])
            self.assertEqual(lines[7]["split"], "test")
            self.assertIn("accuracy", lines[7])
            end = lines[-1]
            self.assertEqual(
                list(end),
                ["event", "steps", "samples", "wall_s", "samples_per_s", "train_loss",
                 "skipped_steps", "val_loss", "test_accuracy", "weights_hash", "ranks", "hosts",
                 "bytes_sent_per_rank", "checkpoint"])
            self.assertEqual((end["steps"], end["samples"], end["ranks"]), (6, 48, int(ranks)))
            self.assertEqual(len(end["bytes_sent_per_rank"]), int(ranks))
            self.assertRegex(end["weights_hash"], "^[0-9a-f]{16}$")
            self.assertTrue((self.folder / end["checkpoint"] / "manifest.json").exists())

    def test_losses_do_not_depend_on_the_number_of_ranks(self):
        losses = []
        for ranks in ("1", "2", "3"):
            lines = self.lines("mlp.toml", "-n", ranks, "precision=float64", "checkpoint.directory=")
            losses.append([line["loss"] for line in lines if line["event"] == "step"])
        for other in losses[1:]:
            for a, b in zip(losses[0], other, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-10 * abs(a))

    def test_text_run_shows_a_sample_and_its_validation_loss(self):
        done = self.stormo("train", "gpt.toml", "-n", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("validation loss", done.stderr)
        self.assertIn("a sample of what the model writes", done.stderr)
        self.assertNotIn("\x1b", done.stderr)

    def test_resume_goes_on_where_the_run_stopped(self):
        whole = self.lines("mlp.toml", "-n", "2", "--checkpoint", "whole")
        self.lines("mlp.toml", "-n", "2", "--checkpoint", "half", "steps=3")
        rest = self.lines("mlp.toml", "-n", "2", "--checkpoint", "half", "--resume")
        self.assertEqual(rest[0]["first_step"], 3)
        self.assertEqual([s["loss"] for s in whole if s["event"] == "step"][3:],
                         [s["loss"] for s in rest if s["event"] == "step"])
        self.assertEqual(whole[-1]["weights_hash"], rest[-1]["weights_hash"])

    def test_trace_has_every_rank(self):
        self.lines("mlp.toml", "-n", "2", "--trace", "out.json")
        trace = json.loads((self.folder / "out.json").read_text())
        events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        self.assertEqual({e["pid"] for e in events}, {0, 1})
        self.assertTrue(all(e["ts"] >= 0 and e["dur"] >= 0 for e in events))


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
        for i in range(12):
            folder = self.folder / "pictures" / f"class{i % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.png").write_bytes(png(6, 9, 20 * i))
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


class DryRunTest(TrainTest):
    def test_prints_recipe_and_plan_and_starts_nothing(self):
        before = sorted(self.folder.rglob("*"))
        done = self.stormo("train", "mlp.toml", "-n", "4", "--dry-run", "steps=40")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("steps = 40", done.stdout)
        self.assertIn("host_shared", done.stdout)
        self.assertEqual(before, sorted(self.folder.rglob("*")))

    def test_every_recipe_of_the_repository_is_valid(self):
        for recipe in sorted((REPOSITORY / "recipes").glob("*.toml")):
            done = self.stormo("train", str(recipe), "-n", "2", "--dry-run", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["event"], "dry_run")

    def test_the_reference_in_the_docs_is_the_programs(self):
        done = self.stormo("train", "--help-recipe")
        self.assertEqual(done.returncode, 0)
        self.assertIn(done.stdout, (REPOSITORY / "docs" / "recipes.md").read_text())


def tensors_of(path):
    """Name -> (dtype, shape, bytes), read as the format's specification says."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        found[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return found


class CheckpointTest(TrainTest):
    def checkpoint(self, *arguments, code=0):
        done = self.stormo("checkpoint", *arguments)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        return done.stdout if code == 0 else done.stderr

    def test_inspect_and_verify(self):
        path = self.lines("mlp.toml", "-n", "2")[-1]["checkpoint"]
        shown = json.loads(self.checkpoint("inspect", "run", "--json"))
        self.assertEqual((shown["path"], shown["step"], shown["samples"], shown["name"]), (path, 6, 48, "small"))
        self.assertEqual(list(shown["files"]), ["shard-00000.safetensors", "shard-00001.safetensors"])
        self.assertEqual(shown["recipe"]["model"]["sizes"], [784, 16, 10])
        self.assertEqual(shown["state"]["seed"], 1)
        weights = [t["shape"] for t in shown["tensors"] if not t["name"].startswith("optimizer.")]
        self.assertCountEqual(weights, [[16, 784], [16], [10, 16], [10]])
        text = self.checkpoint("inspect", path)
        for part in (path, "small", "step        6 (48 samples)", "[16, 784]"):
            self.assertIn(part, text)
        self.assertIn("whole", self.checkpoint("verify", "run"))
        self.assertTrue(json.loads(self.checkpoint("verify", "run", "--json"))["ok"])

    def test_damage_is_found_and_named(self):
        path = self.folder / self.lines("mlp.toml", "-n", "2")[-1]["checkpoint"]
        shard = path / "shard-00001.safetensors"
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        self.checkpoint("inspect", str(path))  # reads no values
        for arguments in (["verify", "run"], ["export", "run", "out.safetensors", "--optimizer"]):
            self.assertIn("shard-00001.safetensors", self.checkpoint(*arguments, code=1))
        self.assertFalse((self.folder / "out.safetensors").exists())
        (path / "manifest.json").write_text("{}")
        self.assertIn("manifest.json", self.checkpoint("inspect", "run", code=1))

    def test_usage_errors(self):
        self.assertIn("no complete checkpoint in 'none'", self.checkpoint("inspect", "none", code=2))
        self.lines("mlp.toml")
        self.assertIn("exists already", self.checkpoint("export", "run", "mlp.toml", code=2))
        self.assertIn("does not exist", self.checkpoint("import", "none", "new", code=2))
        self.checkpoint("export", "run", "m.safetensors")
        self.assertIn("import into a new folder", self.checkpoint("import", "m.safetensors", "run", code=2))
        self.assertEqual(self.stormo("checkpoint").returncode, 2)

    def test_export_is_equal_whoever_wrote_it_and_import_is_the_way_back(self):
        path = self.lines("mlp.toml", "-n", "2")[-1]["checkpoint"]
        self.checkpoint("export", path, "model.safetensors")
        exported = tensors_of(self.folder / "model.safetensors")
        shapes = {json.dumps(shape) for dtype, shape, data in exported.values()}
        self.assertEqual(shapes, {"[16, 784]", "[16]", "[10, 16]", "[10]"})
        shards = {}
        for shard in (self.folder / path).glob("shard-*"):
            shards.update(tensors_of(shard))
        whole = [name for name in exported if name in shards]
        self.assertTrue(whole)
        for name in whole:
            self.assertEqual(exported[name], shards[name])
        self.checkpoint("import", "model.safetensors", "new")
        self.checkpoint("export", "new", "again.safetensors")
        self.assertEqual(exported, tensors_of(self.folder / "again.safetensors"))
        # Training goes on from there: its first loss is that of trained weights.
        first = self.lines("mlp.toml", "-n", "2", "--checkpoint", "new", "--resume", "steps=1", "lr=0.5")
        fresh = self.lines("mlp.toml", "-n", "2", "--checkpoint", "other", "steps=1", "lr=0.5")
        self.assertNotEqual(first[1]["loss"], fresh[1]["loss"])
        self.assertEqual(first[0]["first_step"], 0)

    def test_python_reads_the_export(self):
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            self.skipTest("python3 has no safetensors and torch; the bytes are compared by the test above")
        path = self.lines("mlp.toml", "-n", "2")[-1]["checkpoint"]
        self.checkpoint("export", path, "model.safetensors", "--optimizer")
        read = load_file(self.folder / "model.safetensors")
        wanted = tensors_of(self.folder / "model.safetensors")
        self.assertEqual(set(read), set(wanted))
        for name, tensor in read.items():
            self.assertEqual(list(tensor.shape), wanted[name][1])
            self.assertEqual(tensor.contiguous().numpy().tobytes(), wanted[name][2])
        save_file({f"module.{name}": tensor for name, tensor in read.items()}, self.folder / "python.safetensors")
        self.checkpoint("import", "python.safetensors", "new")
        self.checkpoint("export", "new", "again.safetensors", "--optimizer")
        self.assertEqual(wanted, tensors_of(self.folder / "again.safetensors"))


class BadInputTest(TrainTest):
    def test_unknown_key_names_the_nearest(self):
        self.assertIn("did you mean 'train.steps'", self.refused("mlp.toml", "stpes=3"))

    def test_wrong_type(self):
        self.assertIn("must be whole number", self.refused("mlp.toml", "steps=many"))

    def test_several_errors_at_once_are_all_listed(self):
        text = MLP.replace("steps = 6", "stepz = 6").replace('"mlp"', '"mpl"')
        (self.folder / "bad.toml").write_text(text)
        message = self.refused("bad.toml", "optimizer.lr=fast", "-n", "0")
        for part in ("bad.toml:7:1: unknown key 'train.stepz'", "model.kind", "optimizer.lr", "-n 0"):
            self.assertIn(part, message)

    def test_no_such_recipe(self):
        self.assertIn("nowhere.toml does not exist", self.refused("nowhere.toml"))

    def test_missing_data(self):
        self.assertIn("data.path", self.refused("mlp.toml", "-n", "2", "data.path=nowhere"))

    def test_truncated_idx(self):
        path = self.folder / "data" / "mnist" / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-5])
        self.assertIn("train-images", self.refused("mlp.toml", "-n", "2"))

    def test_idx_with_wrong_magic(self):
        path = self.folder / "data" / "mnist" / "t10k-labels-idx1-ubyte"
        path.write_bytes(b"\x01" + path.read_bytes()[1:])
        self.assertIn("t10k-labels", self.refused("mlp.toml", "-n", "2"))

    def test_empty_text(self):
        (self.folder / "text" / "a.txt").write_text("")
        self.assertIn("text", self.refused("gpt.toml", "-n", "2"))

    def test_batch_smaller_than_ranks(self):
        self.assertIn("batch", self.refused("mlp.toml", "-n", "3", "batch=2"))

    def test_numbers_of_ranks(self):
        for ranks in ("0", "100000"):
            self.assertIn(f"-n {ranks}", self.refused("mlp.toml", "-n", ranks))
        for ranks in ("-1", "x"):
            self.assertRegex(self.refused("mlp.toml", "-n", ranks), "-n|--ranks")

    def test_heads_do_not_divide_width(self):
        self.assertIn("model.heads", self.refused("gpt.toml", "model.heads=3"))

    def test_model_and_data_do_not_fit(self):
        self.assertIn("cannot learn from", self.refused("mlp.toml", "data.kind=text", "data.path=text"))

    def test_unwritable_checkpoint_directory(self):
        (self.folder / "file").write_text("")
        message = self.refused("mlp.toml", "-n", "2", "checkpoint.directory=file/below")
        self.assertIn("file/below", message)

    def test_resume_without_a_checkpoint(self):
        self.assertIn("no complete checkpoint", self.refused("mlp.toml", "--resume"))

    def test_resume_from_a_damaged_checkpoint(self):
        checkpoint = self.folder / self.lines("mlp.toml")[-1]["checkpoint"]
        for file in ("shard-00000.safetensors", "manifest.json"):
            whole = (checkpoint / file).read_bytes()
            flipped = bytearray(whole)
            flipped[len(flipped) // 2] ^= 1
            for damaged in (whole[: len(whole) // 2], bytes(flipped)):
                (checkpoint / file).write_bytes(damaged)
                self.assertIn(file, self.refused("mlp.toml", "-n", "2", "--resume"))
            (checkpoint / file).write_bytes(whole)

    def test_resume_from_a_foreign_checkpoint(self):
        self.lines("mlp.toml")
        message = self.refused("mlp.toml", "-n", "2", "--resume", "name=other")
        self.assertIn("was written by 'small'", message)
        message = self.refused("mlp.toml", "-n", "2", "--resume", "model.sizes=784,8,10")
        self.assertIn("model", message)

    def test_trace_into_a_missing_folder(self):
        self.assertIn("--trace", self.refused("mlp.toml", "--trace", "no/such/out.json"))


if __name__ == "__main__":
    STORMO, REPOSITORY = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
