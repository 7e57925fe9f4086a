"""stormo train with vertical sharding: each rank has some columns of the samples, and one the labels.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import random
import shutil
import struct
import subprocess
import unittest

from small_data import npy
from train_cli import DEADLINE_S, TrainTest, main, need_mounts

RECIPE = """schema_version = 1
name = "columns"
precision = "float64"
[model]
kind = "mlp"
sizes = [7, 6, 3]
[data]
kind = "csv"
path = "whole"
train = "train.csv"
test = "test.csv"
label = "kind"
standardise = true
[train]
steps = 25
global_batch = 8
log_every = 1
eval_every = 10
[optimizer]
kind = "adamw"
lr = 0.01
[strategy]
kind = "vertical"
[checkpoint]
directory = "run"
"""
FEATURES = "abcdefg"
PARTS = ("data.path=.", "data.parts=bank,shop", "data.id=who", "strategy.labels=1")
# which columns a file has; the parts have a row order of their own
FILES = {"whole": "abcdefgk", "bank": "wabc", "shop": "dwkefg"}
ARRAYS = ("data.kind=npy", "data.path=arrays", "data.train=train", "data.test=test", "data.label=",
          "data.standardise=false")
NAMES = {"k": "kind", "w": "who"}


class VerticalTest(TrainTest):
    def setUp(self):
        super().setUp()
        (self.folder / "r.toml").write_text(RECIPE)
        rng = random.Random(3)
        for split, rows in (("train", 40), ("test", 13)):
            table = [self.row(rng, i) for i in range(rows)]
            for name, columns in FILES.items():
                self.write_table(name, split, columns, table)
                rng.shuffle(table)
            ordered = sorted(table, key=lambda row: row["w"])
            self.write_arrays(split, ordered)
            self.write_bytes(split, ordered)

    @staticmethod
    def row(rng, number):
        values = {c: rng.gauss(0, 1) for c in FEATURES}
        kind = "uvw"[(values["a"] + values["e"] > 0) + (values["d"] * values["g"] > 0)]
        return {**values, "k": kind, "w": f"p{number:03}"}

    def write_table(self, name, split, columns, rows, change=lambda lines: lines):
        lines = [",".join(NAMES.get(c, c) for c in columns)]
        lines += [",".join(str(row[c]) for c in columns) for row in rows]
        path = self.folder / name / f"{split}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(change(lines)) + "\n")

    def write_bytes(self, split, rows):
        """Two columns that are numbers, and five that are bytes, in a column of pixels."""
        for name, values, labels in (("left", [row[c] for row in rows for c in "ab"], False),
                                     ("right", [int(row[c]) % 256 for row in rows for c in "cdefg"], True)):
            folder = self.folder / "mixed" / name / split
            folder.mkdir(parents=True)
            form, shape, pack = ("|u1", (len(rows), 5, 1), "B") if labels else ("<f8", (len(rows), 2), "d")
            (folder / "images.npy").write_bytes(npy(form, shape, struct.pack(f"<{len(values)}{pack}", *values)))
            if labels:
                shutil.copy(self.folder / "arrays" / split / "labels.npy", folder)

    def write_arrays(self, split, rows):
        """All columns in one folder, and the same in two."""
        for name, columns in (("arrays", FEATURES), ("arrays/left", "ab"), ("arrays/right", "cdefg")):
            folder = self.folder / name / split
            folder.mkdir(parents=True)
            numbers = [row[c] for row in rows for c in columns]
            (folder / "images.npy").write_bytes(
                npy("<f8", (len(rows), len(columns), 1), struct.pack(f"<{len(numbers)}d", *numbers)))
            if name != "arrays/left":
                labels = ["uvw".index(row["k"]) for row in rows]
                (folder / "labels.npy").write_bytes(
                    npy("<i8", (len(rows),), struct.pack(f"<{len(rows)}q", *labels)))

    def run_of(self, *arguments):
        """The last record, and the losses of the steps and evaluations."""
        records = self.lines("r.toml", *arguments, "--overwrite")
        self.assertEqual(records[-1]["event"], "end")
        return records[-1], [(r["event"], r["loss"], r.get("accuracy")) for r in records
                             if r["event"] in ("step", "eval")]

    def weights(self, run):
        """All numbers of the newest checkpoint, by name."""
        path = self.folder / "weights.safetensors"
        path.unlink(missing_ok=True)
        done = self.stormo("checkpoint", "export", run, str(path))
        self.assertEqual(done.returncode, 0, done.stderr)
        data = path.read_bytes()
        length, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        return {name: struct.unpack(f"<{(t['data_offsets'][1] - t['data_offsets'][0]) // 8}d",
                                    data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
                for name, t in header.items()}

    def assert_near(self, a, b):
        self.assertEqual(len(a), len(b))
        for (event, x, accuracy), (_, y, other) in zip(a, b):
            self.assertAlmostEqual(x, y, delta=1e-10, msg=event)
            self.assertEqual(accuracy, other)

    def assert_trains_alike(self, data, ways):
        _, alone = self.run_of(*data, "-n", "1")
        self.assertEqual(len(alone), 25 + 1)  # test data are evaluated at the end
        expected = self.weights("run")
        for way in ways:
            _, losses = self.run_of(*data, *way)
            self.assert_near(losses, alone)
            for name, numbers in self.weights("run").items():
                for x, y in zip(numbers, expected[name], strict=True):
                    self.assertAlmostEqual(x, y, delta=1e-10, msg=f"{name} {way}")

    def test_trains_as_with_all_columns(self):
        self.assert_trains_alike((), (
            ("-n", "2"), ("-n", "3", "strategy.labels=2", "strategy.column_counts=1,5,1"),
            ("-n", "4", "strategy.labels=1", "train.micro_batches=2", "train.clip_norm=0.5e9", "train.recompute=true")))

    def test_trains_as_with_all_columns_of_parts(self):
        self.assert_trains_alike(PARTS, (("-n", "2"),))
        _, parts = self.run_of(*PARTS, "-n", "2")
        self.join_by_hand()
        _, joined = self.run_of("-n", "1", "data.path=bank_and_shop")
        self.assert_near(parts, joined)

    def join_by_hand(self):
        """Writes what both parts have as one table, with its rows matched by their ids."""
        for split in ("train", "test"):
            rows = {}
            for name in ("bank", "shop"):
                lines = (self.folder / name / f"{split}.csv").read_text().split()
                head = lines[0].split(",")
                for line in lines[1:]:
                    row = dict(zip(head, line.split(",")))
                    rows.setdefault(row["who"], {}).update(row)
            ordered = [rows[who] for who in sorted(rows)]
            folder = self.folder / "bank_and_shop"
            folder.mkdir(exist_ok=True)
            head = [*FEATURES, "kind"]
            (folder / f"{split}.csv").write_text(
                "\n".join([",".join(head), *(",".join(row[c] for c in head) for row in ordered)]) + "\n")

    def test_trains_as_with_all_columns_of_arrays(self):
        self.assert_trains_alike(ARRAYS, (("-n", "4", "strategy.column_counts=4,1,1,1"),))
        done = self.stormo("predict", "run", "arrays/test/images.npy")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 13)
        parts = (*ARRAYS, "data.parts=left,right", "strategy.labels=1")
        self.assert_trains_alike(parts, (("-n", "2"),))
        self.assert_trains_alike((*parts, "data.path=mixed"), (("-n", "2"),))

    def test_numbers_as_targets(self):
        numbers = ("data.label=g", "data.columns=a,b,c,d,e,f", "model.sizes=6,5,1", "train.loss=mse")
        self.assert_trains_alike(numbers, (("-n", "2", "strategy.labels=1"),))

    def test_no_rank_opens_what_another_has(self):
        seen = {(rank, os.path.relpath(path, self.folder.resolve()))
                for rank, _, path, _, _ in self.accesses("r.toml", *PARTS, "-n", "2")}
        self.assertEqual(seen, {("0", "bank/train.csv"), ("0", "bank/test.csv"),
                                ("1", "shop/train.csv"), ("1", "shop/test.csv")})
        # not even who starts ranks reads labels or values
        parts = (*ARRAYS, "data.parts=left,right", "strategy.labels=1")
        seen = {(rank, os.path.relpath(path, self.folder.resolve()))
                for rank, _, path, _, _ in self.accesses("r.toml", *parts, "-n", "2")}
        self.assertEqual(seen, {(str(r), f"arrays/{side}/{split}/{file}.npy") for split in ("train", "test")
                                for r, side, file in ((0, "left", "images"), (1, "right", "images"),
                                                      (1, "right", "labels"))})

    def test_of_a_common_array_a_rank_reads_only_the_bytes_of_its_columns(self):
        counts = [3, 1, 3]
        log = self.accesses("r.toml", *ARRAYS, "-n", "3", "strategy.labels=2", "strategy.column_counts=3,1,3")
        read = {rank: set() for rank in "012"}
        for rank, operation, path, offset, size in log:
            self.assertIn(rank, read, "only ranks read")
            self.assertIn("arrays/", path)
            if path.endswith("labels.npy"):
                self.assertEqual(rank, "2")
            elif operation == "read":
                read[rank].update(range(offset - 128, offset - 128 + size))
        for rank, first in (("0", 0), ("1", 3), ("2", 4)):
            columns = {byte % 56 // 8 for byte in read[rank] if byte >= 0}
            self.assertEqual(columns, set(range(first, first + counts[int(rank)])))

    def test_resumes_to_the_bit_and_one_process_reads_its_checkpoint(self):
        whole, losses = self.run_of(*PARTS, "-n", "2", "checkpoint.directory=whole_run")
        self.run_of(*PARTS, "-n", "2", "train.steps=10")
        shutil.copytree(self.folder / "run", self.folder / "copy", symlinks=True)
        records = self.lines("r.toml", *PARTS, "-n", "2", "--resume")
        self.assertEqual(records[-1]["weights_hash"], whole["weights_hash"])
        one = self.lines("r.toml", *PARTS, "-n", "1", "--resume", "checkpoint.directory=copy")
        self.assertAlmostEqual(one[-1]["train_loss"], records[-1]["train_loss"], delta=1e-10)
        # evaluated by one process, with the columns by name from one table
        for data in ((), ("data.parts=", "data.id=", "data.path=bank_and_shop")):
            if data:
                self.join_by_hand()
            done = self.stormo("evaluate", "whole_run", "--json", *data)
            self.assertEqual(done.returncode, 0, done.stderr)
            record = json.loads(done.stdout)
            self.assert_near([("eval", record["loss"], record["accuracy"])], losses[-1:])
        done = self.stormo("predict", "whole_run", "bank_and_shop/test.csv")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 13)
        # a checkpoint of other columns is not gone on from
        run = self.start("r.toml", "-n", "2", "data.columns=b,a,c,d,e,f,g", "--resume",
                         "--accept-changes", "data.id")
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 2, err)
        self.assertIn("was trained on data with other columns", err)

    def test_a_lost_rank_ends_the_job_with_its_cause(self):
        self.assert_lost_rank_ends_job("r.toml", *PARTS, "-n", "2", "train.steps=1000000", "eval_every=0")

    def test_hosts_that_have_only_their_own_file(self):
        """The second "host" is this one, but sees folder b where the first one has folder a."""
        need_mounts()
        for host, part in (("a", "bank"), ("b", "shop")):
            shutil.copytree(self.folder / part, self.folder / host / part)
            shutil.copy(self.folder / "r.toml", self.folder / host)
        shell = self.folder / "shell"
        shell.write_text(
            "#!/bin/sh\nshift\n"
            f"exec unshare -m sh -c 'mount --bind {self.folder}/b {self.folder}/a && exec \"$@\"' sh \"$@\"\n")
        shell.chmod(0o755)
        _, expected = self.run_of(*PARTS, "-n", "2")
        job = self.start("r.toml", *PARTS, "-H", "localhost:1,b:1", "--interface", "lo", "--json", "--remote-shell",
                         f"{shell} {{host}}", "checkpoint.directory=", cwd=self.folder / "a")
        out, err = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 0, err)
        records = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(records[-1]["hosts"], 2)
        self.assert_near([(r["event"], r["loss"], r.get("accuracy")) for r in records
                          if r["event"] in ("step", "eval")], expected)

    def test_what_cannot_be_is_refused_before_anything_starts(self):
        parts = PARTS[:3]
        for arguments, messages in (
                (("-n", "8"), ("7 columns leave none for some of 8 ranks; use fewer ranks",)),
                (("-n", "2", "strategy.labels=2"), ("labels are on rank 2, and there are ranks 0 to 1",)),
                (("-n", "2", "strategy.column_counts=3,3"),
                 ("ranks with 3, 3 columns are not 2 ranks that have all 7 columns",)),
                (("-n", "3", *parts), ("2 parts for 3 ranks; start one rank for each part",)),
                (("-n", "2", *parts, "strategy.column_counts=3,4"), ("is for one table",)),
                (("-n", "2", *parts, "strategy.kind=ddp"), ("write strategy.kind=vertical",)),
                (("-n", "2", "strategy.kind=ddp", "strategy.column_counts=3,4"), ("does not use strategy.column_counts",)),
                (("-n", "2", "strategy.tensor=2"), ("does not use strategy.tensor",)),
                (("-n", "2", "data.kind=mnist", "data.sharding=stratified", "data.id=",
                  "data.standardise=false", "data.label="),
                 ("vertical reads columns of csv, tsv and npy", "write data.sharding=shuffled"))):
            err = self.refused("r.toml", *arguments)
            for message in messages:
                self.assertIn(message, err)

    def test_what_a_search_prints_takes_the_keys_of_columns_back(self):
        of_columns = ("strategy.labels=1", "strategy.column_counts=3,4")
        found = self.stormo("plan", "search", "r.toml", *of_columns, "-n", "2", "--gflops", "1", "--json")
        self.assertEqual(found.returncode, 0, found.stderr)
        keys = json.loads(found.stdout.splitlines()[0])["keys"]
        done = self.stormo("train", "r.toml", *of_columns, "-n", "2", *keys, "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_search_does_not_look_at_parts(self):
        done = self.stormo("plan", "search", "r.toml", *PARTS, "-n", "2", "--gflops", "1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("a search compares ways in which ranks have whole samples; give one table", done.stderr)
        self.assertNotIn("write strategy.kind", done.stderr)

    def refused_by_ranks(self, *arguments):
        """Ranks alone see data: all of them refuse, with one message, before the first step."""
        done = self.stormo("train", "r.toml", *arguments, "--overwrite")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertFalse((self.folder / "run").exists())
        return done.stderr

    def test_data_that_do_not_fit_are_refused_by_all_ranks(self):
        both = (*PARTS, "-n", "2")
        self.assertIn('has a column "nowhere"',
                      self.refused_by_ranks("-n", "1", *PARTS, "data.columns=a,d,nowhere"))
        err = self.refused_by_ranks(*both, "data.columns=a,b,d,nowhere")
        self.assertEqual(err.count('data.columns names "nowhere", which no rank has'), 1, err)
        self.assertIn("no columns of features are left", self.refused_by_ranks(*both, "data.columns=a,b"))
        self.assertIn('data.label "kind" is no column', self.refused_by_ranks(*both, "strategy.labels=0"))
        self.assertIn("is the label, which another part has too", self.refused_by_ranks(*both, "strategy.labels=0"))
        self.assertIn('data.id "nobody" is no column', self.refused_by_ranks(*both, "data.id=nobody"))
        self.assertIn("it must begin with 7", self.refused_by_ranks(*both, "model.sizes=8,6,3"))
        self.assertIn("strategy.column_counts of [4, 4] are not the 7 columns",
                      self.refused_by_ranks("-n", "2", "model.sizes=8,6,3", "strategy.column_counts=4,4"))
        path = self.folder / "bank" / "train.csv"
        lines = path.read_text().splitlines()
        for change, message in ((lines[:-1], "rows of training"),
                                ([*lines, lines[-1]], "have the same value of data.id"),
                                ([*lines[:-1], "stranger" + lines[-1][4:]], "values of data.id, training"),
                                ([lines[0].replace("b", "d"), *lines[1:]], 'ranks 0 and 1 both have a column "d"')):
            path.write_text("\n".join(change) + "\n")
            self.assertIn(message, self.refused_by_ranks(*both, "data.test="))
        path.unlink()
        self.assertIn("rank 0 (host ", self.refused_by_ranks(*both))

    def test_arrays_that_do_not_fit_are_refused_by_all_ranks(self):
        parts = (*ARRAYS, "data.parts=left,right", "-n", "2")
        self.assertIn("another part has labels too", self.refused_by_ranks(*parts))
        (self.folder / "arrays/right/train/labels.npy").unlink()
        self.assertIn("labels.npy", self.refused_by_ranks(*parts, "strategy.labels=1"))

    def test_the_plan_is_shown_without_data(self):
        shutil.rmtree(self.folder / "bank")
        shown = self.stormo("plan", "show", "r.toml", *PARTS, "-n", "2")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("step micro_batches=1 labels 1", shown.stdout)
        self.assertIn("split 7 dim 1", shown.stdout)
        cost = json.loads(self.stormo("plan", "cost", "r.toml", *PARTS, "-n", "2", "--hosts", "2", "--json").stdout)
        # of 8 samples: the sum of 6 hidden units to the other rank; the loss with 3 gradients from rank 1
        self.assertGreaterEqual(cost["between_hosts_per_rank"][1] - cost["between_hosts_per_rank"][0], 8 * 4 * 8)
        self.assertIn("--measured needs samples",
                      self.stormo("plan", "simulate", "r.toml", *PARTS, "-n", "2", "--measured").stderr)


if __name__ == "__main__":
    main()
