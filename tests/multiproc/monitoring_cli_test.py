"""A run of `stormo train` can be looked at over HTTP, and nobody who does can hold it up; and in TensorBoard."""

import json
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request

from train_cli import DEADLINE_S, TrainTest, children_of, if_there, main

MANY_STEPS = ("steps=1000000", "checkpoint.every=50")


def get(url, **headers):
    """Status, type and text of a page."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def values(text):
    """Samples of Prometheus' text form: name with labels -> value."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def crc32c(data):
    """By its definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The contents of TFRecords, whose checksums are right."""
    while data:
        length, of_length = struct.unpack_from("<QI", data)
        content = data[12:12 + length]
        (of_content,) = struct.unpack_from("<I", data, 12 + length)
        if (of_length, of_content) != (masked(data[:8]), masked(content)):
            raise ValueError("a checksum is wrong")
        yield content
        data = data[16 + length:]


def fields(message):
    """(number, value) of each field of a protobuf message; numbers, or bytes."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            shift += 7
            at += 1
            if message[at - 1] < 0x80:
                return value, at
    at = 0
    while at < len(message):
        key, at = varint(at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(at)
        elif wire == 2:
            size, at = varint(at)
            value, at = message[at:at + size], at + size
        else:
            form, size = {1: ("<d", 8), 5: ("<f", 4)}[wire]
            (value,), at = struct.unpack_from(form, message, at), at + size
        yield number, value


class MonitoringTest(TrainTest):
    def begin(self, *arguments, address="127.0.0.1:0"):
        """A run without an end, and where it can be looked at."""
        run = self.start("mlp.toml", *MANY_STEPS, *arguments, "--metrics", address, stdout=subprocess.DEVNULL)
        for line in run.stderr:
            if line.startswith("metrics: http://"):
                return run, line.split()[1].removesuffix("/metrics")
        self.fail(f"no address of metrics, exit code {run.wait()}")

    def end(self, run):
        """As a scheduler would: it saves, and is gone."""
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 143, err)

    def wait_for(self, url, holds):
        """The metrics as soon as they are as wished."""
        by = time.monotonic() + DEADLINE_S
        while True:
            now = values(get(url + "/metrics")[2])
            if holds(now):
                return now
            self.assertLess(time.monotonic(), by, now)

    def test_a_run_shows_how_far_it_is(self):
        run, url = self.begin("-n", "2", "clip_norm=10")
        first = self.wait_for(url, lambda now: "stormo_checkpoint_age_seconds" in now)
        later = self.wait_for(url, lambda now: now["stormo_steps_total"] > first["stormo_steps_total"] + 20)
        self.assertEqual(later["stormo_samples_total"], 8 * later["stormo_steps_total"])
        self.assertEqual(later["stormo_step_duration_seconds_count"], later["stormo_steps_total"])
        self.assertEqual(later['stormo_ranks{state="active"}'], 2)
        self.assertEqual(later["stormo_planned_steps"], 1000000)
        self.assertGreater(later["stormo_gradient_norm"], 0)
        self.assertIn(later["stormo_slowest_rank"], (0, 1))
        for phase in ("compute", "wait"):
            name = f'stormo_phase_seconds_total{{phase="{phase}"}}'
            self.assertGreater(later[name], 0)
            self.assertLessEqual(later[name], time.time() - later["stormo_start_time_seconds"])
        self.assertNotIn("stormo_wire_bytes_total", later)  # one host
        status, kind, text = get(url + "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        self.assertEqual((status, kind.split(";")[0]), (200, "application/openmetrics-text"))
        self.assertTrue(text.endswith("# EOF\n"))
        self.assertRegex(get(url + "/healthz")[2], r"^training, step \d+ of 1000000, \d+\.\d s ago\n$")
        shown = json.loads(get(url + "/json")[2])
        self.assertEqual(shown["state"], "training")
        self.assertLessEqual({"start", "step"}, {record["event"] for record in shown["records"]})
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=get(url + "/metrics")[2], text=True,
                                     capture_output=True, check=False)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))
        self.end(run)

    def test_a_resumed_run_goes_on_counting(self):
        run, url = self.begin("-n", "2")
        self.wait_for(url, lambda now: now.get("stormo_steps_total", 0) > 30)
        self.end(run)
        run, url = self.begin("-n", "2", "--resume")
        now = self.wait_for(url, lambda now: "stormo_steps_total" in now)
        self.assertGreater(now["stormo_steps_total"], 30)
        self.assertGreater(now["stormo_steps_total"], now["stormo_step_duration_seconds_count"])
        self.assertIn("stormo_checkpoint_age_seconds", now)
        self.end(run)

    def test_who_holds_connections_holds_up_nothing(self):
        run, url = self.begin("-n", "2")
        address = url.removeprefix("http://").split(":")
        address = (address[0], int(address[1]))
        held = [socket.create_connection(address) for _ in range(100)]
        for connection in held:
            self.addCleanup(connection.close)
        held[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: a")
        with socket.create_connection(address) as large:
            large.sendall(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100000)
            self.assertTrue(large.recv(4096).startswith(b"HTTP/1.1 431 "))
        before = self.wait_for(url, lambda now: "stormo_steps_total" in now)["stormo_steps_total"]
        self.wait_for(url, lambda now: now["stormo_steps_total"] > before + 50)
        self.assertEqual(get(url + "/metrics", Host="evil.example")[0], 403)
        self.assertEqual(get(url + "/../../../etc/passwd")[0], 404)
        self.end(run)

    def test_a_port_that_is_taken_is_told_before_anything_is_trained(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            for ranks in ("1", "2"):
                run = self.stormo("train", "mlp.toml", "-n", ranks, "--metrics", f"127.0.0.1:{port}")
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertEqual(run.stderr.count("cannot listen"), 1, run.stderr)
                self.assertIn(f"127.0.0.1:{port}", run.stderr)
        self.assertFalse((self.folder / "run").exists())
        for words in (["127.0.0.1"], ["9464"], ["127.0.0.1:x"], [":9464"]):
            self.assertIn("--metrics: ", self.refused("mlp.toml", "--metrics", *words))
        self.assertIn("--metrics-token is for", self.refused("mlp.toml", "--metrics-token", "secret"))

    def test_other_machines_need_the_token(self):
        secret = self.folder / "secret"

        def told(*arguments):
            run = self.stormo("train", "mlp.toml", "-n", "2", "--metrics", "0.0.0.0:0", *arguments)
            self.assertEqual(run.returncode, 2, run.stderr)
            return run.stderr

        self.assertIn("openssl rand -hex 32", told())
        self.assertIn("--metrics-token", told("--metrics-token", "secret"))
        secret.write_text("5e" * 32 + "\n")
        secret.chmod(0o644)
        self.assertIn("chmod 600", told("--metrics-token", "secret"))
        secret.chmod(0o600)
        run, url = self.begin("-n", "2", "--metrics-token", "secret", address="0.0.0.0:0")
        url = url.replace("0.0.0.0", "127.0.0.1")
        status, _, text = get(url + "/metrics")
        self.assertEqual(status, 401)
        self.assertNotIn("stormo_", text)
        self.assertEqual(get(url + "/metrics", Authorization="Bearer " + "5f" * 32)[0], 401)
        self.assertEqual(get(url + "/metrics", Authorization="Bearer " + "5e" * 32)[0], 200)
        for pid in (run.pid, *children_of(run.pid)):
            for entry in ("cmdline", "environ"):
                self.assertNotIn(b"5e5e5e", if_there(pathlib.Path(f"/proc/{pid}/{entry}").read_bytes, b""))
        self.end(run)


class EventsTest(TrainTest):
    def events(self):
        """Of each file in the folder `tb`, the oldest first: {tag: {step: value}}, and steps at which a session began."""
        read = []
        for path in sorted((self.folder / "tb").glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime):
            contents = [dict(fields(content)) for content in records(path.read_bytes())]
            self.assertEqual(contents[0][3], b"brain.Event:2")
            scalars, sessions = {}, []
            for event in contents[1:]:
                self.assertLess(abs(event[1] - time.time()), 3600)
                if 7 in event:
                    sessions.append((event[2], dict(fields(event[7]))))
                for _, value in fields(event.get(5, b"")):
                    value = dict(fields(value))
                    scalars.setdefault(value[1].decode(), {})[event[2]] = value[2]
            read.append((scalars, sessions))
        return read

    def test_the_reader_of_the_test_knows_the_checksum(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)  # of RFC 3720

    def test_an_event_file_has_what_the_records_have(self):
        lines = self.lines("mlp.toml", "-n", "2", "--tensorboard", "tb", "clip_norm=10", "steps=4")
        (scalars, sessions), = self.events()
        self.assertEqual(sessions, [])
        steps = {line["step"]: line for line in lines if line["event"] == "step"}
        self.assertEqual(len(steps), 4)
        for tag, field in (("loss_metrics/global_avg_loss", "loss"), ("lr", "learning_rate"),
                           ("throughput(samples/s)", "samples_per_s")):
            self.assertEqual(set(scalars[tag]), set(steps))
            for step, value in scalars[tag].items():
                self.assertAlmostEqual(value, steps[step][field], delta=1e-6 * abs(value))
        self.assertTrue(all(norm > 0 for norm in scalars["grad_norm"].values()))
        evaluated, = [line for line in lines if line["event"] == "eval"]
        self.assertAlmostEqual(scalars["test_metrics/loss"][4], evaluated["loss"], places=5)
        self.assertNotIn("throughput(tps)", scalars)  # images
        # a run that goes on tells where: what an earlier one had of later steps is dropped
        self.lines("mlp.toml", "-n", "2", "--tensorboard", "tb", "clip_norm=10", "steps=6", "--resume")
        _, (scalars, sessions) = self.events()
        self.assertEqual(sessions, [(5, {1: 1})])
        self.assertEqual(set(scalars["lr"]), {5, 6})

    def test_what_cannot_be_written_is_told_before_anything_is_trained(self):
        (self.folder / "file").touch()
        self.assertIn("--tensorboard", self.refused("mlp.toml", "--tensorboard", "file"))

    def test_tensorboard_reads_it(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("set-up: the Python package tensorboard is not there")
        arguments = ("mlp.toml", "-n", "2", "--tensorboard", "tb", "clip_norm=10")
        self.lines(*arguments, "steps=6", "checkpoint.every=4")
        self.lines(*arguments, "steps=8", "--resume")
        accumulator = EventAccumulator(str(self.folder / "tb")).Reload()
        self.assertLessEqual({"loss_metrics/global_avg_loss", "lr", "grad_norm", "time_metrics/end_to_end(s)"},
                             set(accumulator.Tags()["scalars"]))
        self.assertEqual([event.step for event in accumulator.Scalars("lr")], list(range(1, 9)))


if __name__ == "__main__":
    main()
