"""For bench/elastic: what is done to a job, and what it costs until the next step."""
import contextlib
import os
import signal
import statistics
import time

from elastic_job import SETTLED, Trouble

LARGE = ["model.sizes=[784, 2600, 2400, 10]"]  # 8.3 million parameters: 100 MB with both slots of adamw
LARGE_BYTES = 3 * 4 * ((784 + 1) * 2600 + (2600 + 1) * 2400 + (2400 + 1) * 10)
PAUSE_S = 0.5
# until a newcomer has its share of the samples: its state comes with adamw, is compared, and it computes
STEPS_NEAR, STEPS_FAR = 3 + 2, 15 + 2


class Fault:
    """`victims`: ranks, of which -1 is the last one. `target`: seconds, without the step."""

    def __init__(self, what, victims=(), target=None, per_job=2, words=(), needs_hosts=False, against=True):
        self.what, self.victims, self.target, self.per_job = what, victims, target, per_job
        self.words, self.needs_hosts, self.against = list(words), needs_hosts, against

    def send(self, job, number):
        """To all victims. Returns when."""
        pids = job.pids()
        chosen = [pids[v % job.ranks] for v in self.victims]
        now = time.monotonic()
        for pid in chosen:
            os.kill(pid, number)
        return now

    def strike(self, job, wait):  # `wait` ends at a random phase of a step
        wait()
        return self.send(job, signal.SIGKILL)

    def mend(self, job):
        """When the others go on. What the job does not do by itself."""

    def full_again(self, job, hit):
        return job.full_again(hit)


class Stop(Fault):
    def strike(self, job, wait):
        wait()
        return self.send(job, signal.SIGSTOP)

    def mend(self, job):
        if not job.replaces_stopped:
            self.send(job, signal.SIGKILL)


class Newcomer(Fault):
    """The victim dies, and so does its replacement, which has just become a member."""

    def strike(self, job, wait):
        wait()
        job.full_again(self.send(job, signal.SIGKILL))
        wait(after_line=False)
        return self.send(job, signal.SIGKILL)


class Host(Fault):
    """All that runs there is killed; it does not come back."""

    def strike(self, job, wait):
        wait()
        gone = job.last_host()
        now = time.monotonic()
        for pid in gone:
            with contextlib.suppress(ProcessLookupError):  # ranks end with what has started them
                os.kill(pid, signal.SIGKILL)
        return now

    def full_again(self, job, hit):
        return None


class Cut(Fault):
    """The line of a rank's host goes down, and up again when the others have gone on."""

    def strike(self, job, wait):
        wait()
        now = time.monotonic()
        job.place.line_of(self.victims[0] % job.ranks, "down")
        return now

    def mend(self, job):
        job.place.line_of(self.victims[0] % job.ranks, "up")


FAULTS = {
    "kill_same": Fault("kill -9, rank 1, on rank 0's host", [1], 0.15),
    "kill_other": Fault("kill -9, last rank, other host", [-1], 0.25, needs_hosts=True),
    "kill_root": Fault("kill -9, rank 0", [0], 0.15),
    "stop": Stop("SIGSTOP, last rank", [-1], 2.5),
    "stop_soon": Stop("SIGSTOP, elastic.silence=0.2", [-1], 0.3, words=["elastic.silence=0.2"], against=False),
    "pause": Fault("SIGSTOP of 0.5 s", per_job=20),
    "two": Fault("kill -9, two ranks at once", [1, -1], 0.3),
    "newcomer": Newcomer("kill -9 of a newcomer", [-1], 0.3, per_job=1, against=False),
    "host": Host("a host, killed", target=0.5, per_job=1, needs_hosts=True, against=False),
    "cut": Cut("line of a host cut", [-1], target=3, per_job=1, needs_hosts=True, against=False),
    "cut_root": Cut("line of rank 0's host cut", [0], target=3, per_job=1, needs_hosts=True, against=False),
    "join": Fault("kill -9, 100 MB of state", [-1], per_job=2, words=LARGE, against=False),
}


def take_pause(job, rng):
    """One of a random rank. Members must not change."""
    step = statistics.median(job.settle())
    views, pid = len(job.epochs), job.pids()[rng.randrange(job.ranks)]
    seen = len(job.commits)
    job.more(1)
    time.sleep(rng.uniform(0, 2 * step))
    hit = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)
    with contextlib.suppress(ProcessLookupError):  # a job that has thrown it out has killed it
        os.kill(pid, signal.SIGCONT)
    end = time.monotonic()
    first = job.first("a step after the pause", lambda c: c.time > end, seen)
    job.more(5)
    changed = len(job.epochs) - views if job.name == "stormo" else int(
        any(c.ranks < job.ranks for c in job.commits[seen:]))
    return {"next_s": first.time - hit, "step_s": step, "changes": changed}


def books(job, seen, epochs):
    """Steps of the trial: without a line, with two, and reported although the next epoch began before them."""
    steps = [c.step for c in job.commits[seen - 1:]]
    return {"no_line": len(set(range(steps[0], max(steps) + 1)) - set(steps)), "twice": len(steps) - len(set(steps)),
            "lost": sum(max(0, e.reported - e.base) for e in job.epochs[epochs:])}


def take(job, fault, rng):
    """A trial. Times count from the fault; the next step is the first one of which a line comes and that was committed
    by other members than before it."""
    before = job.settle()
    step = statistics.median(before)

    def wait(after_line=True):
        if after_line:
            job.more(1)
        time.sleep(rng.uniform(0, 2 * step))

    seen, epochs = len(job.commits), len(job.epochs)
    hit = fault.strike(job, wait)
    with job.changed:
        begin = next((i for i, c in enumerate(job.commits) if c.time > hit), len(job.commits))
        view = job.commits[begin - 1].view
    first = job.first("the next step", lambda c: c.view != view, begin)
    fault.mend(job)
    found = {"next_s": first.time - hit, "step_s": step}
    full = fault.full_again(job, hit)
    if full is None:
        job.more(SETTLED)
        return {**found, **books(job, seen, epochs)}
    job.settle()
    with job.changed:
        after = next(i for i, c in enumerate(job.commits) if c.time >= full)
    # the line before it became a member, those of the steps that carry its state, and its first own ones
    heal = job.commits[max(0, after - 1):after + SETTLED]
    shared = job.commits[after + (STEPS_NEAR if job.ranks > job.place.hosts else STEPS_FAR) - 1]
    lone = job.intervals([c for c in job.commits if first.time <= c.time < full])
    found |= {"member_s": full - hit, "longest_s": max(job.intervals(heal)), "longest_before_s": max(before),
              "step_without_s": statistics.median(lone) if lone else None}
    if job.name == "stormo":
        found |= {"joined_s": shared.time - full, **books(job, seen, epochs)}
    return found


def tried(job, fault, rng):
    try:
        return take_pause(job, rng) if fault is FAULTS["pause"] else take(job, fault, rng)
    except Trouble as trouble:
        return {"failed": str(trouble)}
