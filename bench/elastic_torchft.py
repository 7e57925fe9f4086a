"""For bench/elastic: the same faults in a job of torchft's, each replica a process."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

from elastic_job import ROOT, Commit, Job

TRAINER = ROOT / "bench/torchft_train.py"
SETTINGS = {  # ms that `torchft_lighthouse` waits for others to join; the time limit of Manager and group, 0: its own
    "torchft": (60_000, 0),
    "torchft tuned": (200, 5),
}


def environment(python):
    """What its processes get; a message and the end if it is not there."""
    modules = pathlib.Path(python).absolute().parents[2] / "modules"  # beside the environment, as tools/setup.sh has it
    out = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(modules)}
    looked = subprocess.run([python, "-c", "import torch, torchft"], env=out, capture_output=True, text=True,
                            check=False) if pathlib.Path(python).exists() else None
    if looked is None or looked.returncode != 0:
        why = "there is no such program" if looked is None else (looked.stderr.strip().splitlines() or ["it died"])[-1]
        raise SystemExit(f"--against torchft: {python} has no torchft: {why}. Install it into build/wheel:\n"
                         f"  bash -c '. tools/setup.sh && install_wheel_environment'\n"
                         "or name a Python that has it: --python PYTHON")
    return out


def free_port(address):
    with socket.create_server((address, 0)) as probe:
        return probe.getsockname()[1]


class TorchftJob(Job):
    """A replica that dies is started again at once, as a supervisor would."""
    replaces_stopped = False

    def __init__(self, place, name, python, variables, scratch):
        super().__init__(place)
        self.name, self.python, self.variables = name, python, dict(variables)
        self.variables["GLOO_SOCKET_IFNAME"] = "lo" if place.hosts == 1 else "eth0"
        self.closing = False
        self.errors = open(scratch / "errors", "w+", encoding="utf-8")
        join_ms, self.limit_s = SETTINGS[name]
        address = place.address_of()
        bind = f"{address}:{free_port(address)}"
        self.lighthouse_address = f"http://{bind}"
        self.lighthouse = self.start(["lighthouse", bind, str(join_ms)], stdout=subprocess.DEVNULL)
        self.processes = {}
        self.threads = [threading.Thread(target=self.keep, args=(rank,), daemon=True) for rank in range(place.ranks)]
        for thread in self.threads:
            thread.start()

    def start(self, words, before=(), stdout=subprocess.PIPE):
        return subprocess.Popen([*before, self.python, TRAINER, *words], env=self.variables, stdin=subprocess.DEVNULL,
                                stdout=stdout, stderr=self.errors, text=True)

    def keep(self, rank):
        """Runs a replica again and again, and reads what it does."""
        while not self.closing:
            process = self.processes[rank] = self.start(
                ["replica", str(rank), self.lighthouse_address, self.place.address_of(rank), str(self.ranks),
                 str(self.limit_s)], self.place.on_host_of(rank))
            for line in process.stdout:
                self.take(time.monotonic(), json.loads(line))
            process.wait()

    def take(self, now, record):
        """A step counts when the first replica says so."""
        with self.changed:
            if record["committed"] and (not self.commits or record["step"] > self.commits[-1].step):
                self.note(Commit(now, record["step"], record["ranks"], record["ranks"]))

    def tail(self):
        self.errors.flush()
        return pathlib.Path(self.errors.name).read_text(encoding="utf-8")[-1500:]

    def pids(self):
        return {rank: process.pid for rank, process in self.processes.items()}

    def full_again(self, after):
        """The time of the first step that all have committed."""
        begin = next(i for i, c in enumerate(self.commits) if c.time > after and c.ranks < self.ranks)
        return self.first("all replicas take part again", lambda c: c.ranks == self.ranks, begin).time

    def close(self):
        self.closing = True
        for process in (*self.processes.values(), self.lighthouse):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for thread in self.threads:
            thread.join(30)
        self.lighthouse.wait()
        self.errors.close()
