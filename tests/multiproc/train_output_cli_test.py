"""A run of `stormo train` goes on whatever happens to the readers of its output."""

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time

from train_cli import DEADLINE_S, TrainTest, main

MANY_STEPS = "steps=1000000"
PAGE = 4096


def wait_until_full(pipe):
    """Until a pipe of which nobody reads takes no more."""
    held = 0
    by = time.monotonic() + DEADLINE_S
    while held == 0 or select.select([], [pipe[1]], [], 0)[1]:
        held = struct.unpack("i", fcntl.ioctl(pipe[0], termios.FIONREAD, b"\0" * 4))[0]
        if time.monotonic() > by:
            raise TimeoutError(f"the pipe holds only {held} bytes")


class OutputTest(TrainTest):
    def pipe(self):
        ends = os.pipe()
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PAGE)
        for end in ends:
            self.addCleanup(os.close, end)
        return ends

    def assert_saved(self, directory, step=None):
        saved = [path.parent.name for path in (self.folder / directory).glob("step-*/manifest.json")]
        self.assertTrue(saved, f"no checkpoint in {directory}")
        if step is not None:
            self.assertIn(f"step-{step:08}", saved)

    def test_a_full_disk_under_the_records_costs_the_records_only(self):
        for ranks in ("1", "2"):
            with open("/dev/full", "w") as full:
                job = self.start("mlp.toml", "-n", ranks, "--json", "--checkpoint", f"full{ranks}",
                                 stdout=full)
                errors = job.communicate(timeout=DEADLINE_S)[1]
            self.assertEqual(job.returncode, 1, errors)
            self.assertEqual(errors.count("standard output: No space left on device"), 1, errors)
            self.assert_saved(f"full{ranks}", 6)

    def test_closed_readers_do_not_end_the_run(self):
        for ranks in ("1", "2"):
            for streams in (("stdout",), ("stdout", "stderr")):
                reader, writer = os.pipe()
                os.close(reader)
                directory = f"closed{ranks}{len(streams)}"
                named = {name: writer for name in streams}
                job = self.start("mlp.toml", "-n", ranks, "--json", "--checkpoint", directory,
                                 **{"stderr": subprocess.DEVNULL, **named})
                os.close(writer)
                self.assertEqual(job.wait(DEADLINE_S), 1, directory)
                self.assert_saved(directory, 6)

    def test_a_reader_that_does_not_read_holds_nothing_up(self):
        for ranks in ("1", "2"):
            pipe = self.pipe()
            directory = f"stopped{ranks}"
            job = self.start("mlp.toml", "-n", ranks, MANY_STEPS, "--checkpoint", directory,
                             "checkpoint.every=50", stderr=pipe[1], stdout=subprocess.DEVNULL)
            wait_until_full(pipe)
            seen = set()
            by = time.monotonic() + DEADLINE_S
            while len(seen) < 3:  # more steps are done, and saved
                seen |= {p.parent.name for p in (self.folder / directory).glob("step-*/manifest.json")}
                self.assertLess(time.monotonic(), by)
            job.send_signal(signal.SIGTERM)
            self.assertEqual(job.wait(DEADLINE_S), 143)
            self.assert_saved(directory)


if __name__ == "__main__":
    main()
