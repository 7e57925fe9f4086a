"""What the tests of the built program share: small recipes and data, and a case that runs it.

Usage of each: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
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
import xml.etree.ElementTree

FILE = pathlib.Path(sys.argv[0])
STORMO = sys.argv[1]
REPOSITORY = pathlib.Path(sys.argv[2])
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
        for dry in ([], ["--dry-run"]):
            done = self.stormo("train", *arguments, *dry)
            self.assertEqual(done.returncode, 2, f"{arguments}: {done.stdout}{done.stderr}")
            self.assertEqual(done.stdout, "")
            self.assertEqual(before, sorted(self.folder.rglob("*")), arguments)
        return done.stderr


class Results(unittest.TextTestResult):
    """Also leaves skips for tools/test_report, as GoogleTest does: in the folder of GTEST_OUTPUT."""

    def stopTestRun(self):
        super().stopTestRun()
        folder = os.environ.get("GTEST_OUTPUT", "").removeprefix("xml:")
        if folder:
            suite = xml.etree.ElementTree.Element("testsuite")
            reasons = {test.id(): reason for test, reason in self.skipped}
            for name in [*reasons, *[""] * (self.testsRun - len(reasons))]:
                case = xml.etree.ElementTree.SubElement(suite, "testcase", classname=FILE.stem, name=name)
                if name:
                    xml.etree.ElementTree.SubElement(case, "skipped", message=reasons[name])
            xml.etree.ElementTree.ElementTree(suite).write(pathlib.Path(folder) / f"{FILE.stem}.xml")


def main():
    runner = unittest.TextTestRunner(resultclass=Results)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], testRunner=runner)
