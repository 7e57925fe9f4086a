"""For bench/elastic, and places for bench/decentralised: jobs that lose ranks, watched line by line with the time at which each line comes."""
import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
SETTLED = 20  # steps in one epoch; with adamw a state is sent in at most 15
DEADLINE_S = 120

# view: tells epochs apart
Commit = collections.namedtuple("Commit", "time step ranks view")
Epoch = collections.namedtuple("Epoch", "time number ranks base reported")


class Trouble(Exception):
    """A job that ended, or did not do what it was waited for."""


def children_of(pid):
    """All processes below one."""
    for listed in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in listed.read_text().split():
                yield int(child)
                yield from children_of(int(child))


def output_of(command):
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\nexited with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


class Place:
    """Where ranks run: on this host, or on some that are made; as many on each."""

    def __init__(self, ranks, hosts=1, rate=None):
        self.ranks, self.hosts, self.rate = ranks, hosts, rate
        self.name = f"e{os.getpid() % 1_000_000}"
        self.tool = ROOT / "tools/hosts"

    @contextlib.contextmanager
    def made(self):
        if self.hosts == 1:
            yield
            return
        output_of([self.tool, "up", self.hosts, "--name", self.name, *(["--rate", self.rate] if self.rate else [])])
        try:
            yield
        finally:
            output_of([self.tool, "down", "--name", self.name])

    def words(self):
        """The launcher's."""
        if self.hosts == 1:
            return ["-n", str(self.ranks)]
        slots = ",".join(f"{self.name}-{i}:{self.ranks // self.hosts}" for i in range(1, self.hosts + 1))
        return ["-H", slots, "--interface", f"{self.name}br,eth0", "--remote-shell", f"{self.tool} exec {{host}}"]

    def host_of(self, rank):
        return rank // (self.ranks // self.hosts)

    def on_host_of(self, rank):
        return [] if self.hosts == 1 else [str(self.tool), "exec", f"{self.name}-{self.host_of(rank) + 1}"]

    def address_of(self, rank=None):
        """Without a rank: that of this host, which all reach."""
        if self.hosts == 1:
            return "127.0.0.1"
        where = ["dev", f"{self.name}br"] if rank is None else ["dev", "eth0"]
        space = [] if rank is None else ["-n", f"{self.name}-{self.host_of(rank) + 1}"]
        return re.search(r"inet ([\d.]+)", output_of(["ip", *space, "-4", "-o", "addr", "show", *where]))[1]

    def bytes_sent(self):
        """By all hosts, as the kernel counts what has come over their lines, all headers included."""
        if self.hosts == 1:
            return 0
        return sum(int(pathlib.Path(f"/sys/class/net/{self.name}v{i}/statistics/rx_bytes").read_text(encoding="ascii"))
                   for i in range(1, self.hosts + 1))

    def line_of(self, rank, state):
        """Of its host; `down` or `up`."""
        output_of(["ip", "link", "set", f"{self.name}v{self.host_of(rank) + 1}", state])


class Job:
    """What trials need, whoever trains. `commits` are the steps that were reported, in the order of arrival."""

    def __init__(self, place):
        self.place = place
        self.commits, self.epochs, self.problem = [], [], None
        self.changed = threading.Condition()

    @property
    def ranks(self):
        return self.place.ranks

    def note(self, commit):
        with self.changed:
            self.commits.append(commit)
            self.changed.notify_all()

    def end(self, problem):
        with self.changed:
            self.problem = problem
            self.changed.notify_all()

    def wait(self, what, condition, seconds=DEADLINE_S):
        """What `condition` returns, once it is true."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.problem or condition(), seconds):
                raise Trouble(f"{what}: not within {seconds} s; the last step is "
                              f"{self.commits[-1].step if self.commits else 'none'}; {self.tail()}")
            found = condition()
            if not found:
                raise Trouble(f"{what}: {self.problem}")
            return found

    def settle(self):
        """Until all ranks have trained for some steps."""
        def settled():
            last = self.commits[-SETTLED:]
            return len(last) == SETTLED and all((c.view, c.ranks) == (last[-1].view, self.ranks) for c in last)
        self.wait("all ranks train", settled)
        return self.intervals(self.commits[-SETTLED:])

    @staticmethod
    def intervals(commits):
        return [b.time - a.time for a, b in zip(commits, commits[1:])]

    def first(self, what, condition, begin=0):
        """The first commit for which this is true; from number `begin` on."""
        return self.wait(what, lambda: next((c for c in self.commits[begin:] if condition(c)), None))

    def more(self, count):
        seen = len(self.commits)
        self.wait(f"{count} more steps", lambda: len(self.commits) >= seen + count)


class StormoJob(Job):
    name = "stormo"
    replaces_stopped = True  # by itself

    def __init__(self, place, program, words, scratch):
        super().__init__(place)
        self.members, self.view = place.ranks, 1
        self.errors = open(scratch / "errors", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [program, "train", ROOT / "recipes/mnist_mlp.toml", *place.words(), "--json", f"data.path={scratch / 'mnist'}",
             "train.steps=1000000", "train.epochs=0", "train.log_every=1", "train.eval_every=0", "train.global_batch=64",
             "checkpoint.directory=", "learning_rate.kind=constant", "learning_rate.warmup_steps=0", *words],
            cwd=scratch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            now = time.monotonic()
            if not line.startswith("{"):
                continue
            record = json.loads(line)
            if record["event"] == "step":
                self.note(Commit(now, record["step"], self.members, self.view))
            elif record.get("kind") == "membership":
                self.view, self.members, base = record["epoch"], record["ranks"], record["step"]
                with self.changed:
                    reported = self.commits[-1].step if self.commits else 0
                    self.epochs.append(Epoch(now, self.view, self.members, base, reported))
                    self.changed.notify_all()
        self.end(f"the job ended with {self.process.wait()}: {self.tail()}")

    def tail(self):
        self.errors.flush()
        return pathlib.Path(self.errors.name).read_text(encoding="utf-8")[-1500:]

    def pids(self):
        """Rank at the start of the job -> process id."""
        found = {}
        for pid in children_of(self.process.pid):
            with contextlib.suppress(OSError):
                for entry in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if entry.startswith(b"STORMO_RANK="):
                        found[int(entry.split(b"=")[1])] = pid
        return found

    def last_host(self):
        """Its ranks, and what has started them."""
        lost = {pid for rank, pid in self.pids().items() if self.place.host_of(rank) == self.place.hosts - 1}
        return [pid for pid in children_of(self.process.pid) if lost <= set(children_of(pid))] + sorted(lost)

    def full_again(self, after):
        """The time at which all ranks are members."""
        return self.wait("all ranks are members again",
                         lambda: next((e for e in self.epochs if e.time > after and e.ranks == self.ranks), None)).time

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for pid in children_of(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.reader.join(10)
        self.errors.close()


def runnable_of_others():
    """Threads that run or wait for a core, while nothing of ours does."""
    seen = []
    for _ in range(20):
        time.sleep(0.02)
        text = pathlib.Path("/proc/stat").read_text(encoding="ascii")
        seen.append(int(re.search(r"procs_running (\d+)", text)[1]) - 1)
    return statistics.mean(seen)
