"""`stormo top` on a real terminal, beside a real run."""

import fcntl
import json
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

from train_cli import DEADLINE_S, STORMO, TrainTest, main, open_terminal, ranks_of

MANY_STEPS = ("steps=1000000", "checkpoint.every=50")
ESCAPE = re.compile(r"\x1b\[(\?)?([\d;]*)([A-Za-z])")


class Terminal:
    """A program on a pseudo-terminal, and what one sees there: as much of xterm as `stormo top` uses."""

    def __init__(self, test, words, rows, columns, environment):
        self.test = test
        self.rows, self.columns = rows, columns
        self.screens = {False: [""], True: []}  # lines; the second screen has as many as there are rows
        self.second, self.cursor_shown = False, True
        self.row = self.column = 0
        self.rest, self.raw = "", ""
        self.master, self.slave = open_terminal()
        test.addCleanup(os.close, self.master)
        test.addCleanup(os.close, self.slave)
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [STORMO, "top", *words], stdin=self.slave, stdout=self.slave, stderr=self.slave, cwd=test.folder,
            start_new_session=True, env={**os.environ, "TERM": "xterm", **test.login, **environment},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        test.enterContext(self.process)
        test.addCleanup(self.process.kill)

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))  # sends SIGWINCH

    def press(self, keys):
        os.write(self.master, keys)

    def put(self, text):
        """Printable text and line ends, where the cursor is."""
        lines = self.screens[self.second]
        for character in text:
            if character == "\n":
                self.row += 1
            elif character == "\r":
                self.column = 0
            else:
                while len(lines) <= self.row:
                    lines.append("")
                line = lines[self.row].ljust(self.column)
                lines[self.row] = line[:self.column] + character + line[self.column + 1:]
                self.column += 1

    def obey(self, private, numbers, letter):
        lines = self.screens[self.second]
        if private and numbers == "1049":
            self.second = letter == "h"
            self.row = self.column = 0
            self.screens[True] = []
            if not self.second:
                self.row = len(self.screens[False]) - 1
        elif private and numbers == "25":
            self.cursor_shown = letter == "h"
        elif letter == "H":
            self.row = self.column = 0
        elif letter == "K" and self.row < len(lines):
            lines[self.row] = lines[self.row][:self.column]
        elif letter == "J":
            del lines[self.row + 1:]

    def read(self, wait_s=0.2):
        """What has come. False at the end."""
        if not select.select([self.master], [], [], wait_s)[0]:
            return True
        try:
            came = os.read(self.master, 65536).decode()
        except OSError:  # nobody has the other end
            return False
        self.raw += came
        self.rest += came
        while self.rest:
            escape = ESCAPE.match(self.rest)
            if escape:
                self.obey(*escape.groups())
                self.rest = self.rest[escape.end():]
            elif self.rest[0] == "\x1b":
                break  # the rest of it is to come
            else:
                self.put(self.rest[0])
                self.rest = self.rest[1:]
        return True

    def text(self):
        return "\n".join(self.screens[self.second])

    def fits(self):
        lines = self.screens[True]
        return len(lines) <= self.rows and all(len(line) <= self.columns for line in lines)

    def wait_for(self, holds):
        """The text on the second screen as soon as it is as wished, and not larger than the window: `holds` is a
        pattern, or a function."""
        wished = holds if callable(holds) else lambda text: re.search(holds, text, re.MULTILINE)
        by = time.monotonic() + DEADLINE_S
        while not (self.second and self.fits() and wished(self.text())):
            self.test.assertLess(time.monotonic(), by, self.text())
            self.test.assertTrue(self.read(), self.text())
        return self.text()

    def end(self):
        """Its exit code; all that it has written is on the screens."""
        by = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            self.read()
            self.test.assertLess(time.monotonic(), by, self.text())
        while select.select([self.master], [], [], 0)[0] and self.read():
            pass
        return self.process.returncode

    def assert_as_before(self):
        self.test.assertFalse(self.second)
        self.test.assertTrue(self.cursor_shown)
        self.test.assertTrue(self.raw.rstrip().rfind("\x1b[?7h") > self.raw.rfind("\x1b[?7l"))
        self.test.assertEqual(termios.tcgetattr(self.slave), self.before)


class TopTest(TrainTest):
    def setUp(self):
        super().setUp()
        login = self.folder / "login"
        login.mkdir(mode=0o700)
        self.login = {"XDG_RUNTIME_DIR": str(login), "HOME": str(self.folder)}
        self.job_files = login / "stormo"

    def begin(self, *arguments, recipe="mlp.toml", address="127.0.0.1:0"):
        """A run, and its address, when it can be looked at."""
        run = self.start(recipe, *arguments, "--metrics", address, stdout=subprocess.DEVNULL, environment=self.login)
        for line in run.stderr:
            if line.startswith("metrics: http://"):
                return run, re.fullmatch(r"metrics: http://(.+)/metrics\n", line)[1]
        self.fail(f"no address of metrics, exit code {run.wait()}")

    def end_run(self, run):
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 143)

    def top(self, *words, environment=None):
        return self.stormo("top", *words, environment={**self.login, **(environment or {})})

    def watch(self, *words, rows=24, columns=100, **environment):
        return Terminal(self, words, rows, columns, environment)

    def top_until(self, holds, *words):
        """The object of `--json` as soon as it is as wished."""
        by = time.monotonic() + DEADLINE_S
        while True:
            done = self.top("--once", "--json", *words)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            now = json.loads(done.stdout)
            if holds(now):
                return now
            self.assertLess(time.monotonic(), by, now)

    def assert_refused(self, done, *says, code=2):
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertTrue(done.stderr.startswith("stormo top: "), done.stderr)
        for text in says:
            self.assertIn(text, done.stderr)

    def test_a_run_on_a_terminal(self):
        run, address = self.begin("-n", "2", *MANY_STEPS)
        shown = self.watch("--interval", "100ms")
        text = shown.wait_for(r"^\*[01] .*slowest$")
        self.assertRegex(text, rf"\Asmall: training +{re.escape(address)} ")
        self.assertRegex(text, r"(?m)^.* 2 ranks of 1 host ")
        self.assertRegex(text, r"(?m)^\[[#.]{20}\] +step \d+ of 1000000 +epoch \d+\.\d\d .* left$")
        self.assertRegex(text, r"(?m)^loss \d+\.\d{4} +learning rate .* steps/s .* samples/s")
        self.assertRegex(text, r"(?m)^rank +state +compute +wait +comm +data +memory +host")
        for rank in (0, 1):
            self.assertRegex(text, rf"(?m)^[ *]{rank} +running .* \d+(\.\d)? MiB +{re.escape(socket.gethostname())}")
        self.assertTrue(shown.second)
        self.assertFalse(shown.cursor_shown)
        self.assertIn("\x1b[1m", shown.raw)  # bold
        self.assertFalse(termios.tcgetattr(shown.slave)[3] & termios.ECHO)
        step = int(re.search(r"step (\d+)", text)[1])
        shown.wait_for(lambda text: int(re.search(r"step (\d+)", text)[1]) > step)
        shown.resize(14, 30)
        shown.wait_for(r"^rank +compute +wait( +memory)?$")
        shown.resize(3, 9)
        shown.wait_for(r"\Asmall: tr$")
        shown.resize(40, 120)
        shown.wait_for(r"^\*[01] .*slowest$")
        shown.press(b"\x03")
        self.assertEqual(shown.end(), 0)
        shown.assert_as_before()
        self.assertIn("small: training", shown.text())  # stays to be read
        self.end_run(run)

    def test_other_ways_to_leave(self):
        run, _ = self.begin("-n", "1", *MANY_STEPS)
        shown = self.watch(NO_COLOR="1")
        shown.wait_for("step")
        shown.press(b"q")
        self.assertEqual(shown.end(), 0)
        shown.assert_as_before()
        self.assertNotRegex(shown.raw, r"\x1b\[[\d;]*m")
        shown = self.watch()
        shown.wait_for("step")
        shown.process.send_signal(signal.SIGTERM)
        self.assertEqual(shown.end(), 143)
        shown.assert_as_before()
        shown = self.watch()
        shown.wait_for("step")
        shown.press(b"\x1a")  # Ctrl-Z
        self.assertTrue(os.WIFSTOPPED(os.waitpid(shown.process.pid, os.WUNTRACED)[1]))
        while shown.second:
            shown.read()
        shown.assert_as_before()
        shown.process.send_signal(signal.SIGCONT)
        shown.wait_for("step")
        shown.press(b"q")
        self.assertEqual(shown.end(), 0)
        self.end_run(run)

    def test_the_end_of_a_run_is_told(self):
        for ends, says in ((self.end_run, r"^small: interrupted after step \d+"),
                           (self.lose_rank_1, r"^small: failed: .*rank 1")):
            run, _ = self.begin("-n", "2", "--overwrite", *MANY_STEPS)
            shown = self.watch("--interval", "1min")  # it does not wait for a refresh
            shown.wait_for("small: ")
            self.assertEqual(self.top("--once").returncode, 0)  # who has asked before is heard now
            ends(run)
            self.assertEqual(shown.end(), 0)
            shown.assert_as_before()
            self.assertRegex(shown.text(), rf"(?m){says}")
        self.assertEqual(list(self.job_files.iterdir()), [])

    def lose_rank_1(self, run):
        os.kill(ranks_of(run)[1], signal.SIGKILL)
        run.communicate(timeout=DEADLINE_S)

    def test_a_run_that_is_killed_has_not_said_why(self):
        run, address = self.begin("-n", "2", *MANY_STEPS)
        shown = self.watch("--interval", "100ms")
        shown.wait_for("step")
        os.kill(ranks_of(run)[0], signal.SIGKILL)
        run.communicate(timeout=DEADLINE_S)
        self.assertEqual(shown.end(), 0)
        self.assertRegex(shown.text(), r"(?m)^small: training, step \d+ of 1000000; then it was gone")
        # its file has stayed, and nobody takes it for a job
        self.assertEqual(len(list(self.job_files.iterdir())), 1)
        self.assert_refused(self.top("--once"), "no job of this user", "--metrics")
        self.assert_refused(self.top(address), address, "refused", "has ended")

    def test_a_stopped_rank_is_seen(self):
        run, _ = self.begin("-n", "2", *MANY_STEPS, "--stall-warning", "0", "--stall-timeout", "0")
        now = self.top_until(lambda now: len(now["ranks"]) == 2 and now["ranks"][1]["state"] == "running")
        self.assertGreater(now["ranks"][1]["memory_bytes"], 1 << 20)
        ranks = ranks_of(run)
        os.kill(ranks[1], signal.SIGSTOP)
        self.top_until(lambda now: now["ranks"][1]["state"] == "stopped")
        os.kill(ranks[1], signal.SIGCONT)
        self.top_until(lambda now: now["ranks"][1]["state"] == "running")
        self.end_run(run)

    def test_json_and_pipes_print_once(self):
        run, address = self.begin("-n", "2", *MANY_STEPS)
        now = self.top_until(lambda now: now["ranks"] and now["ranks"][0]["seconds"])
        self.assertEqual((now["schema"], now["address"], now["state"]), (1, address, "training"))
        self.assertEqual((now["recipe"], now["num_ranks"], now["num_hosts"]), ("small", 2, 1))
        self.assertEqual((now["planned_steps"], now["global_batch"]), (1000000, 8))
        self.assertAlmostEqual(now["samples_per_s"], 8 * now["steps_per_s"], delta=1e-6 * now["samples_per_s"])
        self.assertEqual([rank["rank"] for rank in now["ranks"]], [0, 1])
        self.assertEqual(sum(rank["slowest"] for rank in now["ranks"]), 1)
        for rank in now["ranks"]:
            self.assertEqual(set(rank["seconds"]), {"compute", "communication", "wait", "data"})
        self.assertEqual(self.top(f"http://{address}/metrics", "--json").returncode, 0)
        piped = self.top()
        self.assertEqual((piped.returncode, piped.stderr), (0, ""))
        self.assertNotIn("\x1b", piped.stdout)
        self.assertTrue(piped.stdout.startswith("small: training"))
        self.end_run(run)

    def test_several_jobs_are_listed(self):
        (self.folder / "other.toml").write_text((self.folder / "mlp.toml").read_text().replace(
            '"small"', '"other"').replace('"run"', '"run2"'))
        first, address = self.begin("-n", "1", *MANY_STEPS)
        second, other = self.begin("-n", "1", *MANY_STEPS, recipe="other.toml")
        listed = self.top()
        self.assert_refused(listed, "2 jobs", "stormo top 127.0.0.1:")
        self.assertRegex(listed.stderr, rf"(?m)^  {address}  small  (starting|training)")
        self.assertRegex(listed.stderr, rf"(?m)^  {other}  other  (starting|training)")
        self.assertIn("small: ", self.top(address).stdout)
        self.assertIn("other: ", self.top(other).stdout)
        self.end_run(first)
        self.assertIn("other: ", self.top().stdout)
        self.end_run(second)

    def test_the_token(self):
        secret, wrong = self.folder / "secret", self.folder / "wrong"
        for path, digits in ((secret, "5e"), (wrong, "5f")):
            path.write_text(digits * 32 + "\n")
            path.chmod(0o600)
        run, address = self.begin("-n", "1", *MANY_STEPS, "--metrics-token", "secret", address="0.0.0.0:0")
        address = address.replace("0.0.0.0", "127.0.0.1")
        self.assert_refused(self.top(address), "--token FILE")
        self.assert_refused(self.top(address, "--token", "wrong"), "the token in wrong is not that of")
        self.assert_refused(self.top(address, "--token", "none"), "none does not exist")
        self.assertEqual(self.top(address, "--token", "secret").returncode, 0)
        self.assertEqual(self.top().returncode, 0)  # the file of the job says where the token is
        text = next(self.job_files.iterdir()).read_text()
        self.assertNotIn("5e5e", text)
        self.assertEqual(self.job_files.stat().st_mode & 0o777, 0o700)
        self.end_run(run)

    def test_what_is_no_job_is_told(self):
        self.assert_refused(self.top(), "no job of this user")
        self.assert_refused(self.top("127.0.0.1"), "no port")
        self.assert_refused(self.top("--interval", "1ms", "127.0.0.1:9"), "--interval: at least 100ms")
        for answer, says in ((b"HTTP/1.0 404 Not Found\r\n\r\n", "HTTP status 404"), (b"SSH-2.0-x\r\n", "is no HTTP"),
                             (b'HTTP/1.0 200 OK\r\n\r\n{"schema": 2, "state": "", "version": "9.9"}', "version 9.9"),
                             (b"HTTP/1.0 200 OK\r\n\r\n<html>", "no status of a job"), (b"", "the connection ended")):
            with socket.create_server(("127.0.0.1", 0)) as server:
                def serve(server=server, answer=answer):
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)
                thread = threading.Thread(target=serve)
                thread.start()
                port = server.getsockname()[1]
                self.assert_refused(self.top(f"127.0.0.1:{port}"), says, code=1 if answer == b"" else 2)
                thread.join()


if __name__ == "__main__":
    main()
