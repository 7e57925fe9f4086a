"""Ranks that do not have the same recipe, data or model: none of them trains."""

import shutil
import time
import uuid

from small_data import npy, write_mnist
from train_cli import DEADLINE_S, MLP, TrainTest, main, need_mounts

VERDICT_S = 5
LARGE = """schema_version = 1
[model]
kind = "cnn"
classes = 3
[data]
kind = "npy"
path = "."
train = "images"
[train]
steps = 1
global_batch = 8
[checkpoint]
directory = "run"
"""


class AgreementTest(TrainTest):
    def setUp(self):
        super().setUp()
        for part in ("a", "b"):
            (self.folder / part).mkdir()
            (self.folder / part / "mlp.toml").write_text(MLP)
            (self.folder / part / "data").symlink_to(self.folder / "data")

    def under_torchrun(self, *arguments, of_rank_1=(), folders=("a", "b")):
        """Two ranks as torchrun starts them, each in its folder: [process, ...]."""
        job = uuid.uuid4().hex
        ranks = []
        for rank, part in enumerate(folders):
            environment = dict(
                RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", TORCHELASTIC_RUN_ID=job)
            extra = of_rank_1 if rank == 1 else ()
            ranks.append(self.start("mlp.toml", *arguments, *extra, cwd=self.folder / part,
                                    environment=environment))
        for rank in ranks:
            rank.out, rank.err = rank.communicate(timeout=DEADLINE_S)
        return ranks

    def refused_by_all(self, *fields, arguments=(), of_rank_1=()):
        """The text of rank 0; all ranks must have refused the run, and nothing was written."""
        started = time.monotonic()
        ranks = self.under_torchrun(*arguments, of_rank_1=of_rank_1)
        self.assertLess(time.monotonic() - started, VERDICT_S + self.joining_s())
        for rank in ranks:
            self.assertEqual(rank.returncode, 2, rank.err)
            self.assertEqual(rank.out, "")
        for field in fields:
            self.assertIn(field, ranks[0].err)
        self.assertEqual(ranks[1].err, "", "rank 0 has said it for this host")
        self.assertFalse((self.folder / "a" / "run").exists())
        return ranks[0].err

    def joining_s(self):
        """What a run takes on this machine at the moment that has nothing to refuse."""
        if not hasattr(self, "measured_s"):
            started = time.monotonic()
            for rank in self.under_torchrun("steps=1", "checkpoint.directory=", folders=("a", "a")):
                self.assertEqual(rank.returncode, 0, rank.err)
            self.measured_s = time.monotonic() - started
        return self.measured_s

    def change(self, old, new):
        path = self.folder / "b" / "mlp.toml"
        path.write_text(path.read_text().replace(old, new))

    def test_another_recipe(self):
        self.change("global_batch = 8", "global_batch = 6\nseed = 7")
        (self.folder / "b" / "mlp.toml").open("a").write("[optimizer]\nlr = 0.25\nmomentum = 0.5\n")
        text = self.refused_by_all("rank 0 has")
        for field, theirs, ours in (("train.global_batch", "6", "8"), ("train.seed", "7", "1"),
                                    ("optimizer.lr", "0.25", "0.1"),
                                    ("optimizer.momentum", "0.5", "0.0")):
            self.assertRegex(text, rf"\n  1 +\S+ +{field} +{theirs} +{ours}\n")

    def test_another_number_of_samples(self):
        (self.folder / "b" / "data").unlink()
        write_mnist(self.folder / "b" / "data" / "mnist", train=80)
        self.assertRegex(self.refused_by_all(), r"training data: samples +80 +96\n")

    def test_other_samples(self):
        (self.folder / "b" / "data").unlink()
        shutil.copytree(self.folder / "data", self.folder / "b" / "data")
        images = self.folder / "b" / "data" / "mnist" / "t10k-images-idx3-ubyte"
        content = bytearray(images.read_bytes())
        content[-1] ^= 1
        images.write_bytes(content)
        text = self.refused_by_all("test data: content")
        self.assertNotIn("training data", text)

    def test_one_block_of_a_large_file(self):
        image, block = 28 * 28 * 4, 256 << 10
        samples = (130 << 20) // image
        for part in ("a", "b"):
            (self.folder / part / "images").mkdir()
            (self.folder / part / "images" / "labels.npy").write_bytes(npy("<i8", (samples,), bytes(8 * samples)))
            (self.folder / part / "mlp.toml").write_text(LARGE)
            with (self.folder / part / "images" / "images.npy").open("wb") as file:
                begin = file.write(npy("<f4", (samples, 1, 28, 28), b""))
                file.truncate(begin + samples * image)
        with (self.folder / "b" / "images" / "images.npy").open("r+b") as file:
            # of 256 blocks at equal distances it lies between two
            file.seek(begin + (samples * image - block) * 200 // 255 + block + 1000)
            file.write(b"\1")
        self.assertIn("training data: content", self.refused_by_all())

    def test_flags_of_one_rank(self):
        self.refused_by_all("--trace", of_rank_1=("--trace", "out.json"))

    def test_a_rank_without_data(self):
        (self.folder / "b" / "data").unlink()
        self.refused_by_all("rank 1 (host ", "no MNIST file")

    def test_a_rank_with_a_broken_recipe(self):
        self.change("steps = 6", "stepz = 6")
        self.refused_by_all("rank 1 (host ", "mlp.toml:7:1: unknown key 'train.stepz'")

    def test_all_ranks_with_a_broken_recipe_say_it_once(self):
        text = self.refused_by_all(arguments=("batch=1",))
        self.assertEqual(text.count("a batch of 1 gives 2 ranks"), 1)

    def test_places_and_threads_may_differ(self):
        (self.folder / "b" / "data").unlink()
        shutil.copytree(self.folder / "data" / "mnist", self.folder / "b" / "elsewhere")
        self.change("[train]", '[data]\npath = "elsewhere"\nthreads = 2\n[train]')
        self.change('name = "small"', 'name = "small"\nthreads = 1')
        for rank in self.under_torchrun("checkpoint.directory="):
            self.assertEqual(rank.returncode, 0, rank.err)

    def test_a_host_of_our_launcher_with_another_recipe(self):
        """The second "host" is this one, but sees the recipe of folder b in folder a."""
        need_mounts()
        shell = self.folder / "shell"
        shell.write_text(
            "#!/bin/sh\nshift\n"
            f"exec unshare -m sh -c 'mount --bind {self.folder}/b/mlp.toml {self.folder}/a/mlp.toml && "
            "exec \"$@\"' sh \"$@\"\n")
        shell.chmod(0o755)
        self.change("global_batch = 8", "global_batch = 8\nseed = 7")
        job = self.start("mlp.toml", "-H", "localhost:1,b:1", "--interface", "lo",
                         "--remote-shell", f"{shell} {{host}}", cwd=self.folder / "a")
        _, errors = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 2, errors)
        self.assertRegex(errors, r"\n  1 +b +train.seed +7 +1\n")


if __name__ == "__main__":
    main()
