"""`stormo checkpoint`: what it shows, finds and converts."""

import json
import struct

from train_cli import TrainTest, main


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
            from safetensors.numpy import load_file, save_file
        except ImportError:
            self.skipTest("set-up: this Python has no safetensors and numpy; ./check installs them")
        path = self.lines("mlp.toml", "-n", "2")[-1]["checkpoint"]
        self.checkpoint("export", path, "model.safetensors", "--optimizer")
        read = load_file(self.folder / "model.safetensors")
        wanted = tensors_of(self.folder / "model.safetensors")
        self.assertEqual(set(read), set(wanted))
        for name, array in read.items():
            self.assertEqual(list(array.shape), wanted[name][1])
            self.assertEqual(array.tobytes(), wanted[name][2])
        save_file({f"module.{name}": array for name, array in read.items()}, self.folder / "python.safetensors")
        self.checkpoint("import", "python.safetensors", "new")
        self.checkpoint("export", "new", "again.safetensors", "--optimizer")
        self.assertEqual(wanted, tensors_of(self.folder / "again.safetensors"))


if __name__ == "__main__":
    main()
