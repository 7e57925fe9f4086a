"""Two hosts or more, which are network namespaces, for tests of the built program.

Usage of each: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import os
import subprocess
import unittest

from train_cli import REPOSITORY, TrainTest

HOSTS = REPOSITORY / "tools/hosts"


class HostsTest(TrainTest):
    RATE = ""  # of the line between the hosts
    COUNT = 2  # of hosts

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest("root: network namespaces need root")
        cls.name = f"s{os.getpid() % 1000000}"
        up = subprocess.run([HOSTS, "up", str(cls.COUNT), "--name", cls.name, "--owner", str(os.getpid()), *(("--rate", cls.RATE) if cls.RATE else ())], capture_output=True, text=True)
        if up.returncode != 0:
            raise unittest.SkipTest(f"root: cannot make network namespaces: {up.stderr}")
        cls.addClassCleanup(subprocess.run, [HOSTS, "down", "--name", cls.name], check=True)

    def setUp(self):
        super().setUp()
        self.shared, self.private = self.folder / "shared", self.folder / "private"
        self.shared.mkdir()
        self.private.mkdir()
        # a host has a disk of its own: what is below private/ there, the others do not see
        self.on_host = self.folder / "on_host"
        self.on_host.write_text(
            f'#!/bin/sh\nhost=$1\nshift\nexec {HOSTS} exec "$host" unshare -m sh -c '
            f'\'mount -t tmpfs none {self.private} && cd {self.folder} && exec "$@"\' sh "$@"\n')
        self.on_host.chmod(0o755)

    def hosts_of_job(self, ranks):
        """Arguments for so many ranks on each host, or on the first and on the second one."""
        first, second = ranks if isinstance(ranks, tuple) else (ranks, ranks)
        return ("-H", f"{self.name}-1:{first},{self.name}-2:{second}", "--interface", f"{self.name}br,eth0",
                "--remote-shell", f"{self.on_host} {{host}}", "--json")

    def on_two_hosts(self, recipe, *more, ranks=1, environment=None):
        """Trains on both hosts."""
        return self.stormo("train", recipe, *self.hosts_of_job(ranks), *more, environment=environment)

    def start_on_two_hosts(self, recipe, *more, ranks=1):
        """The same, and goes on while it runs."""
        return self.start(recipe, *self.hosts_of_job(ranks), *more)

    def bytes_at_second_host(self):
        """What its interface has received and sent, as the kernel counts it."""
        counters = subprocess.run(
            [HOSTS, "exec", f"{self.name}-2", "sh", "-c", "cat /sys/class/net/eth0/statistics/[rt]x_bytes"],
            capture_output=True, text=True, check=True)
        return sum(map(int, counters.stdout.split()))
