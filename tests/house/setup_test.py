"""What ./quickstart and ./check are made of: tools/progress and tools/setup.sh.

Usage: setup_test.py REPOSITORY
"""

import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(sys.argv[1])


class Scratch(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path


class Progress(Scratch):
    STEPS = 40

    def ninja(self, command="touch $out"):
        steps = "".join(f"build o{i}: make\n" for i in range(self.STEPS))
        self.write("build.ninja", f"rule make\n  command = {command}\n{steps}")
        return [REPOSITORY / "tools/progress", "building", "-C", self.folder, "-j", "1"]

    def run_to_end(self, command):
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def test_a_log_file_gets_a_line_for_every_tenth(self):
        done = self.run_to_end(self.ninja())
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stderr.splitlines()
        tenths = [int(re.fullmatch(r"stormo: building: +(\d+) %, \d+ of 40 steps, \d+ s", l)[1]) // 10 for l in lines]
        self.assertEqual(tenths, list(range(11)), done.stderr)
        self.assertEqual(self.run_to_end(self.ninja()).stderr, "")  # nothing to do, nothing to say

    def test_a_terminal_gets_one_line_that_changes(self):
        try:
            ours, theirs = pty.openpty()
        except OSError as error:
            self.skipTest(f"machine: there are no terminals, /dev/pts is not mounted: {error}")
        with subprocess.Popen(self.ninja(), stderr=theirs, stdout=subprocess.DEVNULL) as child:
            os.close(theirs)
            text = b""
            try:
                while data := os.read(ours, 65536):
                    text += data
            except OSError:  # how Linux says that the other end is closed
                pass
        os.close(ours)
        self.assertEqual(child.returncode, 0)
        self.assertEqual(text.count(b"\n"), 1, text)
        self.assertEqual(text.count(b"\r\x1b") + text.count(b"\rstormo: building:"), self.STEPS, text)
        self.assertIn(b"100 %, 40 of 40 steps", text)

    def test_a_failure_is_shown_and_is_the_status(self):
        done = self.run_to_end(self.ninja("test $out != o30 && touch $out || { echo the cause; exit 1; }"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("the cause", done.stderr.splitlines())
        self.assertRegex(done.stderr, r"(?m)^FAILED: o30")
        self.assertNotIn("100 %", done.stderr)


class Configure(Scratch):
    """tools/setup.sh with a dpkg-query and a cmake that say what the test wants."""

    def setUp(self):
        super().setUp()
        (self.folder / "tools").mkdir()
        shutil.copy(REPOSITORY / "tools/setup.sh", self.folder / "tools")
        self.write("packages.txt", "# packages\ng++ build the compiler\nlibsome-dev check optional\n")
        self.write("bin/dpkg-query", '#!/bin/sh\nsed "s/^/ii /" "$INSTALLED"\n', 0o755)
        self.write("bin/cmake", '#!/bin/sh\necho "$@" >>"$CALLS"\nmkdir -p build/p && touch build/p/build.ninja\n', 0o755)

    def configured(self, installed, **more):
        """How often cmake has run after `configure p` with these packages installed."""
        packages = self.write("installed", "".join(f"{name}\n" for name in installed))
        calls = self.folder / "calls"
        environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "INSTALLED": str(packages), "CALLS": str(calls), **more}
        subprocess.run(["bash", "-c", ". tools/setup.sh; : >>$stormo_log; configure p"], cwd=self.folder, env=environment,
                       check=True, stderr=subprocess.DEVNULL, timeout=60)
        return len(calls.read_text().splitlines())

    def test_again_when_a_package_has_come_or_gone_or_libtorch_changed(self):
        self.assertEqual(self.configured(["g++"]), 1)
        self.assertEqual(self.configured(["g++"]), 1)  # nothing new
        self.assertEqual(self.configured(["g++", "libsome-dev"]), 2)
        self.assertEqual(self.configured(["g++", "libsome-dev"]), 2)
        self.assertEqual(self.configured(["g++"]), 3)
        self.assertEqual(self.configured(["g++"], STORMO_TORCH="/torch"), 4)
        (self.folder / ".venv").mkdir()  # its Python has the modules of the tests
        self.assertEqual(self.configured(["g++"], STORMO_TORCH="/torch"), 5)
        self.assertEqual(self.configured(["g++"], STORMO_TORCH="/torch"), 5)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
