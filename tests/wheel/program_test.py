"""The installed wheel of the program: a first training with nothing compiled.

Run by the Python of an environment with torch, in a folder from which the checkout cannot be seen.
"""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.prefix) / "bin"
# the environment is not activated, and the Python of the system has no torch
NOTHING = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}


class Program(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def stormo(self, *words):
        return subprocess.run(
            [BIN / "stormo", *words], capture_output=True, text=True, timeout=300, cwd=self.folder, env=NOTHING
        )

    def test_a_first_training_in_a_minute(self):
        start = time.monotonic()
        done = self.stormo("train", "quickstart", "-n", "2", "steps=20")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertLess(time.monotonic() - start, 60)

    def test_libtorch_is_that_of_the_environment(self):
        own = importlib.metadata.version("torch").split("+")[0]
        self.assertRegex(self.stormo("doctor").stdout, rf"(?m)^libtorch +{own}\b")

    def test_version_and_completion(self):
        self.assertEqual(self.stormo("--version").returncode, 0)
        self.assertTrue((pathlib.Path(sys.prefix) / "share/bash-completion/completions/stormo").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
