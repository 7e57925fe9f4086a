"""For bench/decentralised: jobs on made hosts, watched until they have come to a loss, and what their lines carry."""
import json
import pathlib
import signal
import subprocess
import threading
import time

from elastic_job import ROOT, Trouble, output_of

STOPPED = (0, 143, -signal.SIGTERM)  # exit codes of what was told to end


class Curve:
    """Of the lines that a job prints: what it has come to, when, and after how many bytes. Evaluations take no time: a
    clock stands still from the last line of a step before an evaluation to that of the evaluation."""

    def __init__(self, place):
        self.place, self.before = place, place.bytes_sent()
        self.points, self.counted = [], None
        self.seconds, self.resumed, self.paused = 0.0, None, None

    def take(self, now, record):
        event = record["event"]
        if event == "start":
            self.resumed = now
        elif event == "step":
            self.paused = now
        elif event == "eval" and record["split"] == "validation":
            self.seconds += (self.paused or now) - self.resumed
            self.points.append({"step": record["step"], "seconds": self.seconds, "bytes": self.bytes_sent(),
                                "loss": record["loss"]})
            self.resumed, self.paused = now, None
        elif event == "end":
            self.counted = sum(record["bytes_sent_per_rank"])

    def bytes_sent(self):
        return self.place.bytes_sent() - self.before

    def ended(self, loss, seconds):
        return bool(self.points) and (self.points[-1]["loss"] <= loss or self.seconds > seconds)


class Watched:
    """The first of its processes speaks."""

    def __init__(self, commands, scratch):
        self.errors = scratch / "errors"
        with open(self.errors, "w", encoding="utf-8") as errors:
            self.processes = [
                subprocess.Popen(list(map(str, command)), cwd=scratch, stdin=subprocess.DEVNULL, stderr=errors,
                                 stdout=subprocess.DEVNULL if i else subprocess.PIPE, text=True)
                for i, command in enumerate(commands)]

    def stop(self):
        """A launcher takes its ranks with it; other processes end at once, too."""
        for process in self.processes:
            process.terminate()

    def kill(self):
        for process in self.processes:
            process.kill()

    def watch(self, curve, loss, seconds):
        """Until it ends by itself, or has come to the loss or to the seconds. Whether all is well."""
        watchdog = threading.Timer(2 * seconds + 300, self.kill)  # evaluations do not count as seconds
        watchdog.start()
        try:
            ended = False
            for line in self.processes[0].stdout:
                record = json.loads(line)
                if not ended or record["event"] == "end":
                    curve.take(time.monotonic(), record)
                if not ended and curve.ended(loss, seconds):
                    ended = True
                    self.stop()
            code = self.processes[0].wait()
            if code != 0:
                self.stop()  # the others wait for it
            codes = [code, *(process.wait() for process in self.processes[1:])]
            return bool(curve.points) and (code in STOPPED if ended else not any(codes))
        finally:
            watchdog.cancel()
            self.kill()

    def tail(self):
        return self.errors.read_text(encoding="utf-8")[-2000:]


def stormo_commands(stormo, place, recipe, keys):
    return [[stormo, "train", recipe, *place.words(), "--json", *keys]]


def torch_commands(stormo, place, recipe, keys, name, python, scratch):
    """A process on each host; they find each other by a file. Stormo says what the recipe means."""
    rendezvous = scratch / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    said = json.loads(output_of([stormo, "train", recipe, "-n", place.ranks, "--dry-run", "--json", *keys]))["recipe"]
    interface = "lo" if place.hosts == 1 else "eth0"
    return [[*place.on_host_of(rank), "env", f"GLOO_SOCKET_IFNAME={interface}", python, ROOT / "bench/torch_train.py",
             rendezvous, rank, place.ranks, name, json.dumps(said)] for rank in range(place.ranks)]


def trained(place, commands, scratch: pathlib.Path, loss, seconds):
    """A run: points, what the kernel has counted, what the job has counted (None: it does not count)."""
    curve = Curve(place)
    job = Watched(commands, scratch)
    if not job.watch(curve, loss, seconds):
        raise Trouble(f"{' '.join(map(str, commands[0]))}\nfailed: {job.tail()}")
    return {"points": curve.points, "links_bytes": curve.bytes_sent(), "job_bytes": curve.counted}
