"""Who loads what: the part of a rank in the plan of a step, and what the rank reads of the files.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import collections
import random
import re
import struct

from small_data import npy
from train_cli import TrainTest, main

SAMPLES, SIDE = 16, 28
IMAGE = SIDE * SIDE * 4  # bytes, of float32
RECIPE = """schema_version = 1
name = "images"
[model]
kind = "cnn"
classes = 3
[data]
kind = "npy"
path = "."
train = "images"
[train]
epochs = 1
global_batch = 8
[checkpoint]
directory = ""
"""


class DataAccess(TrainTest):
    def setUp(self):
        super().setUp()
        numbers = random.Random(1)
        (self.folder / "images").mkdir()
        (self.folder / "images" / "images.npy").write_bytes(
            npy("<f4", (SAMPLES, 1, SIDE, SIDE),
                b"".join(struct.pack("<f", numbers.random()) for _ in range(SAMPLES * SIDE * SIDE))))
        (self.folder / "images" / "labels.npy").write_bytes(
            npy("<i8", (SAMPLES,), struct.pack(f"<{SAMPLES}q", *(i % 3 for i in range(SAMPLES)))))
        (self.folder / "images.toml").write_text(RECIPE)

    def loading_ranks(self, ranks, *arguments):
        """Those in whose part of the plan there is a load."""
        out = set()
        for rank in range(ranks):
            shown = self.stormo("plan", "show", "images.toml", "-n", str(ranks), *arguments, "--rank", str(rank))
            self.assertEqual(shown.returncode, 0, shown.stderr)
            out |= {str(rank)} if re.search(r"\bload\b", shown.stdout) else set()
        return out

    def images_of(self, ranks, *arguments):
        """Rank -> the images that it reads, in order; behind those of the epoch a few for a next one."""
        read = {}
        for rank, operation, path, offset, size in self.accesses("images.toml", "-n", str(ranks), *arguments):
            if operation != "read" or not path.endswith("images.npy") or rank == "none":
                continue
            if size > IMAGE:  # all at once, which ranks compare before the first step; what was before is a check
                read[rank] = []
            elif size == IMAGE:
                read.setdefault(rank, []).append((offset - 128) // IMAGE)
        return read

    def test_each_rank_opens_each_file_once_and_the_launcher_none(self):
        for ranks, who in (("1", {"none"}), ("2", {"0", "1"})):
            opened = collections.Counter((rank, path) for rank, operation, path, _, _
                                         in self.accesses("images.toml", "-n", ranks) if operation == "open")
            self.assertEqual({rank for rank, _ in opened}, who)
            self.assertEqual(set(opened.values()), {1}, opened)

    def test_ranks_that_compute_the_same_samples_load_them_and_no_others(self):
        everything = list(range(SAMPLES))
        for ranks, groups, way in ((2, ("01",), ("strategy.pipeline=2", "train.micro_batches=2")),
                                   (2, ("01",), ("strategy.tensor=2",)),
                                   (2, ("01",), ("strategy.spatial=2,1",)),
                                   (2, ("0", "1"), ()),
                                   (4, ("01", "23"), ("strategy.tensor=2",)),
                                   (4, ("01", "23"), ("strategy.pipeline=2", "train.micro_batches=2"))):
            with self.subTest(ranks=ranks, way=way):
                read = self.images_of(ranks, *way)
                self.assertEqual(set(read), self.loading_ranks(ranks, *way))
                samples, share = [], SAMPLES // len(groups)
                for group in groups:
                    for rank in group:
                        self.assertEqual(read[rank][:share], read[group[0]][:share], f"ranks {rank} and {group[0]}")
                    samples += read[group[0]][:share]
                self.assertEqual(sorted(samples), everything)


if __name__ == "__main__":
    main()
