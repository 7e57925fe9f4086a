"""A rank that is slow is named with the cause: it computes slowly, its disk is slow, its line is slow.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import os
import random
import struct
import subprocess
import time

from hosts_cli import HOSTS, HostsTest
from small_data import npy
from train_cli import DEADLINE_S, REPOSITORY, TrainTest, main

MODEL = """schema_version = 1
name = "slow"
[model]
kind = "mlp"
sizes = [784, 1024, 1024, 10]
[train]
steps = 1000000
global_batch = 64
log_every = 1
[checkpoint]
directory = ""
"""
SAMPLES = 64
IMAGES = MODEL.replace("[784, 1024, 1024, 10]", "[784, 256, 3]") + """[data]
kind = "npy"
path = "."
train = "images"
"""


class SlowRank(TrainTest):
    def setUp(self):
        super().setUp()
        (self.folder / "slow.toml").write_text(MODEL)

    def assert_named(self, run, rank, part, event="slow_rank"):
        """Until this rank is named with this cause. On a busy machine others may be as well. Its record."""
        by = time.monotonic() + DEADLINE_S
        for line in run.stdout:
            record = json.loads(line)
            if (record["event"], record.get("rank"), record.get("part")) == (event, rank, part):
                return record
            self.assertLess(time.monotonic(), by, record)
        return self.fail(f"not named: {run.stderr.read()}")


class SlowHere(SlowRank):
    def preloaded(self, name):
        library = self.folder / f"{name}.so"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library,
                        REPOSITORY / f"tests/multiproc/{name}.c"], check=True)
        return str(library)

    def test_a_rank_with_a_slow_core_computes_slowly(self):
        run = self.start("slow.toml", "-n", "2", "--json", environment={
            "LD_PRELOAD": self.preloaded("slow_compute"), "SLOW_COMPUTE": "0,200"})
        named = self.assert_named(run, 1, "compute")
        self.assertGreaterEqual(named["ratio"], 1.2)
        self.assertAlmostEqual(named["ratio"], named["part_s"] / named["expected_s"], places=6)
        self.assertLess(named["step_ratio_without"], 1)

    def test_a_rank_with_a_slow_disk_waits_for_data(self):
        numbers = random.Random(1)
        (self.folder / "images").mkdir()
        values = struct.pack(f"<{SAMPLES * 784}f", *(numbers.random() for _ in range(SAMPLES * 784)))
        (self.folder / "images" / "images.npy").write_bytes(npy("<f4", (SAMPLES, 1, 28, 28), values))
        (self.folder / "images" / "labels.npy").write_bytes(
            npy("<i8", (SAMPLES,), struct.pack(f"<{SAMPLES}q", *(i % 3 for i in range(SAMPLES)))))
        (self.folder / "images.toml").write_text(IMAGES)
        run = self.start("images.toml", "-n", "2", "--json", environment={
            "LD_PRELOAD": self.preloaded("slow_reads"), "SLOW_READS_US": "0,3000"})
        named = self.assert_named(run, 1, "data")
        self.assertGreater(named["part_s"], 0.01)
        self.assertLess(named["step_ratio_without"], 0.9)


class SlowLine(SlowRank, HostsTest):
    def test_a_rank_behind_a_slow_line_is_named_with_its_host(self):
        subprocess.run([HOSTS, "exec", f"{self.name}-2", "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                        "200mbit", "burst", "128kb", "latency", "50ms"], check=True)
        run = self.start_on_two_hosts("slow.toml")
        named = self.assert_named(run, 1, "link")
        self.assertEqual(named["host"], f"{self.name}-2")


if __name__ == "__main__":
    main()
