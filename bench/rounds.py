"""What the comparisons share: interleaved rounds, per-round ratios, and how busy others kept the machine."""
import math
import os
import resource
import statistics
import subprocess
import sys
import time


class OtherLoad:
    """Cores that other processes kept busy since start(), on average."""

    def start(self):
        self.clock, self.busy, self.own = time.monotonic(), self._busy(), self._own()

    def cores(self):
        elapsed = time.monotonic() - self.clock
        return max(0.0, (self._busy() - self.busy - (self._own() - self.own)) / elapsed)

    @staticmethod
    def _busy():
        with open("/proc/stat", encoding="ascii") as stat:
            fields = [int(f) for f in stat.readline().split()[1:9]]
        idle, waiting = fields[3], fields[4]
        return (sum(fields) - idle - waiting) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _own():
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        usages = [resource.getrusage(kind) for kind in kinds]
        return sum(u.ru_utime + u.ru_stime for u in usages)


def run(command, **changes):
    """The command's standard output; a failure ends the comparison with what it wrote."""
    environment = dict(os.environ, **changes)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexited with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def interleave(rounds, measure, limit=math.inf):
    """measure(round) gives {key: (ours, theirs)} in seconds; returns {key: [(ours, theirs), ...]}."""
    seen, load, begun = {}, OtherLoad(), time.monotonic()
    for index in range(rounds):
        if time.monotonic() - begun > limit:
            break
        load.start()
        for key, pair in measure(index).items():
            seen.setdefault(key, []).append(pair)
        print(f"round {index + 1}/{rounds}: others kept {load.cores():.2f} cores busy", file=sys.stderr)
    return seen


def duration(seconds):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"


def report(seen, key_name, opponent):
    """A table of medians; False when the opponent was faster somewhere."""
    print(f"{key_name:<10} {'Stormo':>10} {opponent:>12} {'ratio':>7} {'min':>7} {'max':>7}  rounds")
    not_slower = True
    for key, pairs in seen.items():
        ratios = [theirs / ours for ours, theirs in pairs]
        ratio = statistics.median(ratios)
        ours, theirs = (statistics.median(column) for column in zip(*pairs))
        not_slower = not_slower and ratio >= 1
        print(f"{key:<10} {duration(ours):>10} {duration(theirs):>12} {ratio:>7.2f} {min(ratios):>7.2f} "
              f"{max(ratios):>7.2f}  {len(pairs)}")
    return not_slower
