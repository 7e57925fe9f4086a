"""For bench/elastic: what an elastic run costs without a fault, and what it gets done with one every so often."""
import os
import random
import signal
import statistics
import time

from elastic_job import Trouble

MODELS = {  # batch 64
    "mnist_mlp": [],
    "20 million parameters": ["model.sizes=[784, 4096, 4096, 10]"],
}
WAYS = {
    "elastic": ["elastic.enabled=true"],
    "replicated": ["strategy.kind=ddp", "strategy.parameters=replicated"],
    "ddp": ["strategy.kind=ddp"],
}
STRIKES = [signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]  # of a soak, in random order


def seconds_of_a_step(start, words, seconds):
    job = start(words)
    try:
        job.wait("the first steps", lambda: len(job.commits) >= 10)
        begin = job.commits[-1]
        job.wait("steps", lambda: len(job.commits) > 20 and job.commits[-1].time - begin.time > seconds, 10 * seconds + 60)
        end = job.commits[-1]
        return (end.time - begin.time) / (end.step - begin.step)
    finally:
        job.close()


def without_fault(start, rounds, seconds):
    """Rows: the elastic step over that of the other ways in the same round; median, least, most."""
    for model, sizes in MODELS.items():
        times = {way: [] for way in WAYS}
        for i in range(rounds):
            for way in sorted(WAYS, reverse=i % 2 == 1):
                times[way].append(seconds_of_a_step(start, WAYS[way] + sizes, seconds))
        row = {"model": model, "rounds": rounds, "times": times}
        for way in ("replicated", "ddp"):
            ratios = [own / other for own, other in zip(times["elastic"], times[way])]
            row[f"over_{way}"] = [statistics.median(ratios), min(ratios), max(ratios)]
        yield row


def undisturbed(job, faults):
    """Ranks -> the intervals between lines of one epoch, some steps after it began."""
    out = {}
    for a, b, c in zip(job.commits, job.commits[10:], job.commits[11:]):
        if a.view == b.view == c.view and not any(b.time < f <= c.time for f in faults):
            out.setdefault(c.ranks, []).append(c.time - b.time)
    return out


def ideal_steps(job, faults, begin, end):
    """Of a job that loses no time: at each moment the mean step of as many ranks as were members."""
    steps = {ranks: statistics.mean(times) for ranks, times in undisturbed(job, faults).items()}
    changes = [(begin, job.ranks)]
    for f in faults:  # a rank is gone at once, whenever the others see it
        changes.append((f, None))
    changes += [(e.time, e.ranks) for e in job.epochs]
    changes.sort(key=lambda change: change[0])
    total, members = 0.0, job.ranks
    for (time_, ranks), (until, _) in zip(changes, changes[1:] + [(end, None)]):
        members = members - 1 if ranks is None else ranks
        nearest = min(steps, key=lambda n: abs(n - members))
        total += max(0.0, min(until, end) - time_) / steps[nearest]
    return total, steps


def soak(job, seconds, every, seed):
    """Faults of random kinds and ranks, at equal intervals."""
    rng = random.Random(seed)
    job.settle()
    begin, faults, kinds = job.commits[-1], [], []
    while time.monotonic() + every < begin.time + seconds:
        time.sleep(max(0.0, begin.time + (len(faults) + 0.5) * every + rng.uniform(-0.1, 0.1) * every - time.monotonic()))
        if job.problem:
            raise Trouble(job.problem)
        number, pids = rng.choice(STRIKES), job.pids()
        rank = rng.choice(sorted(pids))
        faults.append(time.monotonic())
        kinds.append([number.name, rank])
        os.kill(pids[rank], number)
    job.wait("the end", lambda: job.commits[-1].time >= begin.time + seconds)
    end = job.commits[-1]
    ideal, steps = ideal_steps(job, faults, begin.time, end.time)
    reported = [c.step for c in job.commits]
    return {"seconds": end.time - begin.time, "faults": kinds, "steps": end.step - begin.step, "ideal": ideal,
            "goodput": (end.step - begin.step) / ideal, "step_s": steps, "epochs": len(job.epochs),
            "twice": len(reported) - len(set(reported)),
            "lost": sum(max(0, e.reported - e.base) for e in job.epochs)}
