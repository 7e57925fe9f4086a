"""`bench/cuts`, which writes docs/cuts.md."""

import pathlib
import subprocess
import sys
import xml.etree.ElementTree

from small_data import write_mnist
from train_cli import REPOSITORY, STORMO, TrainTest, main


class CutsTest(TrainTest):
    def cuts(self, *arguments):
        command = [sys.executable, REPOSITORY / "bench/cuts", "--bin", pathlib.Path(STORMO).parent, *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def test_a_section_is_replaced_and_the_text_around_it_stays(self):
        write_mnist(self.folder / "small", train=256)
        page = self.folder / "cuts.md"
        page.write_text("before\n\n<!-- measured: columns -->\nold\n<!-- end -->\n\nbehind\n")
        done = self.cuts("--mnist", str(self.folder / "small"), "--only", "columns", "--steps", "2", "--rounds", "1",
                         "--output", str(page))
        self.assertEqual(done.returncode, 0, done.stderr)
        text = page.read_text()
        self.assertTrue(text.startswith("before\n\n<!-- measured: columns -->\n"), text)
        self.assertTrue(text.endswith("<!-- end -->\n\nbehind\n"), text)
        self.assertNotIn("old", text)
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
        self.assertEqual([row[0] for row in rows],
                         ["| one rank", "| batch (ddp)", "| inside layers (tensor)", "| features (vertical)"])
        self.assertEqual(rows[0][2], "0 B")
        self.assertNotEqual(rows[1][2], "0 B")
        self.assertEqual(len({row[-1] for row in rows}), 1, "all train as one rank")
        for picture in ("steps", "time"):
            lines = xml.etree.ElementTree.parse(self.folder / "cuts" / f"columns-{picture}.svg").iter(
                "{http://www.w3.org/2000/svg}polyline")
            self.assertEqual(len(list(lines)), len(rows))

    def test_what_is_wrong_is_said_together(self):
        done = self.cuts("--only", "x,gpt")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no section 'x'; give --text for gpt", done.stderr)
        done = self.cuts("--text", ".", "--only", "gpt", "--steps", "0", "--rounds", "-1", "-n", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("-n must be at least 1; --steps must be at least 1; --rounds must be at least 1", done.stderr)

    def test_the_folder_of_the_program_may_be_relative(self):
        program = self.folder / "bin/stormo"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho found >&2\nexit 1\n")
        program.chmod(0o700)
        command = [sys.executable, REPOSITORY / "bench/cuts", "--bin", "bin", "--text", ".", "--only", "gpt"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        self.assertTrue(done.stderr.endswith("\nfound\n"), done.stderr)


if __name__ == "__main__":
    main()
